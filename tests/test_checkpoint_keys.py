"""Renaming between transformers' and OpenAI's naming: exact both ways, nothing lost, every fault named."""

import random
from pathlib import Path

import open_clip
import pytest
import torch
from safetensors.torch import load_file

from debias_sd.checkpoints.keys import (
    clip_to_openai,
    text_from_openai,
    text_to_openai,
    vision_from_openai,
    vision_to_openai,
)
from debias_sd.encoder_folder import embedded_folder
from tests.tiny import END, VOCABULARY, WIDTH, tiny_clip_model, tiny_text_encoder, tiny_tokenizer

GOLDEN = Path(__file__).parent.parent.parent / "shared" / "golden" / "longclip-tiny.pt"


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether the keys, dtypes and bits are equal."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def parts(state: dict[str, torch.Tensor], *prefixes: str) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in state.items() if name.startswith(prefixes)}


@pytest.fixture(scope="module")
def clip() -> dict[str, torch.Tensor]:
    """A whole `CLIPModel`, 3 text and 2 image blocks."""
    return tiny_clip_model(248).state_dict()


@pytest.fixture
def text(clip) -> dict[str, torch.Tensor]:
    return parts(clip, "text_model.", "text_projection.", "logit_scale")


@pytest.fixture
def image(clip) -> dict[str, torch.Tensor]:
    return parts(clip, "vision_model.", "visual_projection.")


def test_names_and_shapes_of_a_text_tower(text):
    renamed = text_to_openai(text)
    block = "transformer.resblocks.0."
    assert {name: tuple(tensor.shape) for name, tensor in renamed.items() if "resblocks" not in name} == {
        "token_embedding.weight": (VOCABULARY, WIDTH),
        "positional_embedding": (248, WIDTH),
        "ln_final.weight": (WIDTH,),
        "ln_final.bias": (WIDTH,),
        "text_projection": (WIDTH, 16),
        "logit_scale": (),
    }
    assert {name: tuple(tensor.shape) for name, tensor in renamed.items() if name.startswith(block)} == {
        block + "ln_1.weight": (WIDTH,),
        block + "ln_1.bias": (WIDTH,),
        block + "attn.in_proj_weight": (3 * WIDTH, WIDTH),
        block + "attn.in_proj_bias": (3 * WIDTH,),
        block + "attn.out_proj.weight": (WIDTH, WIDTH),
        block + "attn.out_proj.bias": (WIDTH,),
        block + "ln_2.weight": (WIDTH,),
        block + "ln_2.bias": (WIDTH,),
        block + "mlp.c_fc.weight": (37, WIDTH),
        block + "mlp.c_fc.bias": (37,),
        block + "mlp.c_proj.weight": (WIDTH, 37),
        block + "mlp.c_proj.bias": (WIDTH,),
    }
    assert len(renamed) == 6 + 3 * 12


def test_queries_keys_and_values_are_fused_in_this_order(text):
    fused = text_to_openai(text)["transformer.resblocks.1.attn.in_proj_weight"]
    layer = "text_model.encoder.layers.1.self_attn."
    for index, part in enumerate("qkv"):
        torch.testing.assert_close(
            fused[index * WIDTH : (index + 1) * WIDTH], text[layer + part + "_proj.weight"], rtol=0, atol=0
        )


def clip_from_openai(state):
    """A whole CLIP back in transformers' naming: each tower by its own function."""
    image = {name: tensor for name, tensor in state.items() if name.startswith("visual.")}
    return text_from_openai({name: state[name] for name in state.keys() - image}) | vision_from_openai(image)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_there_and_back_is_exact(clip, dtype):
    state = {name: tensor.to(dtype) for name, tensor in clip.items()}
    renamed = clip_to_openai(state)
    assert same(clip_from_openai(renamed), state)
    assert same(clip_to_openai(clip_from_openai(renamed)), renamed)


def test_each_tower_alone_is_exact_shares_no_memory_and_leaves_its_input(text, image):
    assert same(text_from_openai(text_to_openai(text)), text)
    assert same(vision_from_openai(vision_to_openai(image)), image)
    split = text_from_openai(text_to_openai(text))
    pointers = [tensor.data_ptr() for tensor in split.values()]
    assert len(set(pointers)) == len(pointers)
    assert all(tensor.is_contiguous() for tensor in split.values())
    before = {name: tensor.clone() for name, tensor in text.items()}
    text_to_openai(text)
    assert same(text, before)


