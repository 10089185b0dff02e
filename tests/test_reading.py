"""What encoders read by place: by stock transformers, on encoders whose answer is known, in reports of any texts."""

import json
import random
import re

import numpy as np
import pytest
import torch
from test_retrieval_siglip import WORDS
from test_retrieval_siglip import folder as siglip_folder  # noqa: F401  (a fixture)
from tiny import LONG_PROMPT, save_clip_model, tiny_tokenizer
from tiny_sets import caption, make_folder
from tiny_world import save_tiny_clip
from transformers import CLIPModel, SiglipModel

from debias_sd.datasets.world import world_prompts
from debias_sd.measure.attention import TokenAttention, _tokens_by_word, pooled_attention
from debias_sd.measure.changes import texts_of
from debias_sd.measure.embedding import Embedder, FeatureCache
from debias_sd.measure.processes import Processes
from debias_sd.measure.reading import _per_token, measure_reading
from debias_sd.measure.towers import ClipTowers, load_towers
from debias_sd.report import Report

PLOTS = (
    "attention-position",
    *(f"{what}-{way}" for what in ("attention", "drop", "swap") for way in ("sentence", "words")),
)
CAPTIONS = [caption(number) for number in range(8)]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("reading")
    save_clip_model(root / "long", length=248)
    save_clip_model(root / "short", seed=3)
    make_folder(root / "own")
    return root


def embedder(source) -> Embedder:
    return Embedder(load_towers(source), FeatureCache(None, ""), Processes())


def siglip_text(number: int) -> str:
    rng = random.Random(number)
    return " ".join(" ".join(rng.choices(WORDS[3:], k=3)).capitalize() + "." for _ in range(3))


def test_attention_is_that_of_stock_transformers_at_the_end_token(world):
    found = pooled_attention(load_towers(world / "long"), CAPTIONS, Processes())
    model = CLIPModel.from_pretrained(world / "long", attn_implementation="eager").eval()
    tokenizer = tiny_tokenizer(248)
    for text, one in zip(CAPTIONS, found, strict=True):
        ids = tokenizer([text], return_tensors="pt")["input_ids"]
        with torch.no_grad():
            layers = model.text_model(input_ids=ids, output_attentions=True).attentions
        at_end = torch.stack([layer[0, :, -1].mean(0) for layer in layers]).numpy()
        np.testing.assert_allclose(one.attention[0], at_end.mean(0)[1:-1], atol=1e-6)
        np.testing.assert_allclose(one.attention[1], at_end[-1][1:-1], atol=1e-6)
        np.testing.assert_allclose(one.slots, [at_end.mean(0), at_end[-1]], atol=1e-6)
        np.testing.assert_allclose(one.slots.sum(axis=1), 1, atol=1e-5)
        tokens = [tokenizer.decode(token) for token in ids[0, 1:-1]]
        words = ["".join(t for t, of in zip(tokens, one.word_of, strict=True) if of == w) for w in range(one.words)]
        assert words == text.lower().split()


def test_siglip_looks_from_the_last_slot_at_its_pads_too(siglip_folder):  # noqa: F811
    texts = ["A red cat. The dog sits.", siglip_text(1) + " " + siglip_text(2)]
    towers = load_towers(siglip_folder)
    found = pooled_attention(towers, texts, Processes())
    model = SiglipModel.from_pretrained(siglip_folder, attn_implementation="eager").eval()
    rows, _ = towers.ids_of(texts)
    with torch.no_grad():
        layers = model.text_model(input_ids=torch.tensor(rows), output_attentions=True).attentions
    last = torch.stack([layer[:, :, -1].mean(1) for layer in layers]).mean(0).numpy()
    assert len(found[0].word_of) == 8  # six words, the two stops are unknown words of their own
    assert found[0].word_of.tolist() == [0, 1, 2, 2, 3, 4, 5, 5]
    for row, one in enumerate(found):
        np.testing.assert_allclose(one.attention[0], last[row, : len(one.word_of)], atol=1e-6)
    assert found[0].attention[0].sum() < 0.9
    assert found[1].words == 18
    assert len(found[1].word_of) == 15  # cut to 16 positions, the end token last
    assert all(one.slots.shape == (2, 16) for one in found)
    assert towers.model.config._attn_implementation == "sdpa"


