"""A model that reads pictures and writes text (`AutoModelForImageTextToText`): yes or no as its next token.

With a chat template the question is a user's message; without one it follows the picture as plain text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

_YES, _NO = ("yes", "Yes", "YES"), ("no", "No", "NO")


@dataclasses.dataclass(frozen=True)
class ChatModel:
    """Model and processor of one folder; `yes` and `no` are the tokens that begin those answers."""

    model: PreTrainedModel
    processor: ProcessorMixin
    yes: tuple[int, ...]
    no: tuple[int, ...]

    @classmethod
    def of(cls, model: PreTrainedModel, processor: ProcessorMixin, *, source: str) -> ChatModel:
        """Pad in front, so that the answer follows the question; ValueError where the tokenizer knows no yes."""
        tokenizer = processor.tokenizer
        tokenizer.padding_side = "left"
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        yes, no = (answer_tokens(tokenizer, words) for words in (_YES, _NO))
        if not yes or not no or set(yes) & set(no):
            raise ValueError(
                f"the tokenizer of {source} has no token of its own for yes and for no; give another model."
            )
        return cls(model, processor, yes, no)

    @property
    def kind(self) -> str:
        return type(self.model).__name__

    @torch.inference_mode()
    def yes_and_no(self, image: Image.Image, questions: Sequence[str]) -> Float[Tensor, "questions 2"]:
        """Log probabilities of yes and no as the first token of each answer."""
        inputs = self._inputs(image, [self._without_control_tokens(question) for question in questions])
        inputs = inputs.to(self.model.device)
        floating = {key: value.to(self.model.dtype) for key, value in inputs.items() if _is_floating(value)}
        output = self.model.generate(
            **{**inputs, **floating}, max_new_tokens=1, do_sample=False, num_beams=1, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        logs = output.logits[0].float().log_softmax(dim=-1)
        return torch.stack([logs[:, list(ids)].logsumexp(dim=-1) for ids in (self.yes, self.no)], dim=1).cpu()

    def _inputs(self, image: Image.Image, questions: list[str]) -> Any:
        if getattr(self.processor, "chat_template", None):
            chats = [
                [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": question}]}]
                for question in questions
            ]
            return self.processor.apply_chat_template(
                chats,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
                processor_kwargs={"padding": True},
            )
        picture = getattr(self.processor, "image_token", None)
        lead = f"{picture}\n" if isinstance(picture, str) else ""
        texts = [f"{lead}Question: {question} Answer:" for question in questions]
        return self.processor(text=texts, images=[[image]] * len(texts), padding=True, return_tensors="pt")

    def _without_control_tokens(self, question: str) -> str:
        """The question without what its writer could end the message or begin another picture with."""
        tokenizer = self.processor.tokenizer
        for token in (*tokenizer.all_special_tokens, getattr(self.processor, "image_token", None)):
            if isinstance(token, str) and token.strip():
                question = question.replace(token, " ")
        return question


def answer_tokens(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> tuple[int, ...]:
    """The ids of all single tokens that write one of `words`, with and without white space in front."""
    found = []
    for form in (form for word in words for form in (word, f" {word}")):
        ids = tokenizer.encode(form, add_special_tokens=False)
        if len(ids) == 1 and ids[0] != tokenizer.unk_token_id:
            found.append(ids[0])
    return tuple(dict.fromkeys(found))


def _is_floating(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
