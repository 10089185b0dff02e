"""The attention of xformers in a UNet: why it cannot run, in one sentence."""

import importlib.util
from typing import Protocol

import torch


class Pipeline(Protocol):
    """A diffusers pipeline, as far as it is needed here."""

    def enable_xformers_memory_efficient_attention(self) -> None:
        """Set it in all models that have attention of diffusers' kind, after a try at its kernels."""


def check_xformers() -> None:
    """Raise ValueError when it is not installed, or there is no CUDA device: it has no kernels for anything else."""
    if importlib.util.find_spec("xformers") is None:
        raise ValueError("xformers is not installed; install it (pip install 'debias-sd[xformers]') or leave it out.")
    if not torch.cuda.is_available():
        raise ValueError("xformers needs a CUDA device and torch finds none here; leave xformers out.")


def use_xformers(pipe: Pipeline) -> None:
    """Let `pipe` use it; ValueError when it is built for another torch, as each of its releases is for one."""
    try:
        pipe.enable_xformers_memory_efficient_attention()
    except (ImportError, NotImplementedError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"xformers is installed and cannot run here ({type(error).__name__}), its releases are each for one "
            "version of torch; install the one for this torch, or leave xformers out (torch's own is as exact)."
        ) from error
