"""Models that answer a question about a picture, as judges: how likely is yes against no?

score = P(yes) / (P(yes) + P(no)). For a model that writes text, P is the probability of its next token, summed over the
ways in which its tokenizer writes the word (Yes, yes, " yes", ...). For BLIP, which was trained to write short answers,
it is that of the whole answer. A model that would say something else altogether has not answered: such a sentence
counts as unjudged.

`There is a red kite in the sky.` becomes `Does this image show a red kite in the sky? Answer yes or no.` What only
leads up to the content ("The image shows", "You can also see") is left out; a sentence with a verb of its own is asked
about as it stands, in quotation marks. Compare VQAScore (Lin et al., arXiv 2404.01291), which asks 'Does this figure
show "..."?' of every text.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from transformers import (
    BlipForQuestionAnswering,
    BlipProcessor,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)

from debias_sd.measure.embedding import length_batches
from debias_sd.measure.judges import Thresholds, Verdict, unjudged

ANSWER = "Answer yes or no."
_LEADS = re.compile(
    r"^(?:also,\s+)?(?:"
    r"there (?:is|are)(?: also)?"
    r"|(?:this|the|an?) (?:image|picture|photo|photograph|scene|painting|illustration|close-up|view) (?:shows|depicts|"
    r"captures|features|of)"
    r"|(?:you|we|one) can (?:also )?(?:see|find)|(?:we|you) (?:also )?see"
    r")\s+",
    re.IGNORECASE,
)
_ENDS = " .!?…;:,"


def question_of(sentence: str, *, answer: str = ANSWER) -> str:
    """Return the question about one sentence, with how to answer it at the end; `answer` may be empty.

    >>> question_of("There is a red kite in the sky.")
    'Does this image show a red kite in the sky? Answer yes or no.'
    >>> question_of("A child runs.", answer="")
    'Does this image show "A child runs"?'
    """
    text = " ".join(sentence.split()).rstrip(_ENDS)
    lead = _LEADS.match(text)
    shown = text[lead.end() :] if lead else '"' + text.replace('"', "'") + '"'
    return f"Does this image show {shown}? {answer}".rstrip()


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


LEAST = 0.01  # P(yes) + P(no) below which the model has not answered
NO_ANSWER = "the model answers neither yes nor no"
NO_WORDS = "there is no word in it"


@runtime_checkable
class Answerer(Protocol):
    """A loaded model with what prepares its input; `kind` is its name in transformers."""

    kind: str

    def yes_and_no(self, image: Image.Image, questions: Sequence[str]) -> Float[Tensor, "questions 2"]:
        """Return log P(yes) and log P(no) of each question, float32 on the CPU."""
        ...


@dataclasses.dataclass(frozen=True)
class AnswerJudge:
    """Asks a model about every sentence, `batch` questions at a time."""

    answerer: Answerer
    source: str
    sha256: str
    thresholds: Thresholds = Thresholds()
    batch: int = 8
    answer: str = ANSWER
    meaning: str = "probability of yes against no to whether the picture shows the sentence"

    @property
    def name(self) -> str:
        return f"vqa:{self.source}"

    def judge(self, image: Image.Image, sentences: Sequence[str]) -> list[Verdict]:
        """Score every sentence; unjudged is one without a word, and one that the model gives no answer to."""
        image = image.convert("RGB")
        asked = [sentence for sentence in sentences if any(character.isalnum() for character in sentence)]
        questions = [question_of(sentence, answer=self.answer) for sentence in dict.fromkeys(asked)]
        logs = [
            self.answerer.yes_and_no(image, questions[at : at + self.batch])
            for at in range(0, len(questions), self.batch)
        ]
        rows = dict(zip(dict.fromkeys(asked), torch.cat(logs), strict=True)) if logs else {}
        return [
            self._verdict(sentence, rows[sentence]) if sentence in rows else unjudged(sentence, NO_WORDS)
            for sentence in sentences
        ]

    def _verdict(self, sentence: str, logs: Float[Tensor, " 2"]) -> Verdict:
        if not torch.isfinite(logs).all():
            raise ValueError(
                f"judge {self.name} gives NaN for {sentence!r}: numbers overflowed in the model; load it in float32 or "
                "bfloat16."
            )
        if float(logs.exp().sum()) < LEAST:
            return unjudged(sentence, NO_ANSWER)
        score = float(logs.softmax(dim=0)[0])
        return Verdict(sentence, score, self.thresholds.mark(score))

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.answerer.kind,
            "meaning": self.meaning,
            "source": self.source,
            "sha256": self.sha256,
            "question": question_of("SENTENCE", answer=self.answer),
            "thresholds": dataclasses.asdict(self.thresholds),
        }
