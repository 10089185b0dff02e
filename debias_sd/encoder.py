"""TextEncoder: a CLIP text model and its tokenizer, always together.

A pair that does not belong together fails late or never: a longer encoder with a 77-token tokenizer stays at 77
without a word, and the other way round raises deep inside transformers. Worked number: an encoder of 77 positions
becomes one of 20 + 57 * 4 = 248 by `stretch` (Long-CLIP, arXiv 2403.15378, without training).
"""

import copy
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import (
    CLIPModel,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    PreTrainedTokenizerBase,
    SiglipModel,
    SiglipTextModel,
)

from debias_sd.encoder_folder import (
    SECOND,
    check_kind,
    find_encoder_folder,
    read_known_words,
    read_provenance,
    read_tokenizer,
    replace_folder,
    write_json,
)
from debias_sd.encoder_weights import PREFIX, PROJECTION, read_projection, read_text_model
from debias_sd.positions import FACTOR, KEEP, stretch_positions
from debias_sd.text import count_of
from debias_sd.tokens import copy_tokenizer, spell_out_special_tokens, tokenize, unknown_words

Model = TypeVar("Model")


class TextEmbedding(NamedTuple):
    """What an encoder makes of a batch of texts."""

    hidden: Float[Tensor, "batch positions width"]
    pooled: Float[Tensor, "batch width"]


def uncompiled(model: Model) -> Model:
    """Return the model that `torch.compile` wrapped, or `model`."""
    return getattr(model, "_orig_mod", model)


def text_tower(model: nn.Module) -> CLIPTextModel | SiglipTextModel:
    """Return the part of a CLIP or SigLIP model that reads text; a `CLIPTextModel` is that part."""
    bare: Any = uncompiled(model)
    return bare if isinstance(bare, CLIPTextModel) else bare.text_model


def stretch_encoder(model: Model, *, keep: int = KEEP, factor: int = FACTOR) -> Model:
    """Return a copy of `model` with text positions from `keep` on `factor` times finer.

    The input is not changed. The tokenizer must follow: `TextEncoder.stretch` does both.
    """
    if not isinstance(uncompiled(model), CLIPModel | CLIPTextModel | CLIPTextModelWithProjection | SiglipModel):
        raise ValueError(
            f"model is of type {type(model).__name__} but must be a CLIPTextModel or a CLIPModel, with or without "
            "projection; a pipeline is lengthened by with_text_encoder(pipe, 'stretched')."
        )
    stretched: Any = copy.deepcopy(model)
    stretch_in_place(stretched, keep=keep, factor=factor)
    return stretched


def stretch_in_place(model: nn.Module, *, keep: int = KEEP, factor: int = FACTOR) -> None:
    """Give `model` itself the longer position table of `stretch_encoder`, without a second copy of its weights."""
    tower = text_tower(model)
    embeddings = tower.embeddings
    with torch.no_grad():
        table = stretch_positions(embeddings.position_embedding.weight, keep=keep, factor=factor)
    embeddings.position_embedding = nn.Embedding.from_pretrained(table, freeze=False)
    embeddings.register_buffer("position_ids", torch.arange(len(table), device=table.device)[None], persistent=False)
    # A model of two towers keeps the text part's config once more inside its own.
    whole: Any = model.config
    for config in (tower.config, getattr(whole, "text_config", whole)):
        config.max_position_embeddings = len(table)


