"""Learnt tokens (textual inversions) in a text: where they stand, whatever their case, and all vectors of each.

diffusers' own `maybe_convert_prompt` (0.42) looks a token up as the tokenizer spells it, in small letters, so it finds
none of a token with capitals but the first vector; and both it and the tokenizer find a token `mycat` in `mycategory`.
Here a token stands alone: where it begins or ends with a letter, digit or "_", none of these is next to it there.

Worked number: `EasyNegative` of 3 vectors is the added tokens EasyNegative, EasyNegative_1, EasyNegative_2; a text has
all three where any case of the first is typed, or all three are.
"""

import json
import re
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

_PLAIN: "WeakKeyDictionary[PreTrainedTokenizerBase, tuple[tuple[str, ...], Tokenizer]]" = WeakKeyDictionary()


class Found(NamedTuple):
    """A learnt token in a text: its characters from `start` to `end`, and the ids of its vectors."""

    name: str
    start: int
    end: int
    ids: tuple[int, ...]


class LearntTokens:
    """The learnt tokens of one tokenizer, each with its vectors."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        special = set(tokenizer.all_special_tokens)
        self.names = {name: one for name, one in tokenizer.get_added_vocab().items() if name not in special}
        # Of names that differ only in their case, the tokenizer itself knows one.
        self._by_case = {name.lower(): name for name in reversed(list(self.names))}

    def find(self, text: str, *, whole: bool) -> Iterator[Found]:
        """Yield the learnt tokens of `text` in order; `whole` gives each all its vectors, else what is typed of it."""
        for match in self._pattern.finditer(text) if self.names else ():
            typed = match[match.lastindex]
            name = typed if typed in self.names else self._by_case[typed.lower()]
            vectors = self._vectors(name)
            ids = vectors if whole or len(match[0]) > len(typed) else vectors[:1]
            yield Found(name, match.start(), match.end(), tuple(self.names[one] for one in ids))

    def plain(self) -> Tokenizer:
        """Return the tokenizer without its learnt tokens: what reads `mycategory` as a word."""
        names, made = _PLAIN.get(self._tokenizer, (None, None))
        if names != tuple(self.names):
            content = json.loads(self._tokenizer.backend_tokenizer.to_str())
            content |= {"truncation": None, "padding": None}
            content["added_tokens"] = [one for one in content["added_tokens"] if one["content"] not in self.names]
            made = Tokenizer.from_str(json.dumps(content))
            made.encode_special_tokens = True
            _PLAIN[self._tokenizer] = (tuple(self.names), made)
        return made

    def _vectors(self, name: str) -> list[str]:
        found = [name]
        while f"{name}_{len(found)}" in self.names:
            found.append(f"{name}_{len(found)}")
        return found

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """One group a name, the longest first, each with or without its later vectors typed after it."""
        parts = []
        for name in sorted(self.names, key=len, reverse=True):
            later = "".join(rf"\s+{re.escape(one)}" for one in self._vectors(name)[1:])
            before, after = (r"\b" if re.match(r"\w", one) else "" for one in (name[0], name[-1]))
            parts.append(f"{before}({re.escape(name)})(?:{later})?{after}")
        first = "".join(sorted({re.escape(name[0]) for name in self.names}))  # hundreds of names are tried only there
        return re.compile(f"(?=[{first}])(?:{'|'.join(parts)})", re.IGNORECASE)
