"""Weights and BREAK: what they mean, what is only text, and no prompt that costs time or raises."""

import random
import time

import pytest

from debias_sd.prompts.markup import LIMIT, Markup, Piece, parse_a1111, read_markup


def pieces(prompt: str) -> list[tuple[str, float]]:
    (part,) = parse_a1111(prompt).parts
    return [(piece.text, round(piece.weight, 4)) for piece in part]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a cat", [("a cat", 1.0)]),
        ("(cat)", [("cat", 1.1)]),
        ("((cat))", [("cat", 1.21)]),
        ("(((cat)))", [("cat", 1.331)]),
        ("[cat]", [("cat", 0.9091)]),
        ("[[cat]]", [("cat", 0.8264)]),
        ("([cat])", [("cat", 1.0)]),
        ("(cat:1.3)", [("cat", 1.3)]),
        ("(cat: 1.3 )", [("cat", 1.3)]),
        ("(cat:.5)", [("cat", 0.5)]),
        ("(cat:2.)", [("cat", 2.0)]),
        ("(cat:+2)", [("cat", 2.0)]),
        ("(cat:0)", [("cat", 0.0)]),
        ("(cat:-1)", [("cat", -1.0)]),
        ("(cat:10)", [("cat", 10.0)]),
        ("(a (b:1.5) c:2)", [("a ", 2.0), ("b", 3.0), (" c", 2.0)]),
        ("(a [b] c)", [("a ", 1.1), ("b", 1.0), (" c", 1.1)]),
        ("a,(b:1.3),c", [("a,", 1.0), ("b", 1.3), (",c", 1.0)]),
        ("a , ( b:1.3) , c", [("a , ", 1.0), (" b", 1.3), (" , c", 1.0)]),
        ("(16:9)", [("16", 9.0)]),
        ("(nier:automata)", [("nier:automata", 1.1)]),
        ("(time: noon)", [("time: noon", 1.1)]),
        ("(two:words:1.2)", [("two:words", 1.2)]),
        ("[cat:1.3]", [("cat:1.3", 0.9091)]),
        ("[cat:dog:0.5]", [("cat:dog:0.5", 0.9091)]),
        ("[cat|dog]", [("cat|dog", 0.9091)]),
        ("(日本:1.2)の猫", [("日本", 1.2), (" の猫", 1.0)]),
    ],
)
def test_weights(prompt, expected):
    assert pieces(prompt) == expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (r"\(literal\)", "(literal)"),
        (r"\[literal\]", "[literal]"),
        (r"a \\ b", r"a \ b"),
        (r"C:\dir", r"C:\dir"),
        ("ends in \\", "ends in \\"),
        (r"hatsune miku \(vocaloid\)", "hatsune miku (vocaloid)"),
    ],
)
def test_escaped_signs_are_text(prompt, expected):
    assert pieces(prompt) == [(expected, 1.0)]


def test_escapes_breaks_and_unbalanced_signs_leave_the_weights_beside_them():
    assert pieces(r"(miku \(vocaloid\):1.2)") == [("miku (vocaloid)", 1.2)]
    assert pieces(r"(a\\:1.2)") == [("a\\", 1.2)]
    assert pieces("smile :) [ and (a cat:1.2)") == [("smile :) [ and ", 1.0), ("a cat", 1.2)]
    assert pieces("((cat:1.2)") == [("(", 1.0), ("cat", 1.2)]
    assert pieces("(a [b) c]") == [("a [b", 1.1), (" c]", 1.0)]
    assert pieces("((c:1.5.5):1.2)") == [("(c:1.5.5)", 1.2)]
    assert parse_a1111("(x BREAK y:1.3)").parts == ((Piece("x ", 1.3),), (Piece(" y", 1.3),))


