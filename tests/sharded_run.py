"""The trainer's command with weights in shards on CPUs: `-m tests.sharded_run ARGUMENTS`, by two processes.

accelerate 1.15 gives FSDP2 to GPUs only. So its `prepare` is stood in for by what it calls there, PyTorch's own
`fully_shard` on every layer and then on the whole; everything else is the trainer as it is.
"""

import sys

from accelerate import Accelerator
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from train_encoder import processes
from train_encoder.__main__ import main
from train_encoder.engine import Shards


def prepare(accelerator, towers, optimizer):
    mesh = init_device_mesh("cpu", (accelerator.num_processes,))
    for tower in (towers.clip.text_model, towers.clip.vision_model):
        for layer in tower.encoder.layers:
            fully_shard(layer, mesh=mesh)
    fully_shard(towers, mesh=mesh)
    optimizer.param_groups[0]["params"] = [p for p in towers.parameters() if p.requires_grad]
    return towers, optimizer


if __name__ == "__main__":
    Accelerator.prepare = prepare
    processes.make_engine = Shards
    sys.exit(main(sys.argv[1:]))
