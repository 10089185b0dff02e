"""Recipe `lengthen`: a pipeline's own text encoders get 248 positions on text alone, from texts to pictures."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file, save_file
from tiny import LONG_PROMPT
from tiny_pipelines import FAMILIES, draw_family
from tiny_single_files import original_naming

from debias_sd import TextEncoder, cli, encode_prompt, load_debias_pipeline, with_text_encoder
from debias_sd.pipelines.families import family_of_pipeline
from debias_sd.prompts.own_encoders import read_encoders, read_slot
from debias_sd.sentences import split_sentences
from tests.train_tiny import arguments
from train_encoder.__main__ import main

pytestmark = pytest.mark.usefixtures("fresh_accelerator")
FEW = {"recipe": "lengthen", "max_train_steps": 4, "lr_warmup_steps": 1, "learning_rate": 2e-3, "train_batch_size": 4}
SENTENCES = split_sentences(LONG_PROMPT)


def texts_of(count=40):
    """Captions of the words that the tiny tokenizer knows, all but each fifth longer than a window."""
    turned = [SENTENCES[n % len(SENTENCES) :] + SENTENCES[: n % len(SENTENCES)] for n in range(count)]
    return [" ".join(one[: 2 if number % 5 == 4 else len(one)]) for number, one in enumerate(turned)]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(texts_of()) + "\n")
    return path


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Saved tiny pipelines, made when asked for."""
    folder = tmp_path_factory.mktemp("bases")

    def base(family):
        if not (folder / family).is_dir():
            FAMILIES[family]().save_pretrained(folder / family)
        return folder / family

    return base


def lengthen(base, texts, out, **settings):
    named = {"pretrained_model_name_or_path": str(base), "train_data": str(texts), "output_dir": str(out)}
    return main(arguments(FEW | named | settings))


