"""Where a sentence ends, as a reader of many scripts sees it. Strings only, linear in the length of a text.

No dependency splits sentences, and the libraries for it are either large, with models to download (spaCy, NLTK), or
of one rule set a language (pySBD). Captions mix languages, signs that are read out and missing spaces.

Captions are lists of sentences here, for the short caption of DeBias-CLIP and the probes that move or drop sentences.
Source: arXiv 2602.22419, section on sentence-level augmentation. The paper names no
sentence splitter and no join string: here it is `split_sentences`, and sentences are joined by one space.
"""

import random
import re
from collections.abc import Iterator, Sequence

# Stops that need no space after them: Chinese and Japanese, Hindi's danda, Arabic, Urdu, Armenian, Ethiopic, Burmese,
# Khmer. Western stops count before white space (so "3.5" and "a.jpg" are whole), or where the space was forgotten
# between a small and a capital letter. A line break counts by itself. Quantifiers never give back: time stays linear.
_FULL = "。！？｡।॥۔؟։።፧။។"
_CLOSING = """["'”’»)\\]}*\U0001f000-\U0001faff\u2600-\u27bf\ufe0f\u200d]*+"""
_BREAKS = "\n\r\v\f\x85\u2028\u2029"
_STOP = re.compile(
    rf"""(?P<full>[{_FULL}][{_FULL}!?…]*+)(?P<quoted>[」』”’）》】"']*+)\s*+"""
    rf"""|(?<![.!?…])(?<!\.\ )(?P<stop>\.(?:[ \u00a0]\.)++|[.!?…]++)(?P<closing>{_CLOSING})(?P<gap>\s++|$)"""
    r"""|(?<=[^\W_])(?P<tight>[.!?…]++)[”’»)\]]*+(?=[^\W\d_a-z])"""
    rf"""|(?P<line>[{_BREAKS}]\s*+)"""
)
_MARK = re.compile(f"[{_FULL}.!?…{_BREAKS}]")  # what every match of _STOP starts with: found ten times faster
_BREAK = re.compile(f"\r\n|[{_BREAKS}]")
_ACRONYM = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}")  # "U.S", "J.R.R", "Ph.D"
_FIRST_WORD = re.compile(r"\W*([\w'’]*)")
_WORD = re.compile(r"[^\s\"'“”‘’«»()\[\]{}]+$")
_ROMAN = re.compile(r"[IVXLCDM]+|[A-Z]")
_NUMBERED = re.compile(r"\b(?:vol|figs?|ch|pl|op|part|chapter|volume|figure|plate)\.?$", re.IGNORECASE)
_LOOK = 80  # characters each way decide; more would make long texts quadratic

# Always followed by the rest of their sentence.
_TITLES = frozenset(
    "dr mr mrs ms mx prof rev gen col capt lt sgt maj pvt cpl cmdr adm hon gov sen rep pres messrs mme mlle sra dra "
    "vs e.g i.e cf approx bzw".split()
)
# Followed by a number where they are abbreviations at all ("no. 5"), the second also by a letter ("Fig. A", "Vol. II").
_BEFORE_NUMBERS = frozenset("no nos nr p pp ca eq jan feb apr aug sept oct nov dec".split())
_BEFORE_LETTERS = frozenset("fig figs vol ch pl op".split())
# May end a sentence: they do before an upper-case letter, and not before a lower-case one.
_MAY_END = frozenset("etc inc ltd co corp al a.m p.m dept est".split())
# The same, but abbreviations only after a number ("12 in. wide").
_UNITS = frozenset("in ft yd mi mm cm m km oz lb lbs kg g sq sec min hr hrs".split())
# Names follow these ("St. Mary", "King Jr. Memorial") unless a word that opens sentences does ("on Main St. The shop").
_BEFORE_NAMES = frozenset("st mt ft ave blvd rd jr sr".split())
_OPENERS = frozenset(
    "the a an this that these those there it its he his she her they their we our you your in on at to above below "
    "behind beside near next under over by with from for as and but or one two three several some many all both "
    "another other each every overall while when where then now here no after before between".split()
)
# What goes on after "6 a.m.".
_OF_HOURS = frozenset(
    "monday tuesday wednesday thursday friday saturday sunday january february march april may june july august "
    "september october november december est edt cst cdt mst mdt pst pdt gmt utc cet eastern central mountain "
    "pacific".split()
)
_COMPANY = frozenset("inc corp ltd llc co plc gmbh".split())
_SHOUTED = frozenset("yahoo jeopardy".split())  # names with a "!" of their own
_DOMAINS = frozenset("net com org js io".split())
# No sentence ends with these: a line that does was only wrapped.
_NEVER_LAST = frozenset(
    "the a an of in on at to by with from for as and but or near under behind beside is are".split()
)


def split_sentences(text: str) -> list[str]:
    """Return the sentences of `text`, white space inside them folded to single spaces; nothing else is changed.

    >>> split_sentences("Dr. A. Smith, 3.5 m tall, waves. Rain falls!")
    ['Dr. A. Smith, 3.5 m tall, waves.', 'Rain falls!']
    >>> split_sentences('"Stop!" says the sign. A man (tall) waits... Why?')
    ['"Stop!" says the sign.', 'A man (tall) waits...', 'Why?']
    >>> split_sentences(" ")
    []
    """
    sentences: list[str] = []
    start = 0
    for match in _stops(text):
        before = text[max(start, match.start() - _LOOK) : match.start()].strip()
        if _ends(match, before, text[match.end() : match.end() + _LOOK]):
            sentences.append(" ".join(text[start : match.end()].split()))
            start = match.end()
    sentences.append(" ".join(text[start:].split()))
    return [sentence for sentence in sentences if sentence]