@pytest.mark.parametrize(
    "prompt",
    [
        "(c:1.5.5)", "(c:)", "(c: )", "(:1.2)", "( :1.2)", "(a:1e3)", "(a:1,3)", "(a:-)", "(a:--1)", "(a:1_0)",
        "ratio 16:9", "smile :) [", "smile :( ]", "(cat", "cat)", "[cat", "cat]", "((", "))", ")(", "][", "()", "[]",
        "(( ))", "([)", "(cat]", "[cat:1.3)", "a < b > c", "<toy>", "<lora:>", "<lora:x", "", "  ",
    ],
)  # fmt: skip
def test_malformed_and_unbalanced_markup_is_text(prompt):
    markup = parse_a1111(prompt)
    assert "".join(markup.texts) == (prompt if prompt.strip() else "")
    assert all(piece.weight == 1.0 for part in markup.parts for piece in part)
    assert markup.tags == ()


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("red cat BREAK blue dog", ["red cat ", " blue dog"]),
        ("x BREAK BREAK y", ["x ", " y"]),
        ("BREAK x BREAK", [" x "]),
        ("x\nBREAK\ny", ["x\n", "\ny"]),
        ("x,BREAK,y", ["x,", ",y"]),
        ("(x BREAK y:1.3)", ["x ", " y"]),
        ("(x)BREAK(y)", ["x", "y"]),
        ("BREAK", [""]),
        ("BREAKFAST table", ["BREAKFAST table"]),
        ("a BREAKer", ["a BREAKer"]),
        ("break Break", ["break Break"]),
        ("TIE-BREAK, BREAK-DANCE, BREAK's", ["TIE-BREAK, BREAK-DANCE, BREAK's"]),
        ("COFFEE_BREAK", ["COFFEE_BREAK"]),
    ],
)
def test_break_is_an_upper_case_word_by_itself(prompt, expected):
    assert list(parse_a1111(prompt).texts) == expected


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("(red)(cat)", "red cat"),
        ("(red:1.2)cat", "red cat"),
        ("(cat)'s", "cat's"),
        ("(cat), dog", "cat, dog"),
        ("un(happy", "un(happy"),
        ("a<lora:x:1>b", "a b"),
    ],
)
def test_a_bracket_keeps_words_apart(prompt, text):
    assert parse_a1111(prompt).texts == (text,)


def test_tags_are_named_and_weights_have_a_limit_so_that_states_stay_finite():
    markup = parse_a1111("<lora:foo:0.35> cat, (dog <lyco:bar(v2):1:2>:1.2)<hypernet:h>")
    assert markup.tags == ("<lora:foo:0.35>", "<lyco:bar(v2):1:2>", "<hypernet:h>")
    assert markup.parts == ((Piece(" cat, ", 1.0), Piece("dog ", 1.2)),)
    assert pieces("(cat:1000)") == [("cat", LIMIT)]
    assert pieces("(cat:-1000)") == [("cat", -LIMIT)]
    assert pieces("(cat:" + 400 * "9" + ")") == [("cat", LIMIT)]
    assert pieces("(" * 1000 + "cat" + ")" * 1000) == [("cat", LIMIT)]
    assert pieces("(" * 1000 + "(cat:0)" + ")" * 1000) == [("cat", 0.0)]
    assert pieces("[" * 1000 + "cat" + "]" * 1000) == [("cat", 0.0)]


def test_without_weighting_nothing_is_read():
    prompt = "(cat:1.3) BREAK <lora:x:1> \\("
    assert read_markup(prompt, weighting=None) == Markup(((Piece(prompt, 1.0),),))
    assert read_markup(prompt, weighting="a1111") == parse_a1111(prompt)
    with pytest.raises(ValueError, match="weighting is 'compel' but must be None or 'a1111'."):
        read_markup(prompt, weighting="compel")


@pytest.mark.parametrize(
    "prompt",
    [
        "(" * 1000 + "cat",
        "(" * 100_000 + "cat",
        "(" * 50_000 + "cat" + ")" * 50_000,
        "[(" * 50_000,
        "[(" * 30_000 + ")" * 30_000,
        "(a:1)" * 20_000,
        "(a:1.2) " * 12_500,
        " " * 100_000 + "x",
        "<lora:" * 17_000,
        "<lora:" + "a" * 100_000,
        "\\" * 100_001,
        "BREAK " * 17_000,
        "(" + ":" * 100_000 + ")",
        "(a:" + "1" * 100_000 + ")",
        "(a:" + "1" * 100_000 + ".x)",
        "(a:" + " " * 100_000 + ")",
        "(a:" + "-" * 100_000 + "x)",
    ],
    ids=lambda prompt: f"{prompt[:8]} * {len(prompt)}",
)
def test_time_is_linear(prompt):
    start = time.process_time()
    parse_a1111(prompt)
    assert time.process_time() - start < (0.1 if len(prompt) < 2000 else 2)


def test_any_prompt_is_read():
    """Never an error; every sign that is no markup is kept, in order; without markup the text is what it was."""
    rng = random.Random(3)
    signs = [*"()[]:\\<>.,'- \n019", "a", "é", "猫", "😀", "BREAK", " BREAK ", ":1.2)", "<lora:x:1>", "cat", "e5"]
    plain = [sign for sign in signs if not set(sign) & set("()[]\\<") and "BREAK" not in sign]
    for _ in range(5000):
        prompt = "".join(rng.choice(signs) for _ in range(rng.randrange(40)))
        markup = parse_a1111(prompt)
        assert markup.parts
        assert all(-LIMIT <= piece.weight <= LIMIT and piece.text for part in markup.parts for piece in part)
        letters = iter(prompt)
        text = "".join(markup.texts)
        assert all(letter in letters for letter in text if not letter.isspace()), (prompt, text)
        text = "".join(rng.choice(plain) for _ in range(rng.randrange(40)))
        assert "".join(parse_a1111(text).texts) == (text if text.strip() else "")
