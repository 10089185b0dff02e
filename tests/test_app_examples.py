"""Prompts to start from: the operator's own from a file, the built-in ones, "Surprise me"."""

import asyncio
import json
import random
import time

import pytest
from app_server import ROOT
from tiny_app import tiny_models

from app.__main__ import build_parser, main, read_settings
from app.events import Events
from app.keep import Session
from app.page import build_demo
from app.prompts import examples, read_examples, surprise
from app.request import PROMPT_CHARACTERS, Settings

MINE = (
    {"id": "Kitchen <b>one</b>", "prompt": "photo, detailed, 8k, A kitchen. On the table lies a red apple."},
    {"prompt": "photo, detailed, 8k, A market street in the rain with many umbrellas. On a roof sits a white pigeon."},
    {"id": "Kitchen <b>one</b>", "caption": "photo, detailed, 8k, Another kitchen."},
    {"id": "A harbor after rain", "text": "A harbor of my own."},
)
TITLES = [
    "Kitchen <b>one</b>",
    "photo, detailed, 8k, A market street in the rain with many …",
    "Kitchen <b>one</b> (2)",
    "A harbor after rain",
]


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in MINE))
    return path


def settings_of(*options: str) -> Settings:
    return read_settings(build_parser().parse_args(list(options)))


def test_own_examples_stand_before_the_built_in_ones_under_titles_of_their_own(mine):
    settings = settings_of("--base", "org/sd", "--encoders", "CLIP=base", "--examples", str(mine))
    shown = examples(settings)
    assert list(settings.own_examples) == TITLES
    assert list(shown)[:4] == TITLES
    assert list(shown)[4:] == ["A kitchen at noon", "A harbor after rain (2)", "A library corner"]
    assert shown["Kitchen <b>one</b> (2)"] == "photo, detailed, 8k, Another kitchen."
    assert shown["A harbor after rain"] == "A harbor of my own."
    assert shown["A harbor after rain (2)"].startswith("photo, detailed, 8k, A small harbor lies")
    assert list(examples(settings_of("--examples", str(mine))))[3:5] == ["A harbor after rain", "Scene 1: 9 sentences"]
    assert settings_of().own_examples == {}


def test_text_files_and_folders_are_examples_too(tmp_path):
    (tmp_path / "lines.txt").write_text("A red star.\n\nA blue ring " + "of great length " * 9 + "ends.\n" + "x" * 99)
    assert list(read_examples(tmp_path / "lines.txt")) == [
        "A red star.",
        "A blue ring of great length of great length of great length …"[:58].rpartition(" ")[0] + " …",
        "x" * 58 + " …",
    ]
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "10.txt").write_text("The tenth.\n")
    (folder / "2.txt").write_text("The second,\nin two lines.")
    assert read_examples(folder) == {"2": "The second, in two lines.", "10": "The tenth."}


def test_thousands_of_prompts_with_one_title_and_ids_that_are_none(tmp_path):
    lines = [{"id": None, "prompt": "A red star."}] * 20_000 + [{"id": "A red star. (20001)", "prompt": "x"}]
    (tmp_path / "many.jsonl").write_text("\n".join(map(json.dumps, [*lines, lines[0]])))
    started = time.process_time()
    titles = list(read_examples(tmp_path / "many.jsonl"))
    assert time.process_time() - started < 10  # trying every number from 2 takes minutes
    assert titles[:2] == ["A red star.", "A red star. (2)"]
    assert titles[-3:] == ["A red star. (20000)", "A red star. (20001)", "A red star. (20002)"]


def test_the_guides_example_file_is_read(tmp_path):
    (tmp_path / "guide.jsonl").write_text((ROOT / "docs" / "app.md").read_text().split("```json\n")[1].split("```")[0])
    shown = read_examples(tmp_path / "guide.jsonl")
    assert list(shown) == ["Lighthouse", "Workshop"]
    assert all(prompt.startswith("photo, detailed, 8k, ") for prompt in shown.values())


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "mine.txt cannot be read"),
        (b"", "mine.txt holds no prompt"),
        (b"a\xff\xfe", "mine.txt is not UTF-8 text"),
        (b"A star.\n" + b"a" * 20_001, "prompt 2 of "),
        (b"A star.\n" + b"a" * 20_001, "mine.txt has 20,001 characters and may have at most 20,000; shorten it."),
    ],
)
def test_a_fault_of_the_file_ends_the_start_with_one_sentence(content, sentence, tmp_path, capsys):
    path = tmp_path / "mine.txt"
    if content is not None:
        path.write_bytes(content)
    assert main(["--examples", str(path)]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.startswith("app: error: ")
    assert error.count("\n") == 1


def test_the_longest_prompt_is_an_example(tmp_path):
    (tmp_path / "long.txt").write_text("red " * (PROMPT_CHARACTERS // 4 - 1) + "star")
    assert [len(prompt) for prompt in read_examples(tmp_path / "long.txt").values()] == [PROMPT_CHARACTERS]


def test_surprise_of_a_real_base_draws_from_all_examples_but_the_one_that_is_shown(mine):
    settings = settings_of("--base", "org/sd", "--encoders", "CLIP=base", "--examples", str(mine))
    every = set(examples(settings).values())
    for shown in ("something else", MINE[3]["text"]):
        drawn = {surprise(random.Random(seed), settings, shown=shown) for seed in range(200)}
        assert drawn == every - {shown}
    assert surprise(random.Random(1), Settings(), shown="") not in examples(Settings()).values()


def test_a_prompt_is_known_by_its_title_as_long_as_nobody_changes_it(mine):
    events = Events(tiny_models(), settings_of("--examples", str(mine)))
    assert events.choose(Session(), TITLES[1])[0] == MINE[1]["prompt"]
    assert events.title_of(MINE[1]["prompt"]) == TITLES[1]
    assert events.title_of(MINE[1]["prompt"] + "!") is None


def test_the_page_offers_the_operators_examples_and_says_nothing_of_their_file(mine):
    async def config_of_page() -> dict:  # gradio makes a loop of its own where none runs, and leaves it open
        return build_demo(tiny_models(), settings_of("--examples", str(mine))).get_config_file()

    config = asyncio.run(config_of_page())
    (offered,) = (part["props"] for part in config["components"] if part["props"].get("elem_id") == "example")
    (box,) = (part["props"] for part in config["components"] if part["props"].get("elem_id") == "prompt")
    assert [title for title, _ in offered["choices"]][:5] == [*TITLES, "Scene 1: 9 sentences"]
    assert (offered["value"], box["value"]) == (TITLES[0], MINE[0]["prompt"])
    assert str(mine) not in json.dumps(config, default=str)
