"""Ctrl-C in processes that tests start."""

import signal


def hear_ctrl_c():
    """For `preexec_fn`: a shell's background jobs ignore Ctrl-C, and would hand that on to what the tests start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