def test_a_word_ends_where_the_text_up_to_it_ends(world, siglip_folder, monkeypatch):  # noqa: F811
    words = "The kitchen, 12 cups;  and the\u00e9 (caf\u00e9!) unbelievably <|endoftext|> small".split(" ")
    for towers in (load_towers(world / "long"), load_towers(siglip_folder)):
        ids, ends = _tokens_by_word(towers, words)
        lengths = [len(row) for row in towers.own_ids([" ".join(words[: n + 1]) for n in range(len(words))])]
        assert ends.tolist() == np.maximum.accumulate(lengths).tolist()
        assert ids == towers.own_ids([" ".join(words)])[0]

    # A tokenizer that begins every text with a token of its own: a text's words alone are not the text.
    monkeypatch.setattr(ClipTowers, "own_ids", lambda self, texts: [[0, *map(len, one.split())] for one in texts])
    ids, ends = _tokens_by_word(load_towers(world / "long"), ["one", "three", "two"])
    assert (ids, ends.tolist()) == ([0, 3, 5, 3], [2, 3, 4])


def test_changes_are_those_of_the_features_and_relative_to_their_caption(world):
    one = embedder(world / "long")
    result = measure_reading({"long": one}, CAPTIONS, label="own", samples=50).encoders["long"]
    sentences = CAPTIONS[0].split(". ")
    assert result["drop"]["changes"] == 8 * 6
    assert result["drop"]["rules"] == {"drop": 48}
    for measure in ("drop", "swap"):
        assert result[measure]["relative"]["by_sentence"]["captions"] == [8] * 6
        assert np.mean(result[measure]["relative"]["by_sentence"]["mean"]) == pytest.approx(1)
    changes = []
    for text in CAPTIONS:
        parts = [part.rstrip(".") + "." for part in text.split(". ")]
        features = one.texts([text, " ".join(parts[1:])])
        changes.append(1 - float(features[0] @ features[1]))
    assert result["drop"]["change"]["by_sentence"]["mean"][0] == pytest.approx(np.mean(changes), abs=1e-6)
    assert len(sentences) == 6
    assert result["texts_sha256"] == measure_reading({"x": one}, CAPTIONS, label="own").encoders["x"]["texts_sha256"]


def test_what_stands_behind_the_window_is_not_read(world):
    both = {"long": embedder(world / "long"), "short": embedder(world / "short")}
    texts = [LONG_PROMPT] * 2 + CAPTIONS
    read = measure_reading(both, texts, label="own", samples=50)
    short, long = read.encoders["short"], read.encoders["long"]
    assert short["cut"] > 0
    assert long["cut"] == 0
    assert any("longer than the window of short" in note for note in read.notes)
    for result, is_read in ((short, False), (long, True)):
        for found in (result["drop"]["change"], result["swap"]["change"], result["attention"]["relative_all_layers"]):
            assert (found["by_sentence"]["mean"][9] > 1e-6) == is_read
    difference = read.differences["long - short"]["attention_all_layers"]["by_sentence"]
    assert difference["places"][9] == "10"
    assert difference["low"][9] > 0
    assert difference["difference"][0] < 0


def test_attention_per_token_counts_what_was_read_alone():
    """Two sentences of two words, the second one cut after its first: each token of it gets three times as much."""
    texts, _ = texts_of(["One two. Three four."])
    seen = TokenAttention(np.array([0, 1, 2]), np.array([[0.1, 0.1, 0.3]] * 2), np.zeros((2, 5)), 4)
    places, values = _per_token(texts, [seen], 0)
    assert [(place.sentence, place.before) for place in places] == [(0, 0), (1, 2)]
    np.testing.assert_allclose(values, [0.6, 1.8])
    places, values = _per_token(texts, [TokenAttention(seen.word_of[:2], seen.attention[:, :2], seen.slots, 4)], 1)
    assert [place.sentence for place in places] == [0]


def test_things_of_the_embedded_world_are_changed_too_and_every_measure_has_its_parts(tmp_path):
    both = {name: embedder(save_tiny_clip(tmp_path / name, window=w)) for name, w in (("short", 77), ("long", 248))}
    texts = world_prompts(seed=0, count=5)
    read = measure_reading(both, texts, label="world", samples=5)
    short, long = read.encoders["short"], read.encoders["long"]
    for result, is_read in ((short, False), (long, True)):
        assert (result["thing"]["change"]["by_sentence"]["mean"][-1] > 1e-6) == is_read
        assert result["thing"]["change"]["by_part"]["summary"] > 1e-5
        assert result["thing"]["rules"] == {"thing": result["thing"]["changes"]}
        for spreads in (result["drop"]["change"], result["attention"]["per_token_all_layers"]):
            assert list(spreads["by_part"]) == ["summary", "first_half", "second_half"]
            assert spreads["by_part"]["summary"] == pytest.approx(spreads["by_sentence"]["mean"][0])
    longest = max(len(row) for row in load_towers(tmp_path / "long").own_ids(texts))
    positions = long["attention"]["positions"]
    assert len(positions["all_layers"]) == len(positions["captions"]) == longest + 2  # from the start to the end token
    assert positions["captions"][0] == 5
    assert len(short["attention"]["positions"]["all_layers"]) == 77
    assert "thing" in read.differences["short - long"]


