"""Dual encoders of every family, from their own files to ranks: each is ranked as its own library ranks it."""

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_checkpoints import clone, long_clip, long_clip_features, padded, save_safetensors, tiny_open_clip
from tiny_sets import caption, check_ranks, make_folder
from tiny_siglip import make_pictures, make_siglip
from transformers import SiglipModel

from debias_sd.checkpoints.convert import convert_checkpoint
from debias_sd.datasets.names import open_records
from debias_sd.datasets.pictures import read_rgb, square
from debias_sd.measure.embedding import Embedder, FeatureCache
from debias_sd.measure.processes import Processes
from debias_sd.measure.ranks import retrieval_ranks
from debias_sd.measure.retrieval import Plan, measure_sets
from debias_sd.measure.towers import load_towers

MEAN, STD = torch.tensor([0.48145466, 0.4578275, 0.40821073]), torch.tensor([0.26862954, 0.26130258, 0.27577711])


def ranks_in(folder, data) -> dict:
    """What the report says of a folder's ranks, with the folder's kind."""
    embedder = Embedder(load_towers(folder), FeatureCache(None, ""), Processes())
    result = measure_sets({"one": embedder}, [open_records(str(data))], Plan(samples=5)).encoders["one"]
    return result["sets"]["folder"]["probes"]["keep"] | {"kind": result["kind"], "window": result["window"]}


def same_ranks(found: dict, images: torch.Tensor, texts: torch.Tensor) -> None:
    images, texts = (torch.nn.functional.normalize(rows, dim=-1).numpy() for rows in (images, texts))
    check_ranks(found, images, texts, np.arange(len(texts)))
    assert len(set(retrieval_ranks(images, texts, np.arange(len(texts))).t2i)) > 2  # the ranks tell pictures apart


@pytest.mark.parametrize("family", ["openclip", "longclip", "smartclip"])
def test_converted_checkpoints(family, tmp_path):
    """OpenCLIP, and both families of 248 positions with a second table; SmartCLIP's file also has a mask net."""
    model = tiny_open_clip(length=77 if family == "openclip" else 248)
    state = clone(model.state_dict()) if family == "openclip" else long_clip(model)
    if family == "smartclip":
        state |= {"mask_net.0.weight": torch.zeros(3, 3), "mask_net.0.bias": torch.zeros(3)}
    path = save_safetensors(state, tmp_path / "model.safetensors")
    convert_checkpoint(path, tmp_path / "out", image_tower=True, heads=1, activation="gelu")
    data = make_folder(tmp_path)
    found = ranks_in(tmp_path / "out", data)
    assert (found["kind"], found["window"]) == ("CLIP", model.context_length)
    rows, _ = load_towers(tmp_path / "out").ids_of([caption(number) for number in range(12)])
    ids = torch.cat([padded(torch.tensor([row]), model.context_length) for row in rows])
    pixels = [torch.from_numpy(square(read_rgb(tmp_path / f"{number}.png"), size=32).copy()) for number in range(12)]
    pixels = ((torch.stack(pixels) / 255 - MEAN) / STD).permute(0, 3, 1, 2)
    with torch.no_grad():
        texts = model.encode_text(ids) if family == "openclip" else long_clip_features(model, state, ids)
        same_ranks(found, model.encode_image(pixels), texts)


@pytest.mark.parametrize("style", ["siglip", "siglip2"])
def test_siglip_folders(style, tmp_path):
    folder = make_siglip(tmp_path / "model", style)
    make_pictures(tmp_path / "data")
    found = ranks_in(folder, tmp_path / "data")
    assert (found["kind"], found["window"]) == ("SigLIP", 64)
    model, records = SiglipModel.from_pretrained(folder).eval(), open_records(str(tmp_path / "data"))
    pixels = [Image.open(tmp_path / "data" / f"{number}.png").resize((32, 32), 2) for number in range(12)]
    pixels = torch.stack([torch.from_numpy(np.asarray(one).copy()) for one in pixels]).permute(0, 3, 1, 2) / 127.5 - 1
    ids, _ = load_towers(folder).ids_of([records[number].captions[0] for number in range(12)])
    with torch.no_grad():
        texts = model.get_text_features(input_ids=torch.tensor(ids)).pooler_output
        same_ranks(found, model.get_image_features(pixel_values=pixels).pooler_output, texts)