def _stops(text: str) -> Iterator[re.Match[str]]:
    """The matches of `_STOP`, as its `finditer` gives them."""
    mark = _MARK.search(text)
    while mark is not None:
        found = _STOP.match(text, mark.start())
        if found is not None:
            yield found
        mark = _MARK.search(text, mark.end() if found is None else found.end())


def _ends(match: re.Match[str], before: str, after: str) -> bool:
    """Say whether a stop or line break ends the sentence `before`, where `after` is the text after it."""
    if match["full"] is not None:
        return not (match["quoted"] and after.startswith(("と", "って")))  # 「行こう。」と言った
    if match["tight"] is not None:
        return _ends_without_space(before, match["tight"], after)
    breaks = len(_BREAK.findall(match["line"] or match["gap"]))
    if breaks > 1 or not after:
        return True
    if match["line"] is not None:
        return not _is_wrapped(before, after)
    return _ends_sentence(before, match["stop"], match["closing"], after, at_break=breaks == 1)


def _ends_sentence(before: str, stop: str, closing: str, after: str, *, at_break: bool) -> bool:
    """Say whether `stop` ends the sentence `before`; `at_break`: a line ends with it, and not a paragraph."""
    follows_lower = after[0].islower()
    if closing and follows_lower:  # "Stop!" she says.
        return False
    found = _WORD.search(before)
    word = found.group() if found else ""
    following = _FIRST_WORD.match(after).group(1)
    if stop == "!" and (following.lower() in _COMPANY or word.lower() in _SHOUTED):  # Yahoo! Inc.
        return following.lower() in _OPENERS
    if stop != ".":
        return not (follows_lower and stop[0] in ".…")  # an ellipsis in the middle of a sentence
    if not word:
        return True
    head = before[: len(before) - len(word)].rstrip(" (\"'“‘«[")
    if word.isdigit() and not head:  # "1. A cat" of a numbered list
        return False
    if at_break and _ACRONYM.fullmatch(word) and not follows_lower:
        return True
    return not _is_abbreviation(word, head=head, following=following, quoted=bool(closing))


def _is_abbreviation(word: str, *, head: str, following: str, quoted: bool = False) -> bool:
    """Say whether the period after `word` belongs to it, given the text before and the word after."""
    lower, next_word = word.lower(), following.lower()
    opens = next_word in _OPENERS and following[:1].isupper()
    if lower in _TITLES:
        return True
    if lower in _BEFORE_NUMBERS | _BEFORE_LETTERS and following[:1].isdigit():
        return True
    if lower in _BEFORE_LETTERS and _ROMAN.fullmatch(following):
        return following not in "AI" or word[0].isupper()  # "Fig. A", not "a ripe fig. A bird"
    if lower in _MAY_END or (lower in _UNITS and head[-1:].isdigit()):
        is_hour = lower in ("a.m", "p.m") and next_word in _OF_HOURS
        return is_hour or following[:1].islower() or following[:1].isdigit()
    if lower in _BEFORE_NAMES and word[0].isupper():
        return not opens
    # "A. Smith", not "than I. Then", “B.” of a sign, "Fig. B."
    initial = len(word) == 1 and word.isupper() and word != "I" and not quoted and not _NUMBERED.search(head)
    acronym = "." in word and _ACRONYM.fullmatch(word) is not None
    return (initial or acronym) and not opens


def _ends_without_space(before: str, stop: str, after: str) -> bool:
    """Say whether a sentence ends where no space follows its stop: "black.There", not "example.com", "U.S.A."."""
    token, next_token = before.split()[-1], after.split(maxsplit=1)[0]
    if re.search(r"[./@\\_=]", token) or re.search(r"[/@\\_=]", next_token):  # an address, a file, code
        return False
    following = _FIRST_WORD.match(after).group(1)
    if not after[0].isupper() or after[1:2].isupper() or after[1:2] == "." or following.lower() in _DOMAINS:
        return False
    word = re.search(r"(?:[^\W\d_]+|\d+|)$", token).group()
    is_word = (len(word) > 1 and word.islower()) or (len(word) > 2 and word.isdigit())
    if word == before and stop[0] in "!?":  # "Yes!It is."
        return True
    return is_word and not _is_abbreviation(word, head="", following=following)


def _is_wrapped(before: str, after: str) -> bool:
    """Say whether a line break without a stop is only where the line was full: the sentence goes on after it."""
    if after[0].islower():
        return True
    words, following = before.split(), _FIRST_WORD.match(after).group(1)
    if not words or not following or not after[0].isalpha():
        return False
    last = words[-1]
    if last.lower() in _NEVER_LAST or last[-1] in ",;–—":
        return True
    # Inside a name: "a statue of Abraham | Lincoln stands". A heading and a list have no running words.
    line = _BREAK.split(after)[0]
    runs = any(word[0].islower() for word in words) and any(word[0].islower() for word in line.split())
    return runs and len(words) > 1 and last[0].isupper() and following.lower() not in _OPENERS


def join_sentences(sentences: Sequence[str]) -> str:
    """Return `sentences` as one text, one space between them."""
    return " ".join(sentences)


def without_summary(sentences: Sequence[str]) -> list[str]:
    """Return all sentences but the first; a single sentence stays."""
    return list(sentences[1:] or sentences)


def sample_sentences(sentences: Sequence[str], rng: random.Random) -> list[str]:
    """Return n of the sentences in random order, n uniform in 1 to all of them, each at most once."""
    if not sentences:
        return []
    return rng.sample(list(sentences), rng.randint(1, len(sentences)))


def first_only(text: str) -> str:
    """Return the first sentence of `text`: its summary, and Long-CLIP's short caption."""
    return join_sentences(split_sentences(text)[:1])
