"""Sets for other people's judges: exact names, read back the way their scripts read them, resumed, never mixed."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_world import save_tiny_clip, tiny_pipeline

from debias_sd import cli
from debias_sd.benchmark_sets import LAYOUTS, file_name_of
from debias_sd.commands import draw_set
from debias_sd.prompts.files import ListedPrompt

PROMPTS = ["a red circle, top left", "a blue/green ring_with dots. A star.png", "a small star"]
IDS = ("COCOval2014_26", "10", "9")
SIDE = 48


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("draw-set")
    tiny_pipeline().save_pretrained(root / "base")
    save_tiny_clip(root / "long", window=248, seed=1)
    (root / "prompts.txt").write_text("\n".join(PROMPTS) + "\n\n")
    rows = [
        {"id": f"{name}", "prompt": prompt} for name, prompt in zip(("COCOval2014_26", "10", "9"), PROMPTS, strict=True)
    ]
    (root / "dpg.jsonl").write_text("\n".join(map(json.dumps, rows)))
    rows = [{"tag": "colors", "include": [{"class": "cup", "count": 1}], "prompt": prompt} for prompt in PROMPTS]
    (root / "evaluation_metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return root


def call(capsys, world, *arguments, **options):
    given = ["draw-set", "--base", world / "base", "--encoder", world / "long", "--steps", "1", *arguments]
    given += [part for name, value in options.items() for part in (f"--{name}", value)]
    code = cli.main([str(part) for part in given])
    out, err = capsys.readouterr()
    return code, out, err


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        assert picture.mode == "RGB"
        return np.asarray(picture)


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_dpg_bench_reads_a_grid_of_four_by_the_prompts_name(world, tmp_path, capsys):
    code, said, err = call(capsys, world, layout="dpg", prompts=world / "dpg.jsonl", out=tmp_path / "set")
    assert code == 0, err
    assert files(tmp_path / "set") == {f"images/{name}.png" for name in ("COCOval2014_26", "10", "9")} | {
        "manifest.json"
    }
    assert f"bash dpg_bench/dist_eval.sh {tmp_path / 'set'}/images {SIDE}" in said
    crops = []
    for name in os.listdir(tmp_path / "set" / "images"):  # all that lies there, as compute_dpg_bench.py does
        assert os.path.basename(name).split(".")[0] in IDS
        with Image.open(tmp_path / "set" / "images" / name) as grid:
            assert grid.size == (2 * SIDE, 2 * SIDE)
            for x, y in ((0, 0), (SIDE, 0), (0, SIDE), (SIDE, SIDE)):
                crops.append(np.asarray(grid.crop((x, y, x + SIDE, y + SIDE))))
    assert len({crop.tobytes() for crop in crops}) == 12
    manifest = json.loads((tmp_path / "set" / "manifest.json").read_text())
    assert manifest["complete"] is True
    assert manifest["settings"]["seeds"] == [0, 1, 2, 3]
    assert manifest["prompts"][0] == {
        "id": "COCOval2014_26",
        "prompt": PROMPTS[0],
        "files": ["images/COCOval2014_26.png"],
    }


def test_geneval_reads_its_folders(world, tmp_path, capsys):
    options = {"layout": "geneval", "prompts": world / "evaluation_metadata.jsonl", "out": tmp_path / "set"}
    code, said, err = call(capsys, world, "--seeds", 7, 8, 9, **options)
    assert code == 0, err
    assert f"python evaluation/evaluate_images.py {tmp_path / 'set'} --outfile results.jsonl" in said
    expected = {f"{n:05d}/{name}" for n in range(3) for name in ("metadata.jsonl", "grid.png")} | {"manifest.json"}
    assert files(tmp_path / "set") == expected | {f"{n:05d}/samples/{s:04d}.png" for n in range(3) for s in range(3)}
    read = []
    for subfolder in os.listdir(tmp_path / "set"):  # as evaluate_images.py does
        folder = tmp_path / "set" / subfolder
        if not folder.is_dir() or not subfolder.isdigit():
            continue
        metadata = json.loads((folder / "metadata.jsonl").read_text())
        read += [(metadata["prompt"], metadata["tag"], metadata["include"][0]["count"])]
        names = os.listdir(folder / "samples")
        assert len([name for name in names if re.match(r"\d+\.png", name)]) == len(names) == 3
    assert sorted(read) == sorted((prompt, "colors", 1) for prompt in PROMPTS)
    grid = pixels(tmp_path / "set" / "00001" / "grid.png")
    assert grid.shape == (2 * SIDE, 2 * SIDE, 3)
    assert (grid[:SIDE, SIDE:] == pixels(tmp_path / "set" / "00001" / "samples" / "0001.png")).all()
    assert not grid[SIDE:, SIDE:].any()


def test_t2i_compbench_reads_prompts_and_numbers_from_names(world, tmp_path, capsys):
    options = {"layout": "t2i-compbench", "prompts": world / "prompts.txt", "out": tmp_path / "set"}
    code, _, err = call(capsys, world, "--seeds", 0, 1, **options)
    assert code == 0, err
    assert "1 prompt with what no file name can hold (/ _ .png): the judges read spaces there." in err
    assert "1 prompt without text left out" in err
    names = os.listdir(tmp_path / "set" / "samples")
    names.sort(key=lambda name: int(name.split("_")[-1].split(".")[0]))  # as BLIP_vqa.py does
    assert [name.split("_")[0] for name in names] == [file_name_of(prompt) for prompt in PROMPTS for _ in range(2)]
    assert [int(name.split(".png")[0].split("_")[1]) for name in names] == list(range(6))  # as numeracy_eval.py does
    assert names[0] == "a red circle, top left_000000.png"
    assert names[2] == "a blue green ring with dots. A star png_000002.png"
    # the same seed and prompt give what the other layouts have
    grid = {"layout": "dpg", "prompts": world / "dpg.jsonl", "out": tmp_path / "grid"}
    assert call(capsys, world, "--count", 1, **grid)[0] == 0
    grid = pixels(tmp_path / "grid" / "images" / "COCOval2014_26.png")
    assert (grid[:SIDE, SIDE:] == pixels(tmp_path / "set" / "samples" / names[1])).all()


def test_a_run_goes_on_and_draws_only_what_is_not_there_or_damaged(world, tmp_path, capsys, monkeypatch):
    options = {"layout": "geneval", "prompts": world / "evaluation_metadata.jsonl", "out": tmp_path / "set"}
    assert call(capsys, world, "--seeds", 0, 1, **options)[0] == 0
    whole = {name: (tmp_path / "set" / name).read_bytes() for name in files(tmp_path / "set")}
    broken = tmp_path / "set" / "00001" / "samples" / "0001.png"
    broken.write_bytes(broken.read_bytes()[:100])
    (tmp_path / "set" / "00002" / "grid.png").unlink()
    code, said, _ = call(capsys, world, "--seeds", 0, 1, **options)
    assert code == 0
    assert "2 drawn and 1 there already" in said
    assert {name: (tmp_path / "set" / name).read_bytes() for name in whole if name != "manifest.json"} == {
        name: content for name, content in whole.items() if name != "manifest.json"
    }

    def stop(source, target):
        if str(target).endswith("00001/samples/0000.png"):
            raise KeyboardInterrupt
        return replace(source, target)

    replace = os.replace
    monkeypatch.setattr(os, "replace", stop)
    options["out"] = tmp_path / "new"
    assert call(capsys, world, "--seeds", 0, 1, **options)[0] == 130
    monkeypatch.undo()
    assert json.loads((tmp_path / "new" / "manifest.json").read_text())["complete"] is False
    for name in files(tmp_path / "new"):
        if name.endswith(".png"):
            assert pixels(tmp_path / "new" / name).shape[0] in (SIDE, 2 * SIDE)
    code, said, _ = call(capsys, world, "--seeds", 0, 1, **options)
    assert (code, "2 drawn and 1 there already" in said) == (0, True)
    assert files(tmp_path / "new") == files(tmp_path / "set")


def test_two_sets_are_never_mixed(world, tmp_path, capsys):
    options = {"layout": "t2i-compbench", "prompts": world / "prompts.txt", "out": tmp_path / "set"}
    assert call(capsys, world, "--seeds", 0, "--count", 1, **options)[0] == 0
    code, _, err = call(capsys, world, "--seeds", 1, "--count", 1, **options)
    assert (code, err.count("\n")) == (2, 2)  # and the warning of the empty prompt
    assert "holds a set that was drawn with other settings (seeds) and two sets are never mixed" in err
    code, _, err = call(capsys, world, "--seeds", 0, "--guidance-scale", 3, **options)
    assert (code, "other settings (guidance)" in err) == (2, True)
    assert call(capsys, world, "--seeds", 0, **options)[0] == 0  # more prompts go on
    code, _, err = call(capsys, world, "--seeds", 0, "--count", 2, **options)
    assert (code, "is not a picture of this set and T2I-CompBench would judge it" in err) == (2, True)
    (tmp_path / "set" / "manifest.json").write_text("{")
    code, _, err = call(capsys, world, "--seeds", 0, **options)
    assert (code, "manifest.json is damaged" in err) == (2, True)


def test_an_encoder_of_77_tokens_reads_longer_prompts_as_asked(world, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("red circle, " * 30 + "blue")
    found = {}
    for way in ("cut", "windows", "stretched"):
        given = ("--layout", "dpg", "--prompts", tmp_path / "prompts.txt", "--past-77", way)
        code, _, err = call(capsys, world, "--encoder", "base", *given, out=tmp_path / way)
        assert code == 0, err
        assert ("1 prompt longer than the window of 77 tokens: cut." in err) == (way == "cut")
        manifest = json.loads((tmp_path / way / "manifest.json").read_text())
        found[way] = (manifest["settings"]["window"], manifest["settings"]["in_windows"])
    assert found == {"cut": (77, False), "windows": (77, True), "stretched": (248, True)}


def test_the_command_offers_every_layout():
    assert draw_set.LAYOUTS == tuple(LAYOUTS)


@pytest.mark.parametrize(
    ("layout", "prompts", "sentence"),
    [
        ("dpg", [ListedPrompt("../x", "a")], "a prompt has the id '../x' but DPG-Bench takes it for a file's name"),
        ("dpg", [ListedPrompt("a.b", "a")], "a prompt has the id 'a.b'"),
        ("dpg", [ListedPrompt("x" * 252, "a")], "a prompt has the id 'xxx"),
        ("dpg", [ListedPrompt("1", "a"), ListedPrompt("1", "b")], "2 prompts have the id '1', which names a file"),
        ("geneval", [ListedPrompt("1", "a", {"prompt": "a"})], "prompt 0 has no .tag., which GenEval"),
        ("t2i-compbench", [ListedPrompt("4", "é" * 130)], "prompt 4 .* has 260 bytes .*but may have 1 to 244"),
        ("t2i-compbench", [ListedPrompt("4", "_/_")], "prompt 4 .* has 0 bytes as a file's name"),
    ],
)  # fmt: skip
def test_prompts_that_are_no_names_are_refused(layout, prompts, sentence):
    with pytest.raises(ValueError, match=sentence) as fault:
        LAYOUTS[layout].plan(prompts, 4)
    assert "\n" not in str(fault.value)


def test_hostile_prompts_stay_in_their_folder():
    hostile = ["../../etc/passwd", "/root/x", "a\nb", "..", "~", "-rf *", "a\0b", "CON", "a\tb", "%2e%2e%2f"]
    prompts = [ListedPrompt(str(number), prompt) for number, prompt in enumerate(hostile)]
    for planned in LAYOUTS["t2i-compbench"].plan(prompts, 1):
        (path,) = planned.pictures
        assert path.startswith("samples/")
        assert path.count("/") == 1
        assert not re.search(r"[\x00-\x1f]", path)
        assert re.search(r"_\d{6}\.png$", path)
    assert LAYOUTS["t2i-compbench"].plan(prompts, 1)[8].prompt.text == "a"  # what stands in front of the tab


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--layout", "dpg", "--seeds", 1, 2),
            "--seeds are 2 but DPG-Bench reads grids of 4 pictures; give four seeds.",
        ),
        (("--layout", "geneval", "--seeds", 1, 1), "--seeds are [1, 1] but must be different numbers"),
        (("--layout", "geneval", "--count", 0), "--count is 0 but must be 1 or more"),
        (("--layout", "dpg", "--batch", 0), "--batch is 0 but must be 1 or more"),
    ],
)
def test_a_fault_is_one_sentence_before_anything_is_drawn(world, tmp_path, capsys, arguments, sentence):
    options = {"prompts": world / "dpg.jsonl", "out": tmp_path / "set"}
    code, _, err = call(capsys, world, *arguments, **options)
    assert (code, err.count("\n")) == (2, 1)
    assert sentence in err
    assert not (tmp_path / "set").exists()
