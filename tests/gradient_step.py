"""Loss and gradients of the first step of runs, by as many processes as were launched: `-m tests.gradient_step FILE`.

FILE is JSON, {name: settings}; the main process writes FILE.pt, {name: what `first_step` returns}.
"""

import json
import sys

import torch

from train_encoder.prepare import prepare
from train_encoder.processes import leave
from train_encoder.settings import make_config
from train_encoder.step import forward_of
from train_encoder.train import make_loader


def first_step(settings):
    """The loss of all processes and the gradients that the optimizer would see."""
    run = prepare(make_config(settings))
    batch = next(iter(make_loader(run)))
    forward = forward_of(run, batch)
    loss = run.accelerator.reduce(forward.total.detach(), reduction="mean").item()
    forward.backward()
    gradients = {name: p.grad.clone() for name, p in run.towers.named_parameters() if p.grad is not None}
    return {"loss": loss, "gradients": gradients, "processes": run.accelerator.num_processes}


def largest_difference(one, other):
    """Of two steps: loss, and gradients relative to the largest of all."""
    assert one["gradients"].keys() == other["gradients"].keys()
    scale = max(gradient.abs().max().item() for gradient in one["gradients"].values())
    gradient = max((one["gradients"][n] - other["gradients"][n]).abs().max().item() for n in one["gradients"])
    return max(abs(one["loss"] - other["loss"]), gradient / scale)


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        found = {name: first_step(settings) for name, settings in json.load(file).items()}
    processes = next(iter(found.values()))["processes"]
    from accelerate import PartialState

    if PartialState().is_main_process:
        torch.save(found, sys.argv[1] + ".pt")
    PartialState().wait_for_everyone()
    leave(processes)