@dataclass(frozen=True, eq=False)
class TextEncoder:
    """A text model and its tokenizer; `known_words` are the only words it was trained on, None means no such list.

    `projection`, [projection width, width], takes the pooled vector into the space that images share; it is None in a
    folder that has only the text model. SDXL and Stable Diffusion 3 condition on the projected vector.
    """

    model: CLIPTextModel
    tokenizer: PreTrainedTokenizerBase
    known_words: frozenset[str] | None = None
    provenance: dict[str, object] = field(default_factory=dict)
    projection: Tensor | None = None
    second: "TextEncoder | None" = None  # for the pipeline's second slot, of a folder that was lengthened for both

    @classmethod
    def load(
        cls, source: str | Path, *, subfolder: str | None = None, variant: str | None = None, **hub: object
    ) -> "TextEncoder":
        """Load an embedded name (base, long-clip, debias), an encoder or `CLIPModel` folder, or a hub id, checked.

        `subfolder` is the encoder's folder inside `source`, `variant` that of its weights (fp16) where the folder has
        it; `hub` are the hub's own: `token`, `revision`, `cache_dir`, `local_files_only`, `force_download`.
        Weights keep their dtype, on the CPU. Raises ValueError with one sentence for every fault.
        """
        folder = find_encoder_folder(source, subfolder=subfolder, **hub)
        check_kind(folder)  # first: the tokenizer of another family would be called damaged
        tokenizer = read_tokenizer(folder)
        encoder = cls(
            model=read_text_model(folder, tokenizer, variant),
            tokenizer=tokenizer,
            known_words=read_known_words(folder),
            provenance=read_provenance(folder),
            projection=read_projection(folder, variant),
            second=cls.load(folder / SECOND) if (folder / SECOND / "config.json").is_file() else None,
        )
        encoder.check()
        return encoder

    @property
    def positions(self) -> int:
        """Tokens that the model can read, start and end token counted: 77 or 248."""
        return self.model.embeddings.position_embedding.num_embeddings

    @property
    def width(self) -> int:
        """Size of one hidden state; a UNet has it as its `cross_attention_dim`."""
        return self.model.config.hidden_size

    @property
    def layers(self) -> int:
        """Layers of the model: 12 of CLIP ViT-L/14."""
        return self.model.config.num_hidden_layers

    def check(self) -> None:
        """Raise ValueError, naming both sides, when model and tokenizer do not belong together."""
        config, tokenizer = self.model.config, self.tokenizer
        vocabulary = self.model.embeddings.token_embedding.num_embeddings
        if len(tokenizer) != vocabulary:
            raise ValueError(
                f"the tokenizer has {count_of(len(tokenizer), 'token')} and its encoder {vocabulary:,}; load "
                "both from one folder."
            )
        if not tokenizer.model_max_length == self.positions == config.max_position_embeddings:
            raise ValueError(
                f"the tokenizer reads {tokenizer.model_max_length} tokens, its encoder has {self.positions} positions "
                f"(config.json: {config.max_position_embeddings}); make all three equal, or load both from one folder."
            )
        if config.eos_token_id != tokenizer.eos_token_id:
            raise ValueError(
                f"the tokenizer ends a text with id {tokenizer.eos_token_id} and its encoder pools at eos_token_id "
                f"{config.eos_token_id}; write the tokenizer's id into the config, or load with load_encoder()."
            )

    def stretch(self, *, keep: int = KEEP, factor: int = FACTOR) -> "TextEncoder":
        """Return a longer copy, 77 to 248 positions by default; the tokenizer follows. No training."""
        model = stretch_encoder(self.model, keep=keep, factor=factor)
        tokenizer = copy_tokenizer(self.tokenizer)
        tokenizer.model_max_length = model.config.max_position_embeddings
        story = self.provenance | {"stretched": {"from": self.positions, "keep": keep, "factor": factor}}
        return replace(self, model=model, tokenizer=tokenizer, provenance=story)

    def to(self, *, device: torch.device, dtype: torch.dtype) -> "TextEncoder":
        """Return this encoder when it is already there, otherwise a copy that is."""
        if self.model.device == device and self.model.dtype == dtype:
            return self
        model: Any = copy.deepcopy(self.model)
        model.to(device=device, dtype=dtype)
        projection = self.projection if self.projection is None else self.projection.to(device=device, dtype=dtype)
        return replace(self, model=model, projection=projection)

    @torch.no_grad()
    def embed(self, texts: list[str]) -> TextEmbedding:
        """Return hidden states after the final norm and pooled vectors; text past the last position is cut."""
        ids = tokenize(self.tokenizer, texts, length=self.positions, pad_id=self.tokenizer.pad_token_id)
        output = self.model(ids.to(self.model.device))
        return TextEmbedding(hidden=output.last_hidden_state, pooled=output.pooler_output)

    def unknown_words(self, prompt: str) -> tuple[str, ...]:
        """Return the words of `prompt` that this encoder was never trained on; none when it has no such list."""
        return unknown_words(prompt, self.known_words)

    def save(self, folder: str | Path) -> None:
        """Write the encoder folder in one step; one that is there is replaced only when all is written."""
        self.check()
        replace_folder(Path(folder), self._write)

    def _write(self, folder: Path) -> None:
        config = copy.deepcopy(self.model.config)
        config.architectures = ["CLIPTextModel"]
        config.dtype = self.model.dtype
        state = {PREFIX + name: tensor.contiguous() for name, tensor in self.model.state_dict().items()}
        if self.projection is not None:
            config.architectures = ["CLIPTextModelWithProjection"]
            config.projection_dim = len(self.projection)
            state[PROJECTION] = self.projection.contiguous()
        config.save_pretrained(folder)
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        tokenizer = copy_tokenizer(self.tokenizer)
        spell_out_special_tokens(tokenizer)  # for whoever loads the folder by stock transformers: pads may be "!"
        tokenizer.save_pretrained(folder)
        versions = {name: metadata.version(name) for name in ("debias-sd", "torch", "transformers")}
        write_json(folder / "provenance.json", self.provenance | {"saved_with": versions})
        if self.known_words is not None:
            write_json(folder / "known_words.json", sorted(self.known_words))


def load_encoder(
    source: str | Path, *, subfolder: str | None = None, variant: str | None = None, **hub: object
) -> TextEncoder:
    """Load an encoder: see `TextEncoder.load`."""
    return TextEncoder.load(source, subfolder=subfolder, variant=variant, **hub)
