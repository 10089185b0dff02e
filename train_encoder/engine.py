"""How accelerate spreads a run over processes: whole weights in each of them, or shards (FSDP2).

With shards a parameter is a DTensor. PyTorch shards no scalar, so the temperature becomes a vector of one. Frozen rows
of the position table lie in one process or are cut in two, and what is saved is gathered first.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from train_encoder.settings import LENGTHEN

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from train_encoder.settings import TrainConfig

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]
States = tuple[dict[str, Any], dict[str, Any]]  # of the towers and of the optimizer


class Engine:
    """Whole weights in every process: one process, or DistributedDataParallel over several."""

    name = "whole"

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator

    def check(self, config: TrainConfig) -> None:
        """Raise ValueError for a setting that this engine cannot follow."""

    def prepare(self, towers: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, Any]:
        """Hand `towers` to accelerate. Returns the module to call and the optimizer to step."""
        return self.accelerator.prepare(towers), make_optimizer(towers)

    def delay_meeting(self, wrapped: nn.Module, *, last: bool) -> Any:
        """The context of a forward and a backward pass. Only the `last` one lets the processes' gradients meet."""
        return contextlib.nullcontext() if last else self.accelerator.no_sync(wrapped)

    def read_states(self, towers: nn.Module, optimizer: Any) -> States:
        """The whole states of towers and optimizer. All processes must call it."""
        return towers.state_dict(), optimizer.state_dict()

    def load_states(self, towers: nn.Module, optimizer: Any, states: States) -> None:
        """Put back what `read_states` returned. Every process passes the whole states."""
        towers.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])

    def whole_model(self, towers: nn.Module) -> PreTrainedModel | None:
        """The model with all its weights, None outside the main process. All processes must call it."""
        return towers.clip


class Shards(Engine):
    """Weights, gradients and AdamW's state in shards (FSDP2). States are gathered in the main process only."""

    name = "shards"

    def check(self, config: TrainConfig) -> None:
        if config.recipe == LENGTHEN:
            raise ValueError(
                f"recipe is {LENGTHEN} and the engine is {self.name}; use ddp.yaml, the encoders fit whole."
            )
        if config.eval_steps or config.validation_steps:
            raise ValueError(
                f"eval_steps and validation_steps read whole weights and the engine is {self.name}; "
                "set both to 0, or use ddp.yaml."
            )

    def prepare(self, towers: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, Any]:
        towers.gather_layers()
        return self.accelerator.prepare(towers, make_optimizer(towers))

    def read_states(self, towers: nn.Module, optimizer: Any) -> States:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_state_dict(towers, _bare(optimizer), options=options)

    def load_states(self, towers: nn.Module, optimizer: Any, states: States) -> None:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

        parts = {"model_state_dict": states[0], "optim_state_dict": states[1]}
        set_state_dict(towers, _bare(optimizer), **parts, options=StateDictOptions(full_state_dict=True))

    def whole_model(self, towers: nn.Module) -> PreTrainedModel | None:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        state = get_model_state_dict(towers, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if not state:
            return None
        state = {name.removeprefix("clip."): tensor for name, tensor in state.items() if name.startswith("clip.")}
        model = type(towers.clip)(towers.clip.config)
        state["logit_scale"] = state["logit_scale"].reshape(model.logit_scale.shape)
        model.load_state_dict(state)
        return model


def make_engine(accelerator: Accelerator) -> Engine:
    """The engine that the launcher chose. ValueError for one that this trainer or accelerate does not run."""
    found = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    for name, said in (("FSDP", "FSDP"), ("MEGATRON_LM", "Megatron-LM")):
        if _is_given(name) and (found != name or name == "MEGATRON_LM"):
            raise ValueError(
                f"the launcher was given {said}, which does not run here (device {accelerator.device.type}, "
                f"{accelerator.num_processes} process(es)), so that nothing would be sharded; use ddp.yaml of "
                "train_encoder/configs/accelerate, or several GPUs."
            )
    if found != "FSDP":
        return Engine(accelerator)
    if accelerator.state.fsdp_plugin.fsdp_version != 2:
        raise ValueError("the launcher was given FSDP of version 1, version 2 is supported; set fsdp_version to 2.")
    return Shards(accelerator)


def refuse_deepspeed() -> None:
    """Raise ValueError where the launcher was given DeepSpeed: before accelerate asks for its package."""
    if _is_given("DEEPSPEED"):
        raise ValueError(
            "the launcher was given DeepSpeed, which train_encoder does not run; use ddp.yaml of "
            "train_encoder/configs/accelerate, or fsdp2.yaml to shard the weights."
        )


def _is_given(name: str) -> bool:
    """Whether the launcher's file or options name this engine. accelerate leaves some out without a word."""
    return os.environ.get(f"ACCELERATE_USE_{name}", "").lower() == "true"


def _bare(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer inside accelerate's wrapper."""
    return getattr(optimizer, "optimizer", optimizer)


def autocast(accelerator: Accelerator, config: TrainConfig) -> torch.autocast:
    """The context in which `mixed_precision` computes. Weights stay float32."""
    return torch.autocast(accelerator.device.type, torch.bfloat16, enabled=config.mixed_precision == "bf16")


def clamp_temperature(logit_scale: Tensor, *, largest: float) -> float:
    """Clamp the logarithm of the temperature in place. Returns the factor of the logits."""
    with torch.no_grad():
        _local_part(logit_scale).clamp_(max=largest)
        whole = logit_scale.full_tensor() if hasattr(logit_scale, "full_tensor") else logit_scale
        return whole.exp().item()


class FrozenRows:
    """The first rows of a position table, kept bit for bit while the rest of the same parameter trains.

    The gradient is masked, so that clipping does not see these rows. They are put back after every update, because
    AdamW's weight decay moves rows without a gradient too. Make it when the weights are where they stay.
    """

    def __init__(self, table: nn.Parameter, rows: int) -> None:
        self.table, self.rows = table, _local_rows(table, rows)
        self.values = _local_part(table.detach())[: self.rows].clone()

    def mask_gradient(self) -> None:
        """Call between backward and the update."""
        _local_part(self.table.grad)[: self.rows] = 0

    def restore(self) -> None:
        """Call after the update."""
        with torch.no_grad():
            _local_part(self.table)[: self.rows] = self.values


def _local_part(tensor: Tensor) -> Tensor:
    """This process's shard of a DTensor, sharing its memory; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _local_rows(table: Tensor, rows: int) -> int:
    """How many of the first `rows` rows of `table` this process holds. They are the first of its shard."""
    if not hasattr(table, "to_local"):
        return rows
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(table.shape, table.device_mesh, table.placements)
    return min(max(rows - offset[0], 0), shape[0])
