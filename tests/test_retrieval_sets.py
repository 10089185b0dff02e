"""Retrieval on sets: scores that another way of counting gives too, faults in the report, the same bits every time."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny import END, edit_json, save_clip_model, tiny_tokenizer
from tiny_sets import caption, check_ranks, draw, make_coco, make_folder, make_urban1k
from transformers import CLIPModel

from debias_sd.datasets.names import open_records
from debias_sd.datasets.pictures import read_rgb, square
from debias_sd.datasets.records import Encoded, Faults, ListedRecords, Record
from debias_sd.measure.embedding import Embedder, FeatureCache
from debias_sd.measure.processes import Processes
from debias_sd.measure.retrieval import Measured, Plan, measure_sets
from debias_sd.measure.towers import ClipTowers, load_towers
from debias_sd.tokens import tokenize

PICTURE = b"P6 1 1 255 \x09\x08\x07"  # a picture of one pixel, as PPM
GOLDEN = Path(__file__).parent.parent.parent / "shared" / "golden"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("clip")
    save_clip_model(path, length=248)
    return path


def embedder(source, cache: FeatureCache | None = None) -> Embedder:
    return Embedder(load_towers(source), cache or FeatureCache(None, ""), Processes())


def measure(source, *sets, **plan) -> Measured:
    return measure_sets({"one": embedder(source)}, sets, Plan(samples=20, **plan))


def plain_features(folder, records) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, captions and owners by stock transformers, padded to the window, one text and picture at a time."""
    model = CLIPModel.from_pretrained(folder).eval()
    model.config.text_config.eos_token_id = END
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    images, texts, owners = [], [], []
    with torch.no_grad():
        for number in range(len(records)):
            pixels = torch.from_numpy(square(read_rgb(records[number].image), size=30).copy()).permute(2, 0, 1) / 255
            pixels = (pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
            images.append(model.get_image_features(pixels[None]).pooler_output[0])
            for text in records[number].captions:
                ids = tokenize(tiny_tokenizer(248), [text], length=248, pad_id=0)
                texts.append(model.get_text_features(ids).pooler_output[0])
                owners.append(number)
    images, texts = (torch.nn.functional.normalize(torch.stack(rows), dim=-1).numpy() for rows in (images, texts))
    return images, texts, np.array(owners)


@pytest.mark.parametrize("make", [make_folder, make_coco, make_urban1k], ids=["own", "coco", "urban1k"])
def test_the_ranks_are_those_of_stock_transformers(make, folder, tmp_path):
    records = open_records(str(make(tmp_path / "data")))
    result = measure(folder, records).encoders["one"]["sets"][records.name]
    images, texts, owners = plain_features(folder, records)
    check_ranks(result["probes"]["keep"], images, texts, owners)
    for way in ("t2i", "i2t"):
        found = result["probes"]["keep"][way]
        for score in ("r1", "median_rank"):
            assert found["intervals"][score][0] <= found[score] <= found["intervals"][score][1]
    assert result["pool"] == {"images": len(records), "captions": len(owners)}


def test_features_do_not_depend_on_company_order_or_padding(folder):
    texts = [caption(number)[: 30 * number] for number in range(1, 12)] + ["", caption(1) * 20]
    towers = load_towers(folder)

    def features_of(texts):
        return Embedder(towers, FeatureCache(None, ""), Processes()).texts(texts)

    one = features_of(texts)
    np.testing.assert_array_equal(features_of(texts[::-1])[::-1], one)
    np.testing.assert_array_equal(np.concatenate([features_of([text]) for text in texts]), one)
    with torch.inference_mode():
        padded = towers.text_features(tokenize(tiny_tokenizer(248), texts, length=248, pad_id=0))
    np.testing.assert_allclose(one, torch.nn.functional.normalize(padded, dim=-1).numpy(), atol=1e-6)


def test_longer_captions_are_cut_with_their_end_token_and_counted(folder, tmp_path):
    text = caption(1) * 8
    towers = load_towers(folder)
    (row,), (length,) = towers.ids_of([text])
    assert row == tokenize(tiny_tokenizer(248), [text], length=248, pad_id=0)[0].tolist()
    assert (len(row), row[-1]) == (248, END)
    assert length > 248
    draw(tmp_path / "a.png", 1)
    records = ListedRecords("own", tuple(Record(f"{n}", tmp_path / "a.png", (text,)) for n in range(2)))
    result = measure(folder, records)
    assert result.encoders["one"]["sets"]["own"]["probes"]["keep"]["tokens"]["cut"] == 2
    assert "own: 2 captions longer than the window of one: cut, the end token kept." in result.notes


def test_pictures_that_cannot_be_read_are_left_out_and_counted(folder, tmp_path):
    root = make_urban1k(tmp_path / "urban")
    whole = (root / "image" / "2.jpg").read_bytes()
    (root / "image" / "2.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "image" / "3.jpg").write_bytes(b"")
    (root / "image" / "5.jpg").write_bytes(whole[:0] + b"no picture at all")
    (root / "image" / "4.jpg").unlink()
    records = open_records(f"urban1k:{root}")
    result = measure(folder, records)
    found = result.encoders["one"]["sets"]["urban1k"]
    assert found["pool"] == {"images": 4, "captions": 4}
    assert found["left_out"] == {"missing picture": 1}
    assert found["faults"] == {"truncated picture": 1, "empty file": 1, "not a picture": 1}
    loud = [note for note in result.notes if "the numbers cannot be compared" in note]
    assert len(loud) == 1
    assert loud[0].startswith("urban1k has 4 pictures and 4 captions (1 empty file, 1 missing picture, 1 not a picture")
    assert "published results have 1,000 pictures and 1,000 captions" in loud[0]


def test_repeated_pictures_and_captions_are_said_and_cost_the_first_rank(folder, tmp_path):
    draw(tmp_path / "a.png", 1)
    draw(tmp_path / "b.png", 1)
    records = ListedRecords(
        "own", (Record("a", tmp_path / "a.png", ("A cat.",)), Record("b", tmp_path / "b.png", ("A cat.",)))
    )
    result = measure(folder, records)
    found = result.encoders["one"]["sets"]["own"]
    assert found["repeated"] == {"repeated picture": 1, "repeated caption": 1}
    assert found["probes"]["keep"]["t2i"]["r1"] == found["probes"]["keep"]["i2t"]["r1"] == 0
    assert "own: 1 repeated caption, 1 repeated picture; equal candidates tie" in result.notes[0]


def test_a_set_without_usable_pictures_is_refused(folder):
    broken = ListedRecords("own", (Record("a", Encoded(b"x", "a"), ("A cat.",)),), left_out={"no caption": 2})
    with pytest.raises(ValueError, match=r"own has no picture with a caption \(2 no caption, 1 not a picture\); corr"):
        measure(folder, broken)
    with pytest.raises(ValueError, match=r"own has no picture with a caption \(the list is empty\)"):
        measure(folder, ListedRecords("own", ()))


def test_features_that_are_not_finite_are_refused(tmp_path):
    save_clip_model(tmp_path)
    towers = load_towers(tmp_path)
    with torch.no_grad():
        towers.model.text_projection.weight[0, 0] = float("nan")
    own = Embedder(towers, FeatureCache(None, ""), Processes())
    with pytest.raises(ValueError, match="gives features that are NaN or infinite; its training went wrong"):
        own.texts(["A cat."])
    with torch.no_grad():
        towers.model.visual_projection.weight[0, 0] = float("inf")
    with pytest.raises(ValueError, match="gives features that are NaN or infinite; its training went wrong"):
        own.pictures(ListedRecords("own", (Record("a", Encoded(PICTURE, "a"), ("A cat.",)),)), Faults(1))


def test_a_report_tells_sets_of_other_pictures_apart(folder, tmp_path):
    hashes = []
    for number in (1, 1, 2):
        draw(tmp_path / "a.png", number)
        records = ListedRecords("own", (Record("a", tmp_path / "a.png", ("A cat.",)),))
        found = measure(folder, records).encoders["one"]["sets"]["own"]
        hashes.append((found["texts_sha256"], found["pictures_sha256"]))
    assert hashes[0] == hashes[1]
    assert hashes[0][0] == hashes[2][0]
    assert hashes[0][1] != hashes[2][1]


def test_a_lone_surrogate_is_read_as_a_question_mark_and_counted(folder, tmp_path):
    draw(tmp_path / "a.png", 1)
    result = measure(folder, ListedRecords("own", (Record("a", tmp_path / "a.png", ("A \ud800 cat.",)),)))
    assert result.encoders["one"]["sets"]["own"]["mended"] == {"caption with characters that are not text": 1}
    assert "1 caption with characters that are not text, read with question marks" in result.notes[0]


def test_two_encoders_have_a_paired_difference(folder, tmp_path):
    other = tmp_path / "other"
    save_clip_model(other, length=77, seed=5)
    records = open_records(str(make_folder(tmp_path / "data")))
    names = {"a": embedder(folder), "b": embedder(other)}
    measured = measure_sets(names, [records], Plan(samples=200))
    ((pair, found),) = measured.differences["folder"].items()
    assert pair == "a - b"
    values = [measured.encoders[name]["sets"]["folder"]["probes"]["keep"]["t2i"]["mean_rank"] for name in names]
    low, high = found["keep"]["t2i"]["intervals"]["mean_rank"]
    assert low <= values[0] - values[1] <= high
    again = measure_sets({"a": names["a"], "b": names["a"]}, [records], Plan(samples=50))
    assert again.differences["folder"]["a - b"]["keep"]["t2i"]["intervals"]["r1"] == [0, 0]


def test_preprocessing_is_read_from_the_folder(folder, tmp_path):
    save_clip_model(tmp_path)
    config = {"crop_size": {"height": 30, "width": 30}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config | {"size": {"shortest_edge": 30}}))
    found = load_towers(tmp_path).preprocessing
    assert (found.mean, found.std, found.source) == ((0.5,) * 3, (0.25,) * 3, "preprocessor_config.json")
    white = found.normalise([np.full((30, 30, 3), 255, np.uint8)])
    assert white.unique().tolist() == [2.0]
    edit_json(tmp_path / "preprocessor_config.json", size=224, crop_size=224)
    with pytest.raises(ValueError, match="makes pictures of 224 x 224 but the image tower reads 30 x 30; copy both"):
        load_towers(tmp_path)
    edit_json(tmp_path / "preprocessor_config.json", image_mean=None)
    with pytest.raises(ValueError, match="does not say size, image_mean and image_std"):
        load_towers(tmp_path)
    assert load_towers(folder).preprocessing.source == "CLIP's own (no preprocessor_config.json)"


@pytest.mark.skipif(not GOLDEN.is_dir(), reason=f"{GOLDEN} is not there")
def test_the_features_are_those_of_long_clips_own_code(tmp_path):
    from debias_sd.checkpoints.convert import convert_checkpoint

    convert_checkpoint(GOLDEN / "longclip-tiny.pt", tmp_path / "out", image_tower=True, heads=1, dtype="float32")
    towers = load_towers(tmp_path / "out")
    assert isinstance(towers, ClipTowers)
    expected = load_file(GOLDEN / "longclip-tiny-expected.safetensors")
    texts = list(json.loads((GOLDEN / "longclip-tiny-texts.json").read_text()).values())
    ids = expected["ids"].long()
    torch.testing.assert_close(towers.text_features(ids), expected["text_features"], atol=2e-5, rtol=0)
    torch.testing.assert_close(towers.image_features(expected["images"]), expected["image_features"], atol=2e-5, rtol=0)
    same = [n for n, row in enumerate(towers.ids_of(texts)[0]) if row == ids[n, : len(row)].tolist()]
    assert len(same) >= 10
    found = Embedder(towers, FeatureCache(None, ""), Processes()).texts([texts[n] for n in same])
    wanted = torch.nn.functional.normalize(expected["text_features"][same], dim=-1)
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-5)
