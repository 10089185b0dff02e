"""Judges: what a judge is, what it says about one sentence in one picture, and how one is loaded.

They are the embedded world's checker, dual encoders, and models that answer questions; each is a file here.
`load_judge` takes `clip:FOLDER_OR_ID`, `vqa:FOLDER_OR_ID` or `checker` to a judge, with every fault named.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from PIL import Image

from debias_sd.text import count_of

if TYPE_CHECKING:
    import torch

DRAWN, MISSING, UNSURE = MARKS = ("drawn", "missing", "unsure")
NOT_READ, NOT_JUDGED = "not read", "not judged"
KINDS = ("clip", "vqa", "checker")
_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
_BLIP = "BlipForQuestionAnswering"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One sentence against one picture.

    `score`: 0..1, what it means is the judge's to state (`Judge.meaning`). `mark`: drawn, missing or unsure, by the
    judge's thresholds; of a judge that counts things also `1 of 2`, which is not drawn and not unsure. `reason`: why
    the sentence could not be judged, empty where it was; such a sentence has no score and the mark `not judged`, and
    reports count it apart. `found`: what is there instead, in words, where the judge can tell. `aspects`: shares of the
    sentence's things that are right in part, 0..1 by name.
    """

    sentence: str
    score: float | None
    mark: str
    reason: str = ""
    found: str = ""
    aspects: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def is_judged(self) -> bool:
        return not self.reason

    def read(self, *, first: int, window: int | None) -> Verdict:
        """The verdict for an encoder that reads `window` tokens, of a sentence whose first token is number `first`.

        What is missing and begins where only the end token has room, or later, was `not read`; None reads everything.
        """
        unread = self.mark == MISSING and window is not None and first >= window - 1
        return dataclasses.replace(self, mark=NOT_READ) if unread else self


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """Drawn from the score `drawn` on, missing below `missing`, unsure between; None: no score is ever enough.

    `source` says where they come from. The ones that a judge starts with are a guess and say so: see `calibration`.
    """

    drawn: float | None = 0.6
    missing: float | None = 0.4
    source: str = "not calibrated"

    def mark(self, score: float) -> str:
        """Return drawn, missing or unsure."""
        if self.drawn is not None and score >= self.drawn:
            return DRAWN
        return MISSING if self.missing is not None and score < self.missing else UNSURE


@runtime_checkable
class Judge(Protocol):
    """Says for each sentence whether a picture shows it."""

    name: str  # as reports and the app show it, with the model's name
    meaning: str  # one line: what the score is
    thresholds: Thresholds

    def judge(self, image: Image.Image, sentences: Sequence[str]) -> list[Verdict]:
        """A verdict for every sentence; ValueError with one sentence where the model gives no finite number."""
        ...

    def describe(self) -> dict[str, Any]:
        """What identifies the judge in a report: where its model lies, the SHA-256 of its weights, its settings."""
        ...


def unjudged(sentence: str, reason: str) -> Verdict:
    """The verdict on a sentence that cannot be judged."""
    return Verdict(sentence, None, NOT_JUDGED, reason)


def load_judge(
    spec: str,
    *,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    calibration: Sequence[str | Path] = (),
) -> Judge:
    """Load the judge that `spec` names.

    `clip:` a folder or hub id with both towers of CLIP or SigLIP, or an embedded name (in float32 always); `vqa:` one
    of `BlipForQuestionAnswering` or of any model of `AutoModelForImageTextToText`, in `dtype` (float32); `checker`:
    the embedded world's. `calibration`: reports of `debias-sd calibrate`, of which one may have its thresholds. Only
    safetensors are read, and no code of the model's.
    Raises ValueError with one sentence.
    """
    kind, separator, source = spec.partition(":")
    if spec == "checker":
        from debias_sd.measure.judges.checker import CheckerJudge

        return CheckerJudge()
    if kind not in KINDS[:2] or not separator or not source:
        raise ValueError(
            f"unknown judge {spec!r}; write clip:FOLDER_OR_ID, vqa:FOLDER_OR_ID or, for pictures of the embedded "
            "world, checker."
        )
    judge = _load_clip(source, device) if kind == "clip" else _load_answers(source, device, dtype)
    thresholds = _thresholds(judge, calibration)
    return judge if thresholds is None else dataclasses.replace(judge, thresholds=thresholds)


