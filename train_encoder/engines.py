"""What differs between accelerate's engines: whole weights in every process, shards of them (FSDP2), DeepSpeed.

With shards a parameter is a DTensor. PyTorch shards no scalar, so the temperature becomes a vector of one; rows of the
position table that are frozen lie in one process or are cut in two; and what is saved is gathered first.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from train_encoder import zero

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from train_encoder.kinds import AnyTowers
    from train_encoder.settings import TrainConfig


def engine_of(accelerator: Accelerator) -> str:
    """`whole` (one process, DistributedDataParallel), `shards` (FSDP2) or `deepspeed`."""
    name = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    return {"FSDP": "shards", "DEEPSPEED": "deepspeed"}.get(name, "whole")


def check_launcher(accelerator: Accelerator) -> None:
    """Raise ValueError where the launcher was given an engine that accelerate leaves out without a word."""
    found = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    for name, said in (("FSDP", "FSDP"), ("DEEPSPEED", "DeepSpeed"), ("MEGATRON_LM", "Megatron-LM")):
        if os.environ.get(f"ACCELERATE_USE_{name}", "").lower() == "true" and (found != name or name == "MEGATRON_LM"):
            raise ValueError(
                f"the launcher was given {said}, which does not run here (device {accelerator.device.type}, "
                f"{accelerator.num_processes} process(es)), so that nothing would be sharded; use ddp.yaml of "
                "train_encoder/configs/accelerate, or several GPUs."
            )
    if found == "FSDP" and accelerator.state.fsdp_plugin.fsdp_version != 2:
        raise ValueError("the launcher was given FSDP of version 1, version 2 is supported; set fsdp_version to 2.")


def check_engine(engine: str, config: TrainConfig) -> None:
    """Raise ValueError for what an engine cannot do."""
    if engine == "shards" and (config.eval_steps or config.validation_steps):
        raise ValueError(
            f"eval_steps and validation_steps read whole weights and the engine is {engine}; "
            "set both to 0, or use ddp.yaml."
        )


def wrap(
    accelerator: Accelerator, towers: AnyTowers, optimizer: torch.optim.Optimizer, config: TrainConfig, *, engine: str
) -> tuple[nn.Module, Any]:
    """Hand `towers` to accelerate; returns the module to call and the optimizer to step."""
    if engine == "whole":
        return accelerator.prepare(towers), optimizer
    if engine == "deepspeed":
        # DeepSpeed's own bf16 would make the weights bf16: they stay float32, and autocast computes as elsewhere.
        towers.forward = autocast(accelerator, config)(towers.forward)
        return zero.prepare_zero(accelerator, towers, optimizer, config)
    return accelerator.prepare(towers, optimizer)


def autocast(accelerator: Accelerator, config: TrainConfig) -> torch.autocast:
    """The context in which `mixed_precision` computes; what it was entered with stays float32."""
    return torch.autocast(accelerator.device.type, torch.bfloat16, enabled=config.mixed_precision == "bf16")


def backward(accelerator: Accelerator, wrapped: nn.Module, loss: Tensor, *, engine: str, last: bool = True) -> None:
    """Add the gradients of `loss`; those of all processes meet behind the `last` of a step's."""
    if engine == "deepspeed":
        zero.zero_backward(wrapped, loss, last=last)
    else:
        accelerator.backward(loss)


def delay_meeting(accelerator: Accelerator, wrapped: nn.Module, *, engine: str, last: bool) -> Any:
    """The context of a forward and a backward pass of which only the `last` makes the processes' gradients meet."""
    return contextlib.nullcontext() if last or engine == "deepspeed" else accelerator.no_sync(wrapped)


def local_part(tensor: Tensor) -> Tensor:
    """This process's shard of a DTensor, sharing its memory; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def local_rows(table: Tensor, rows: int) -> int:
    """How many of the first `rows` rows of `table` this process holds; they are the first of its shard."""
    if not hasattr(table, "to_local"):
        return rows
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(table.shape, table.device_mesh, table.placements)
    return min(max(rows - offset[0], 0), shape[0])


def clamp_temperature(logit_scale: Tensor, *, largest: float) -> float:
    """Clamp the logarithm of the temperature in place; returns the factor of the logits."""
    with torch.no_grad():
        local_part(logit_scale).clamp_(max=largest)
        whole = logit_scale.full_tensor() if hasattr(logit_scale, "full_tensor") else logit_scale
        return whole.exp().item()


def read_states(towers: nn.Module, optimizer: Any, *, engine: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The whole states of model and optimizer; of shards in the main process only, all processes must call it."""
    if engine == "whole":
        return towers.state_dict(), optimizer.state_dict()
    if engine == "deepspeed":
        keep = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
        return towers.state_dict(), zero.read_optimizer(towers, optimizer, keep=keep)
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_state_dict(towers, _bare(optimizer), options=options)


def load_states(
    towers: nn.Module, optimizer: Any, states: tuple[dict[str, Any], dict[str, Any]], *, engine: str
) -> None:
    """Put back what `read_states` gave, the whole states in every process."""
    if engine == "whole":
        towers.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
        return
    if engine == "deepspeed":
        towers.load_state_dict(states[0])
        zero.load_optimizer(towers, optimizer, states[1])
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    options = StateDictOptions(full_state_dict=True)
    set_state_dict(towers, _bare(optimizer), model_state_dict=states[0], optim_state_dict=states[1], options=options)


def whole_model(towers: AnyTowers, *, engine: str) -> PreTrainedModel | None:
    """The model with all its weights; of shards a copy in the main process and None elsewhere, all must call it."""
    if engine == "deepspeed":
        zero.narrow_temperature(towers.clip)
    if engine != "shards":
        return towers.clip
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    state = get_model_state_dict(towers, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if not state:
        return None
    state = {name.removeprefix("clip."): tensor for name, tensor in state.items() if name.startswith("clip.")}
    model = type(towers.clip)(towers.clip.config)
    state["logit_scale"] = state["logit_scale"].reshape(model.logit_scale.shape)
    model.load_state_dict(state)
    return model


def _bare(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer inside accelerate's."""
    return getattr(optimizer, "optimizer", optimizer)