@pytest.mark.parametrize("name", ["base", "long-clip", "debias"])
def test_the_shipped_encoders_are_exact(name):
    state = load_file(embedded_folder(name) / "model.safetensors")
    renamed = clip_to_openai(state)
    assert same(clip_from_openai(renamed), state)
    assert renamed["visual.conv1.weight"].shape == (128, 3, 16, 16)


def test_the_flat_layout_of_a_tower_gives_the_same(text, image):
    flat = {name.removeprefix("text_model."): tensor for name, tensor in text.items()}
    assert same(text_to_openai(flat), text_to_openai(text))
    assert same(text_to_openai(tiny_text_encoder(77).state_dict()), text_to_openai(
        {"text_model." + name: tensor for name, tensor in tiny_text_encoder(77).state_dict().items()}
    ))  # fmt: skip
    flat = {name.removeprefix("vision_model."): tensor for name, tensor in image.items()}
    assert same(vision_to_openai(flat), vision_to_openai(image))


def test_projection_and_scale_may_be_missing_and_the_order_of_the_keys_does_not_matter(text, image):
    bare = parts(text, "text_model.")
    renamed = text_to_openai(bare)
    assert "text_projection" not in renamed
    assert "logit_scale" not in renamed
    assert same(text_from_openai(renamed), bare)
    bare = parts(image, "vision_model.")
    assert same(vision_from_openai(vision_to_openai(bare)), bare)
    names = list(text)
    random.Random(0).shuffle(names)
    shuffled = {name: text[name] for name in names}
    assert list(text_to_openai(shuffled)) == list(text_to_openai(text))


@torch.no_grad()
def test_open_clip_loads_it_strictly_and_gives_the_same_features(clip):
    ours = tiny_clip_model(248, eos_token_id=END).eval()
    theirs = open_clip.CLIP(
        embed_dim=16,
        vision_cfg={"image_size": 30, "patch_size": 15, "width": WIDTH, "layers": 2, "head_width": 8,
                    "mlp_ratio": 37 / WIDTH},
        text_cfg={"context_length": 248, "vocab_size": VOCABULARY, "width": WIDTH, "heads": 4, "layers": 3,
                  "mlp_ratio": 37 / WIDTH},
        quick_gelu=True,
    ).eval()  # fmt: skip
    theirs.load_state_dict(clip_to_openai(ours.state_dict()), strict=True)
    words = "a red fishing boat lies at the stone pier and two gulls sit on the mast " * 8
    ids = tiny_tokenizer(248)([words, "a cat"], padding="max_length", truncation=True, return_tensors="pt")["input_ids"]
    images = torch.randn(2, 3, 30, 30, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours.get_text_features(ids).pooler_output, theirs.encode_text(ids), rtol=0, atol=1e-5)
    mine = ours.get_image_features(images).pooler_output
    torch.testing.assert_close(mine, theirs.encode_image(images), rtol=0, atol=1e-5)


def test_a_checkpoint_of_long_clips_own_making_is_exact():
    if not GOLDEN.is_file():
        pytest.skip(f"{GOLDEN} is not there")
    state = torch.load(GOLDEN, weights_only=True)
    del state["positional_embedding_res"]
    renamed = clip_from_openai(state)
    assert renamed["text_model.embeddings.token_embedding.weight"].dtype == torch.float16
    assert same(clip_to_openai(renamed), state)


LAYER = "text_model.encoder.layers.1."


@pytest.mark.parametrize(
    "name", ["text_model.embeddings.token_embedding.weight", LAYER + "self_attn.k_proj.bias", LAYER + "mlp.fc2.weight"]
)
def test_a_missing_key_is_named(text, name):
    del text[name]
    with pytest.raises(ValueError, match=f"^the text tower lacks {name}; give the complete checkpoint.$"):
        text_to_openai(text)


