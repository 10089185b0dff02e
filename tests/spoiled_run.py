"""The trainer's command with one value of step 6 spoiled: `-m tests.spoiled_run WHERE VALUE ARGUMENTS`.

Where: `gradient` (of a weight that every batch uses), `rare` (of a token that none uses, so that every loss stays
finite) or `moment` (of AdamW, after the step).
"""

import sys

import torch

from train_encoder import step as step_module
from train_encoder import train as loop
from train_encoder.__main__ import main

STEP = 6


def spoil(run, where: str, value: float) -> None:
    towers = run.towers.clip
    if where == "moment":
        run.optimizer.state[towers.text_projection.weight]["exp_avg"][0, 0] = value
    elif where == "gradient":
        towers.text_projection.weight.grad[0, 0] = value
    else:
        towers.text_model.embeddings.token_embedding.weight.grad[run.tokenizer.unk_token_id, 0] = value


def patch(setter, where: str, value: float) -> None:
    """Spoil step 6 of runs from now on; `setter` is `setattr` or monkeypatch's."""
    update, train_step = step_module.update, loop.train_step

    def spoiled_update(run):
        if run.step == STEP - 1 and where != "moment":
            spoil(run, where, value)
        return update(run)

    def spoiled_step(run, batch):
        row = train_step(run, batch)
        if run.step == STEP and where == "moment":
            spoil(run, where, value)
        return row

    setter(step_module, "update", spoiled_update)
    setter(loop, "train_step", spoiled_step)


if __name__ == "__main__":
    torch.set_num_threads(1)
    patch(setattr, sys.argv[1], float(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