def _thresholds(judge: Judge, calibration: Sequence[str | Path]) -> Thresholds | None:
    from debias_sd.measure.judges.calibration import read_thresholds

    return read_thresholds(calibration, judge) if calibration else None


def source_name(source: str) -> str:
    """How a report names a folder: by its last two parts, for it is read on other machines."""
    path = Path(source).expanduser()
    return "/".join(path.resolve().parts[-2:]) if path.is_dir() else source


def _load_clip(source: str, device: str) -> Judge:
    from debias_sd.encoder_folder import EMBEDDED
    from debias_sd.measure.judges.clip import ClipJudge
    from debias_sd.measure.towers import load_towers

    name = source if source in EMBEDDED else source_name(source)
    return ClipJudge(load_towers(source, device=device, use="a judge"), name)


def _load_answers(source: str, device: str, dtype: torch.dtype | None) -> Judge:
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor, BlipForQuestionAnswering

    from debias_sd.encoder_folder import read_json
    from debias_sd.measure.judges.answers import AnswerJudge, BlipModel, ChatModel

    folder = _find(source)
    config = read_json(folder / "config.json")
    architectures = config.get("architectures") if isinstance(config, dict) else None
    is_blip = architectures == [_BLIP]
    if not is_blip and config.get("model_type") == "blip":
        raise ValueError(f"judge {source} is a BLIP that captions or ranks; give one that answers, a {_BLIP}.")
    loader = BlipForQuestionAnswering if is_blip else AutoModelForImageTextToText
    options = {"local_files_only": True, "dtype": dtype or torch.float32}
    model = _loaded(loader, folder, use_safetensors=True, **options).eval().to(device)
    processor = _loaded(AutoProcessor, folder, local_files_only=True)
    if not hasattr(processor, "tokenizer") or not hasattr(processor, "image_processor"):
        raise ValueError(f"folder {folder} lacks the processor of its model; copy its preprocessor files too.")
    name, digest = source_name(source), hash_weights(folder)
    if is_blip:
        return AnswerJudge(BlipModel(model, processor), name, digest, answer="")
    return AnswerJudge(ChatModel.of(model, processor, source=source), name, digest)


def _find(source: str) -> Path:
    """The local folder; of a hub id no pickle is downloaded."""
    from debias_sd.encoder_folder import download

    path = Path(source).expanduser()
    if not path.is_dir():
        path = download(source, _FILES, what="judge")
    if not list(path.glob("*.safetensors")):
        raise ValueError(f"folder {path} holds no safetensors, and pickles are not read; take another revision.")
    return path


def _loaded(loader: Any, folder: Path, **options: Any) -> Any:
    """`from_pretrained` with its faults as one sentence; missing tensors are one."""
    wants_report = "use_safetensors" in options
    try:
        loaded = loader.from_pretrained(folder, **options, **({"output_loading_info": True} if wants_report else {}))
    except ImportError as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"judge {folder} needs a package that is not installed ({reason}); install it.") from None
    except Exception as error:  # the Rust tokenizer raises bare Exception
        raise ValueError(
            f"judge {folder} cannot be loaded by {loader.__name__} ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:120]}); give the folder of a model that answers questions about pictures."
        ) from error
    if not wants_report:
        return loaded
    model, report = loaded
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise ValueError(
            f"the weights in {folder} lack {count_of(len(missing), 'tensor')}, {missing[0]} first; copy them again."
        )
    return model


def hash_weights(folder: Path) -> str:
    """SHA-256 over all safetensors of a folder, of one file that file's own."""
    from debias_sd.report import hash_file

    hashes = [hash_file(path) for path in sorted(folder.glob("*.safetensors"))]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()
