"""BLIP for visual question answering: how likely it is to write `yes`, and `no`, to the end of the answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from transformers import BlipForQuestionAnswering, BlipProcessor

from debias_sd.measure.features.embedding import length_batches

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
        pixels = self.processor.image_processor(images=image, return_tensors="pt")["pixel_values"]
        pixels = pixels.to(self.model.device, self.model.dtype)
        seen = self.model.vision_model(pixel_values=pixels).last_hidden_state
        limit = self.model.config.text_config.max_position_embeddings
        lower = [question.lower() for question in questions]
        ids = self.processor.tokenizer(lower, truncation=True, max_length=limit, verbose=False)["input_ids"]
        logs = torch.empty(len(questions), 2)
        # Of one length at a time: transformers (5.23) loses the mask of padded questions in BLIP's cross-attention.
        for places in length_batches([len(row) for row in ids], rows=len(ids)):
            batch = torch.tensor([ids[place] for place in places], device=self.model.device)
            read = self.model.text_encoder(
                input_ids=batch, encoder_hidden_states=seen.expand(len(batch), -1, -1)
            ).last_hidden_state
            logs[places] = torch.stack([self._log_of(word, read) for word in _ANSWERS], dim=1).cpu()
        return logs

    def _log_of(self, word: str, read: Tensor) -> Float[Tensor, " questions"]:
        """Sum over the answer's tokens and the separator that ends it, as `generate` writes them."""
        text = self.model.config.text_config
        ids = self.processor.tokenizer.encode(word, add_special_tokens=False)
        row = torch.tensor([self.model.decoder_start_token_id, *ids, text.sep_token_id], device=read.device)
        rows = row.expand(len(read), -1)
        logits = self.model.text_decoder(input_ids=rows[:, :-1], encoder_hidden_states=read, use_cache=False).logits
        logs = logits.float().log_softmax(dim=-1)
        return logs.gather(2, rows[:, 1:, None]).sum(dim=(1, 2))