def test_missing_blocks_and_tensors_without_numbers_are_refused(text):
    left = {name: tensor for name, tensor in text.items() if not name.startswith(LAYER)}
    with pytest.raises(ValueError, match=r"lacks text_model\.encoder\.layers\.1\.layer_norm1\.weight"):
        text_to_openai(left)
    bare = {name: tensor for name, tensor in text.items() if ".layers." not in name}
    with pytest.raises(ValueError, match=r"lacks text_model\.encoder\.layers\.0\.layer_norm1\.weight; "):
        text_to_openai(bare)
    text["text_model.embeddings.position_embedding.weight"] = torch.zeros(0, WIDTH)
    with pytest.raises(ValueError, match=r"position_embedding\.weight is \[0, 32\], expected \[positions, width\]"):
        text_to_openai(text)


def test_a_number_beyond_all_blocks_costs_nothing(text):
    text["text_model.encoder.layers.99999999999.layer_norm1.weight"] = torch.zeros(WIDTH)
    with pytest.raises(ValueError, match=r"lacks text_model\.encoder\.layers\.3\.layer_norm1\.weight"):
        text_to_openai(text)


@pytest.mark.parametrize(
    "name",
    ["text_model.embeddings.position_ids", LAYER + "self_attn.q_proj.theta", "vision_model.post_layernorm.bias", "x"],
)
def test_an_unknown_key_is_named(text, name):
    text[name] = torch.zeros(WIDTH)
    with pytest.raises(ValueError, match=rf"^the text tower holds an unknown tensor, {name} \(1 in all\); "):
        text_to_openai(text)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("text_model.embeddings.position_embedding.weight", (248,), r"\[positions, width\]"),
        (LAYER + "self_attn.v_proj.weight", (WIDTH, 16), r"\[32, 32\]"),
        (LAYER + "mlp.fc2.weight", (WIDTH, 36), r"\[32, 37\]"),
        ("text_projection.weight", (16, 31), r"\[projection, 32\]"),
        ("logit_scale", (1,), r"\[\]"),
    ],
)
def test_a_misshapen_key_is_named(text, name, shape, expected):
    text[name] = torch.zeros(shape)
    with pytest.raises(ValueError, match=rf"^{name} is \[.*\], expected {expected} as in the rest of the text tower; "):
        text_to_openai(text)


def test_faults_in_openais_naming_are_named(text, image):
    renamed = text_to_openai(text)
    fused = "transformer.resblocks.2.attn.in_proj_weight"
    for shape, expected in (((95, WIDTH), r"\[95, 32\]"), ((2 * WIDTH, WIDTH), r"\[64, 32\]"), ((), r"\[\]")):
        with pytest.raises(ValueError, match=rf"^{fused} is {expected}, expected \[3 x 32, 32\] as in"):
            text_from_openai(renamed | {fused: torch.zeros(shape)})
    with pytest.raises(ValueError, match="^the text tower holds an unknown tensor, positional_embedding_res"):
        text_from_openai(renamed | {"positional_embedding_res": torch.zeros(248, WIDTH)})
    renamed = vision_to_openai(image)
    del renamed["visual.class_embedding"]
    with pytest.raises(ValueError, match=r"^the image tower lacks visual\.class_embedding; "):
        vision_from_openai(renamed)
    with pytest.raises(ValueError, match=r"^the image tower lacks visual\.positional_embedding; "):
        vision_from_openai({"visual.layer1.0.conv1.weight": torch.zeros(1)})


def test_a_key_of_several_lines_is_one_line_in_the_message(text):
    text["evil\n\x1b[31mname\ud800"] = torch.zeros(1)
    with pytest.raises(
        ValueError, match=r"^the text tower holds an unknown tensor, 'evil\\n\\x1b\[31mname\\ud800' \(1"
    ):
        text_to_openai(text)


def test_parts_of_two_dtypes_have_no_fused_tensor(text):
    name = LAYER + "self_attn.q_proj.weight"
    text[name] = text[name].half()
    with pytest.raises(ValueError, match=rf"^{name} is torch\.float16 and another of its queries, keys and values"):
        text_to_openai(text)


def test_a_tensor_named_twice_is_refused(text):
    text["final_layer_norm.bias"] = torch.zeros(WIDTH)
    with pytest.raises(
        ValueError, match=r"^the text tower names a tensor both with and without text_model\.; keep one"
    ):
        text_to_openai(text)