def distance(folder):
    return [json.loads(line) for line in (folder / "eval_log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("family", ["sd", "sd2", "sdxl", "refiner", "sd3", "flux"])
def test_every_clip_encoder_of_a_base_is_lengthened_and_comes_nearer(family, bases, texts, tmp_path):
    base, out = bases(family), tmp_path / "long"
    assert lengthen(base, texts, out, eval_steps=16, max_train_steps=16, learning_rate=1e-3) == 0
    slots = [own.slot.encoder for own in read_encoders(str(base))]
    folders = [out, out / "encoder_2"][: len(slots)]
    assert [(folder / "config.json").is_file() for folder in folders] == [True] * len(slots)
    assert (out / "encoder_2").is_dir() == (len(slots) == 2)
    for folder in folders:
        first, last = distance(folder)
        assert {"words_0", "words_77", "end"} <= set(first) or family == "flux"
        assert sum(last.values()) - last["step"] < sum(first.values())
        encoder = TextEncoder.load(folder)
        assert encoder.positions == 248
        assert encoder.provenance["config"]["recipe"] == "lengthen"
        assert encoder.provenance["data"]["texts"] == 40
    named = {"encoder_2": out} if family == "refiner" else {"encoder": out}
    pipe = load_debias_pipeline(base, **named)
    filled = [getattr(pipe, name).config.max_position_embeddings for name in slots]
    assert filled == [248] * len(slots)
    assert {pipe.components[name].config.debias_sd_origin for name in slots} == {"given"}
    if family != "refiner":  # loaded once, as compare and the evaluation do it
        swapped = with_text_encoder(FAMILIES[family](), TextEncoder.load(out))
        assert {swapped.components[name].config.debias_sd_origin for name in slots} == {"given"}
    assert draw_family(pipe, **encode_prompt(pipe, LONG_PROMPT)).isfinite().all()


@pytest.mark.parametrize("family", ["sd", "sd2", "sdxl", "sd3", "flux"])
def test_what_is_read_of_an_encoder_is_what_its_pipeline_reads(family, bases):
    pipe = FAMILIES[family]()
    wanted = encode_prompt(pipe, SENTENCES[0])
    found = {own.slot.encoder: own for own in read_encoders(str(bases(family)))}
    assert [slot.encoder for slot in family_of_pipeline(pipe).clip_slots] == list(found)
    states, pooled = [], []
    for own in found.values():
        ids = own.encoder.tokenizer([SENTENCES[0]], padding="max_length", return_tensors="pt").input_ids
        with torch.no_grad():
            read = read_slot(own.encoder, own.slot, ids)
        states += [] if read.states is None else [read.states]
        pooled += [] if read.pooled is None else [read.pooled]
    if states:
        joined = torch.cat(states, dim=-1)
        torch.testing.assert_close(wanted["prompt_embeds"][:, :77, : joined.shape[-1]], joined, atol=2e-5, rtol=1e-4)
    if pooled:
        torch.testing.assert_close(wanted["pooled_prompt_embeds"], torch.cat(pooled, dim=-1), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["sd", "sdxl"])
def test_a_single_file_is_a_base(family, bases, texts, tmp_path):
    save_file(original_naming(FAMILIES[family]()), tmp_path / "model.safetensors")
    config = str(bases(family))
    found = read_encoders(str(tmp_path / "model.safetensors"), config=config)
    for own, other in zip(found, read_encoders(config), strict=True):
        weights = own.encoder.model.state_dict()
        assert all(torch.equal(weights[name], one) for name, one in other.encoder.model.state_dict().items())
    settings = {"pipeline_config": config, "max_train_steps": 2, "text_encoder": found[-1].slot.encoder}
    assert lengthen(tmp_path / "model.safetensors", texts, tmp_path / "long", **settings) == 0
    assert TextEncoder.load(tmp_path / "long").positions == 248


def test_a_killed_run_goes_on_to_the_same_weights(bases, texts, tmp_path):
    saving = {"checkpointing_steps": 2, "checkpoints_total_limit": 5}
    assert lengthen(bases("sd"), texts, tmp_path / "whole", **saving) == 0
    (tmp_path / "again").mkdir()
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "again" / "checkpoint-2")
    AcceleratorState._reset_state(reset_partial_state=True)
    assert lengthen(bases("sd"), texts, tmp_path / "again", resume_from_checkpoint="latest", **saving) == 0
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "again")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_the_first_positions_stay_to_the_bit(bases, texts, tmp_path):
    assert lengthen(bases("sd"), texts, tmp_path / "long") == 0
    own, new = read_encoders(str(bases("sd")))[0].encoder, TextEncoder.load(tmp_path / "long")
    tables = [one.model.embeddings.position_embedding.weight for one in (own, new)]
    assert torch.equal(tables[0][:20], tables[1][:20])
    assert not torch.equal(own.stretch().model.embeddings.position_embedding.weight[20:], tables[1][20:])


def test_another_base_or_other_texts_are_named_on_resume(bases, texts, tmp_path, capsys):
    saving = {"checkpointing_steps": 2, "checkpoints_total_limit": 5}
    assert lengthen(bases("sd"), texts, tmp_path / "whole", **saving) == 0
    (tmp_path / "again").mkdir()
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "again" / "checkpoint-2")
    other = tmp_path / "other.txt"
    other.write_text(texts.read_text().replace("gull", "cat"))
    assert lengthen(bases("sd"), other, tmp_path / "again", resume_from_checkpoint="latest", **saving) == 2
    assert "train_data" in capsys.readouterr().err


SHORT_ONES = "a cat.\n" * 30
BAD = {
    "no texts": ("", {}, "holds no text"),
    "ten texts": ("\n".join(texts_of(3)), {}, "has 3 texts to train on, one batch of all processes needs 4"),
    "short texts": (SHORT_ONES, {}, "none of 30 texts of .* is longer than 75 tokens, .*nothing to learn"),
    "not text": (b"\xff\xfe\x00a red\xd8 cat" * 5, {}, "UTF-8|holds no text|cannot be read"),
    "a wrong slot": (
        None,
        {"text_encoder": "text_encoder_2"},
        "text_encoder is text_encoder_2, but the base has text_enc",
    ),
    "an upload": (None, {"push_to_hub": True}, "push_to_hub is set for recipe lengthen, which neither draws"),
    "chunks": (None, {"contrast_chunks": 2}, "recipe is lengthen, which has no pictures and no contrast"),
    "a slot of another recipe": (None, {"recipe": "debias", "text_encoder": "text_encoder"}, "is for lengthen"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(name, bases, texts, tmp_path, capsys):
    content, settings, said = BAD[name]
    path = texts
    if content is not None:
        path = tmp_path / "texts.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    capsys.readouterr()
    assert lengthen(bases("sd"), path, tmp_path / "long", **settings) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert re.search(said, error), error
    assert not (tmp_path / "long" / "config.json").exists()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda base: base / "missing", "does not exist"),
        (lambda base: base / "unet", "has no model_index.json"),
    ],
)
def test_a_base_that_is_none_is_one_sentence(make, said, bases, texts, tmp_path, capsys):
    assert lengthen(make(bases("sd")), texts, tmp_path / "long") == 2
    assert said in capsys.readouterr().err


