"""The app as a Space of the hub: the folder that scripts/space.py makes starts as it stands, and answers the hub."""

import http.client
import os
import re
import subprocess
import sys
import time

import pytest
from app_server import NO_APP, START_SECONDS, free_port

from scripts.space import main, make_space, requirements
from tests.ctrl_c import hear_ctrl_c

pytestmark = pytest.mark.skipif(bool(NO_APP), reason=NO_APP or "never")
HOST = "somebody-encoders.hf.space"


def ask(port: int, host: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/", headers={"Host": host})
    answer = connection.getresponse()
    found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
    connection.close()
    return found


def test_the_header_names_the_file_and_the_pinned_gradio(tmp_path):
    make_space(tmp_path / "space")
    header = (tmp_path / "space" / "README.md").read_text().split("---\n")[1]
    fields = dict(re.findall(r"^(\w+): (.*)$", header, re.MULTILINE))
    assert (fields["sdk"], fields["app_file"]) == ("gradio", "app.py")
    assert re.fullmatch(r"\d+\.\d+\.\d+", fields["sdk_version"])
    assert len(fields["short_description"]) <= 60  # what the hub takes
    assert any(line.startswith("torch") for line in requirements())


def test_a_folder_that_is_not_empty_is_refused_in_one_sentence(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"space: error: folder {tmp_path} is not empty; name a new one.\n"


@pytest.mark.slow  # loads the models and draws the first example
def test_the_folder_starts_as_it_stands(tmp_path):
    space, port = tmp_path / "space", free_port()
    make_space(space)
    own = {"GRADIO_SERVER_PORT": str(port), "SPACE_HOST": HOST, "GRADIO_SERVER_NAME": "127.0.0.1"}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | own
    with (tmp_path / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "app.py"], cwd=space, env=environment, stdout=log, stderr=subprocess.STDOUT,
            preexec_fn=hear_ctrl_c,
        )  # fmt: skip
        try:
            end = time.monotonic() + START_SECONDS
            while "open http" not in (tmp_path / "log.txt").read_text():
                assert process.poll() is None, (tmp_path / "log.txt").read_text()
                assert time.monotonic() < end
                time.sleep(0.3)
            status, headers, page = ask(port, HOST)
            assert status == 200
            assert headers["content-security-policy"] == "frame-ancestors https://huggingface.co"
            assert "x-frame-options" not in headers
            assert re.search(r"CLIP drew .{0,20}\d", page), "the first example is drawn"
            assert "Measured over 200 prompts" in page
            assert ask(port, "evil.example")[0] == 403
        finally:
            process.terminate()
            process.wait(30)
