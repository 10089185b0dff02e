"""What every test run shares: no network, the versions in the header, and markers that skip where they cannot run."""

import gc
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

# Before huggingface_hub is imported: a hub id given by mistake must fail at once, not retry for minutes.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["TOKENIZERS_PARALLELISM"] = "false"


@pytest.fixture(autouse=True)
def _logging_as_it_begins() -> None:
    """Commands silence the libraries for their own process, which here is that of the next tests too."""
    for name in ("diffusers", "transformers", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.WARNING)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Several threads add gradients up in any order: the same training twice has other bits then."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def fresh_accelerator(one_thread: None) -> Iterator[None]:
    """Accelerate keeps one state per process; each test is a run of its own, on one thread."""
    from accelerate.state import AcceleratorState  # not for every test: it takes seconds

    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`debias-sd WORDS` in this process; the exit code, what it said and what it complained of."""
    from debias_sd import cli

    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = cli.main([str(word) for word in words])
        except SystemExit as end:
            code = end.code
        return (code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the trainer's tests start from: a tiny CLIP of the shapes world, trained for two steps."""
    from accelerate.state import AcceleratorState

    from tests.train_tiny import train_tiny

    AcceleratorState._reset_state(reset_partial_state=True)
    folder = train_tiny(tmp_path_factory.mktemp("base") / "base", max_train_steps=2)
    AcceleratorState._reset_state(reset_partial_state=True)
    return folder


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole CLIP with the shapes of the real ones, to be exported; tests that change it take `copy`."""
    from tests.tiny_clip import make_clip

    return make_clip(tmp_path_factory.mktemp("clip") / "encoder")


@pytest.fixture
def copy(clip: Path, tmp_path: Path) -> Path:
    return shutil.copytree(clip, tmp_path / "copy")


# What takes longest, longest first: begun last, one of these would leave the other workers idle at the end.
LONGEST = (
    "readme", "cases_pipelines", "app_server", "app_families", "cli_evaluate_pictures", "report", "train_unet_resume",
    "app_strangers", "pipeline_saved", "cli_guidance", "single_file", "train_unet_run", "encode_prompt_running",
    "train_siglip", "prompts_document", "encoder_fit", "reading", "cli", "checkpoint_layouts",
)  # fmt: skip


def pytest_report_header() -> str:
    names = ("torch", "transformers", "diffusers", "accelerate", "safetensors", "numpy")
    return "versions: " + ", ".join(f"{name} {metadata.version(name)}" for name in names)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip `gpu` tests without a CUDA device and `weights` tests without a folder of checkpoints; longest files first.

    `make test` keeps this order, of which each worker takes the next whole file.
    """
    places = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))
    if any(item.get_closest_marker("gpu") for item in items):
        import torch

        if not torch.cuda.is_available():
            _skip(items, "gpu", "no CUDA device")
    if not os.environ.get("DEBIAS_SD_CHECKPOINTS"):
        _skip(items, "weights", "DEBIAS_SD_CHECKPOINTS names no folder of checkpoints")


def pytest_collection_finish() -> None:
    """What all imports have made stays: a full collection, which some commands ask for, need not walk through it."""
    gc.collect()
    gc.freeze()


def _skip(items: list[pytest.Item], marker: str, reason: str) -> None:
    for item in items:
        if item.get_closest_marker(marker) is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
