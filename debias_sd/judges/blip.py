"""BLIP for visual question answering: how likely it is to write `yes`, and `no`, to the end of the answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from transformers import BlipForQuestionAnswering, BlipProcessor

_ANSWERS = ("yes", "no")


@dataclasses.dataclass(frozen=True)
class BlipModel:
    """A `BlipForQuestionAnswering` folder. It was trained on bare questions: none says how to answer."""

    model: BlipForQuestionAnswering
    processor: BlipProcessor
    kind: str = "BlipForQuestionAnswering"

    @torch.inference_mode()
    def yes_and_no(self, image: Image.Image, questions: Sequence[str]) -> Float[Tensor, "questions 2"]:
        """Log likelihood of both answers; the picture is encoded once."""
        device, text = self.model.device, self.model.config.text_config
        pixels = self.processor.image_processor(images=image, return_tensors="pt")["pixel_values"]
        seen = self.model.vision_model(pixel_values=pixels.to(device, self.model.dtype)).last_hidden_state
        seen = seen.expand(len(questions), -1, -1)
        options = {"padding": True, "truncation": True, "max_length": text.max_position_embeddings}
        asked = self.processor.tokenizer(
            [question.lower() for question in questions], return_tensors="pt", return_token_type_ids=False, **options
        ).to(device)
        read = self.model.text_encoder(
            input_ids=asked.input_ids,
            attention_mask=asked.attention_mask,
            encoder_hidden_states=seen,
            encoder_attention_mask=torch.ones(seen.shape[:2], dtype=torch.long, device=device),
        ).last_hidden_state
        return torch.stack([self._log_of(word, read, asked.attention_mask) for word in _ANSWERS], dim=1).cpu()

    def _log_of(self, word: str, read: Tensor, mask: Tensor) -> Float[Tensor, " questions"]:
        """Sum over the answer's tokens and the separator that ends it, as `generate` writes them."""
        text = self.model.config.text_config
        ids = self.processor.tokenizer.encode(word, add_special_tokens=False)
        row = torch.tensor([self.model.decoder_start_token_id, *ids, text.sep_token_id], device=read.device)
        rows = row.expand(len(read), -1)
        logits = self.model.text_decoder(
            input_ids=rows[:, :-1], encoder_hidden_states=read, encoder_attention_mask=mask, use_cache=False
        ).logits
        logs = logits.float().log_softmax(dim=-1)
        return logs.gather(2, rows[:, 1:, None]).sum(dim=(1, 2))
