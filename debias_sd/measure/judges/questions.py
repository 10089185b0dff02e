"""A sentence of a prompt as a question that is answered with yes or no.

`There is a red kite in the sky.` becomes `Does this image show a red kite in the sky? Answer yes or no.` What only
leads up to the content ("The image shows", "You can also see") is left out; a sentence with a verb of its own is asked
about as it stands, in quotation marks. Compare VQAScore (Lin et al., arXiv 2404.01291), which asks 'Does this figure
show "..."?' of every text.
"""

from __future__ import annotations

import re

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
    """Return the question about one sentence, with how to answer it behind; `answer` may be empty.

    >>> question_of("There is a red kite in the sky.")
    'Does this image show a red kite in the sky? Answer yes or no.'
    >>> question_of("A child runs.", answer="")
    'Does this image show "A child runs"?'
    """
    text = " ".join(sentence.split()).rstrip(_ENDS)
    lead = _LEADS.match(text)
    shown = text[lead.end() :] if lead else '"' + text.replace('"', "'") + '"'
    return f"Does this image show {shown}? {answer}".rstrip()
