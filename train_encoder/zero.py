"""DeepSpeed's ZeRO 2: whole weights in every process; gradients, AdamW's state and its copy of the weights in shards.

The copy is what AdamW changes, and the weights follow it: whoever changes weights by hand writes the copy too.
Gradients are in shards when `backward` returns, so rows that stay are hidden from it by a hook, and clipping is
DeepSpeed's own.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from accelerate import Accelerator

    from train_encoder.settings import TrainConfig

MOMENTS = ("exp_avg", "exp_avg_sq")


def is_wanted() -> bool:
    """Whether the launcher was given a DeepSpeed config."""
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true"


def check_installed() -> None:
    """Raise ValueError where the launcher was given DeepSpeed and it is not there."""
    if importlib.util.find_spec("deepspeed") is None:
        raise ValueError(
            "the launcher was given DeepSpeed, which is not installed; pip install deepspeed, or use ddp.yaml."
        )


def check_stage(accelerator: Accelerator) -> None:
    """Raise ValueError for a stage that shards the weights too: before transformers loads them, in shards then."""
    stage = accelerator.state.deepspeed_plugin.zero_stage
    if stage > 2:
        raise ValueError(f"zero_stage is {stage}, stages up to 2 are supported; set it to 2, or use fsdp2.yaml.")


def prepare_zero(
    accelerator: Accelerator, towers: nn.Module, optimizer: torch.optim.Optimizer, config: TrainConfig
) -> tuple[nn.Module, Any]:
    """DeepSpeed's engine around `towers`, and its optimizer."""
    accelerator.state.deepspeed_plugin.deepspeed_config |= {
        "train_micro_batch_size_per_gpu": config.train_batch_size,
        "gradient_accumulation_steps": 1,  # chunks are counted in `zero_backward`
        "gradient_clipping": config.max_grad_norm,
        "steps_per_print": float("inf"),
    }
    return accelerator.prepare(towers, optimizer)


def widen_temperature(model: nn.Module) -> None:
    """Make the temperature a vector of one: DeepSpeed sends weights to the other processes as bytes, and has no bytes
    of a scalar."""
    model.logit_scale = nn.Parameter(model.logit_scale.detach().reshape(1))


def narrow_temperature(model: nn.Module) -> None:
    """Give it the shape back that transformers has: CLIP's is a scalar, SigLIP's a vector of one."""
    with torch.device("meta"):
        shape = type(model)(model.config).logit_scale.shape
    model.logit_scale = nn.Parameter(model.logit_scale.detach().reshape(shape))


def zero_backward(engine: Any, loss: Tensor, *, last: bool) -> None:
    """Add the gradients of `loss`; the `last` of a step's are followed by `engine.step()`."""
    engine.set_gradient_accumulation_boundary(last)
    engine.backward(loss)


def hide_rows(table: nn.Parameter, rows: int) -> None:
    """Let no gradient reach the first `rows` of `table`, so that clipping does not see them."""

    def hide(gradient: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(gradient[:rows]), gradient[rows:]])

    table.register_hook(hide)


def write_through(parameters: Iterable[nn.Parameter]) -> None:
    """Make the copy that AdamW changes equal to weights that were changed by hand."""
    from deepspeed.utils import safe_set_full_fp32_param

    for parameter in parameters:
        safe_set_full_fp32_param(parameter, parameter.detach())


def read_optimizer(towers: nn.Module, optimizer: Any, *, keep: bool) -> dict[str, Any]:
    """AdamW's whole state by the parameters' names, empty without `keep`; all processes must call it."""
    from deepspeed.utils import safe_get_full_optimizer_state

    found: dict[str, Any] = {"step": int(_state_of(optimizer)["step"])} | {moment: {} for moment in MOMENTS}
    for name, parameter in _trained(towers):
        for moment in MOMENTS:
            whole = safe_get_full_optimizer_state(parameter, moment)
            if keep:
                found[moment][name] = whole.cpu()
    return found


def load_optimizer(towers: nn.Module, optimizer: Any, saved: dict[str, Any]) -> None:
    """Put back what `read_optimizer` gave, after the weights."""
    from deepspeed.utils import safe_set_full_optimizer_state

    zero = _zero_of(optimizer)
    for group in zero.optimizer.param_groups:
        (flat,) = group["params"]
        step = torch.tensor(float(saved["step"]), device=flat.device)
        zero.optimizer.state[flat] = {"step": step} | {moment: torch.zeros_like(flat) for moment in MOMENTS}
    zero._lazy_init_hp_params_optimizer_state()  # what DeepSpeed does behind its first step: names for parts of `flat`
    for name, parameter in _trained(towers):
        for moment in MOMENTS:
            safe_set_full_optimizer_state(parameter, saved[moment][name].to(parameter.device), moment)
    write_through(parameter for _, parameter in _trained(towers))


def _trained(towers: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in towers.named_parameters() if parameter.requires_grad]


def _zero_of(optimizer: Any) -> Any:
    """DeepSpeed's optimizer inside accelerate's."""
    return getattr(optimizer, "optimizer", optimizer)


def _state_of(optimizer: Any) -> dict[str, Any]:
    adamw = _zero_of(optimizer).optimizer
    return adamw.state[adamw.param_groups[0]["params"][0]]
