"""The trainer's command that kills itself, its launcher and all processes: `-m tests.killed_run STEP WHERE ARGUMENTS`.

Where: `step` (the update of STEP is made and not yet in the log) or `checkpoint` (the first one from STEP on is written
but not yet in place).
"""

import os
import signal
import sys

from train_encoder import run_folder
from train_encoder import train as loop
from train_encoder.__main__ import main


def kill_all() -> None:
    for process in (os.getppid(), os.getpid()):  # the launcher first: it would end the other process gently
        os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    last, where = int(sys.argv[1]), sys.argv[2]
    train_step, write_state = loop.train_step, run_folder.write_state

    def killed_step(run, batch):
        row = train_step(run, batch)
        if where == "step" and run.step == last:
            kill_all()
        return row

    def killed_write(path, state):
        write_state(path, state)
        if where == "checkpoint" and state["step"] >= last:
            kill_all()

    loop.train_step, run_folder.write_state = killed_step, killed_write
    sys.exit(main(sys.argv[3:]))