def test_a_base_that_is_lengthened_already_is_told(bases, texts, tmp_path, capsys):
    load_debias_pipeline(bases("sd"), "stretched").save_pretrained(tmp_path / "stretched")
    assert lengthen(tmp_path / "stretched", texts, tmp_path / "long") == 2
    assert "has 248 positions already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("write", "count"),
    [
        (lambda folder, texts: (folder / "a.txt").write_text("\n\n".join(texts)), 9),
        (lambda folder, texts: (folder / "a.jsonl").write_text("\n".join(json.dumps({"prompt": t}) for t in texts)), 9),
        (lambda folder, texts: (folder / "a.json").write_text(json.dumps([{"caption": t} for t in texts])), 9),
        (
            lambda folder, texts: (folder / "a.csv").write_text(
                "file_name,text\n" + "".join(f'{n}.jpg,"{t}"\n' for n, t in enumerate(texts))
            ),
            9,
        ),
        (lambda folder, texts: [(folder / f"{n}.txt").write_text(t) for n, t in enumerate(texts)], 9),
    ],
)
def test_texts_are_read_from_every_form(write, count, tmp_path):
    from train_encoder.data.text_sources import open_texts

    texts = texts_of(9)
    write(tmp_path, texts)
    (path, *others) = sorted(tmp_path.iterdir())
    found = open_texts(str(tmp_path if others else path))
    assert [found[number] for number in range(len(found))] == texts
    assert len(found) == count


def test_held_out_texts_are_not_trained_on(texts):
    from train_encoder.data.text_sources import open_texts
    from train_encoder.data.texts import TextItems, held_out_texts

    items = TextItems(open_texts(str(texts)), name="texts", seed=0, global_batch=4, held_out=True)
    held, trained = set(items.held_out_numbers()), {items[number]["key"] for number in range(items.usable)}
    assert len(held_out_texts(items)) == len(held) == 2
    assert not held & trained
    assert len(trained) == items.usable == 36


def test_the_command_lengthens_and_says_what_is_missing(bases, texts, tmp_path, capsys):
    assert cli.main(["lengthen", "--base", str(bases("sd")), "--out", str(tmp_path / "no")]) == 2
    assert "--texts is missing" in capsys.readouterr().err
    given = ["--base", str(bases("sd")), "--texts", str(texts), "--out", str(tmp_path / "long"), "--steps", "2"]
    assert cli.main(["lengthen", *given, "--batch", "4"]) == 0
    assert TextEncoder.load(tmp_path / "long").positions == 248


@pytest.mark.slow
def test_two_processes_equal_one(bases, texts, tmp_path):
    named = {"pretrained_model_name_or_path": str(bases("sd")), "train_data": str(texts), "max_train_steps": 2}
    for processes, batch in ((1, 8), (2, 4)):
        settings = FEW | named | {"output_dir": str(tmp_path / str(processes)), "train_batch_size": batch}
        launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", str(processes)]
        launch += ["--multi_gpu", "--num_machines", "1"] if processes > 1 else []
        launch += ["--mixed_precision", "no", "--dynamo_backend", "no", "-m", "train_encoder", *arguments(settings)]
        subprocess.run(launch, check=True, cwd=Path(__file__).parent.parent)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in "12")
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 2e-4