def test_equal_encoders_have_no_difference_and_the_order_changes_nothing(world):
    both = {"one": embedder(world / "long"), "two": embedder(world / "long")}
    read = measure_reading(both, CAPTIONS, label="own", samples=20)
    assert read.encoders["one"] == read.encoders["two"]
    for by_way in read.differences["one - two"].values():
        for found in by_way.values():
            assert set(found["difference"] + found["low"] + found["high"]) == {0.0}


def test_the_command_reads_sets_and_files_and_its_report_makes_tables_and_plots(world, siglip_folder, tmp_path, call):  # noqa: F811
    (tmp_path / "mine.jsonl").write_text("\n".join(json.dumps({"caption": text}) for text in [*CAPTIONS, ""]))
    encoders = ("--encoder", f"long-s0={world / 'long'}", f"siglip={siglip_folder}")
    sets = ("--data", world / "own", "--captions", tmp_path / "mine.jsonl")
    options = ("--cache", tmp_path / "cache", "--samples", 20, "--count", 6, "--out", tmp_path / "r.json")
    code, said, err = call("evaluate", "attention", *encoders, *sets, *options)
    assert code == 0, err
    assert said.count("last quarter against an average place (1): attention ") == 4
    assert "mine.jsonl: 1 caption without text left out." in err
    report = Report.read(tmp_path / "r.json")
    assert report.kind == "attention"
    assert {label: found["captions"] for label, found in report.encoders["siglip"]["reading"].items()} == {
        "folder": 6, "mine": 6,
    }  # fmt: skip
    assert report.encoders["siglip"]["reading"]["mine"]["attention"]["pooled_at"] == "last slot"
    assert list(report.extra["reading_differences"]["mine"]) == ["long-s0 - siglip"]
    first = report.encoders
    code, said, err = call("report", tmp_path / "r.json", "--html", tmp_path / "r.html", "--plots", tmp_path / "p")
    assert (code, err) == (0, "")
    drop = first["siglip"]["reading"]["mine"]["drop"]["relative"]["by_quarter"]
    cell = f"{drop['mean'][3]:.2f} ({drop['low'][3]:.2f} to {drop['high'][3]:.2f})"
    section = said.split("### mine: what is read, by quarter of the sentences")[1].split("###")[0]
    assert re.search(rf"\| sentence dropped \| 4 \| [^|]* \| {re.escape(cell)} \|", section)
    assert "| mine: long-s0 - siglip | word swapped |" in said.split("### Differences of what is read")[1]
    names = {f"{label}-{plot}.png" for label in ("folder", "mine") for plot in PLOTS}
    assert {path.name for path in (tmp_path / "p").iterdir()} == names
    page = (tmp_path / "r.html").read_text()
    assert page.count('src="data:image/png;base64,') == len(names)
    code, _, _ = call("evaluate", "attention", *encoders, *sets, *options)
    assert Report.read(tmp_path / "r.json").encoders == first
    assert Report.read(tmp_path / "r.json").extra["work"]["siglip"]["texts"] == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("attention", "--probes", "all"), "--probes is for retrieval, not for attention; leave it out."),
        (("retrieval", "--captions", "x.txt"), "--captions is for attention, not for retrieval; leave it out."),
        (("attention", "--captions", "x.txt"), "file of prompts x.txt cannot be read (No such file or directory)"),
        (
            ("attention", "--captions", "short.txt"),
            "short has 0 captions of two sentences or more but reading by",
        ),
    ],
)
def test_a_fault_is_one_sentence(world, tmp_path, monkeypatch, call, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("one\ntwo\n")
    end = ("--encoder", f"long={world / 'long'}", "--no-cache", "--out", tmp_path / "r.json")
    code, _, err = call("evaluate", *arguments, *end)
    assert (code, err.count("\n")) == (2, 1)
    assert sentence in err
    assert not (tmp_path / "r.json").exists()


def test_captions_without_a_word_that_the_encoders_know_are_refused_in_one_sentence(world):
    folder = world / "knows-little"
    save_clip_model(folder)
    (folder / "known_words.json").write_text('["star"]', encoding="utf-8")
    with pytest.raises(ValueError, match="own has no word that can be swapped .* give captions in the encoders' own"):
        measure_reading({"a": embedder(folder)}, ["Mud here. Fog there.", "Fog here. Mud there."], label="own")
