"""A number with its noun, as a sentence says it: 1 prompt, 2 prompts, 3,000 prompts."""


def count_of(number: int, noun: str) -> str:
    """Return `number` with `noun`, in the plural unless it is one; for nouns whose plural ends in "s".

    >>> count_of(1, "prompt"), count_of(0, "prompt"), count_of(3000, "late detail")
    ('1 prompt', '0 prompts', '3,000 late details')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
