"""The example client where no app is running: one sentence, exit code 2."""

import socket

from app.client import main


def test_no_app_at_the_address_is_one_sentence(capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        assert main([f"http://127.0.0.1:{free.getsockname()[1]}", "A red star."]) == 2
    error = capsys.readouterr().err
    assert error.startswith("no app answers at http://127.0.0.1:")
    assert error.count("\n") == 1
