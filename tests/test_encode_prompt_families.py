"""`encode_prompt` for every family equals the pipeline's own encoding where one window holds the text."""

import pytest
import torch
from diffusers import (
    FluxControlPipeline,
    LatentConsistencyModelPipeline,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLInpaintPipeline,
)
from tiny import LONG_PROMPT
from tiny_pipelines import FAMILIES, WIDTH_T5, draw_family, tiny_flux, tiny_sd3, tiny_sd_pipeline, tiny_sdxl

from debias_sd import encode_prompt, with_text_encoder

SHORT = "a red cat"
SIDES = ("", "negative_")
ADAPTER_PARTS = ("image_encoder", "feature_extractor")
BATCHES = [(SHORT, "blurry"), ("", ""), (["frog", "a toad on a leaf", ""], ["bird", "a fish", "dog"])]


@pytest.fixture(scope="module")
def pipes():
    """One pipeline of each family, 77 tokens, and one with 248."""
    made = {}

    def get(name):
        if name not in made:
            family, _, length = name.partition("-")
            made[name] = lengthened(get(family)) if length else FAMILIES[family]()
        return made[name]

    return get


def lengthened(pipe):
    """The same with its own encoders at 248 positions; the refiner has no first one."""
    return with_text_encoder(pipe, *(["stretched"] if pipe.text_encoder else []))


def own(pipe, prompt, negative=None, **options):
    """What the pipeline's own `encode_prompt` gives, by the names that its call takes; without a gradient."""
    names = ["prompt_embeds", "negative_prompt_embeds", "pooled_prompt_embeds", "negative_pooled_prompt_embeds"]
    with torch.no_grad():
        if "Flux" in type(pipe).__name__:
            result = {}
            for text, prefix in zip((prompt, negative), SIDES, strict=True):
                if text is not None:
                    states, pooled, _ = pipe.encode_prompt(text, device="cpu", **options)
                    result |= {f"{prefix}prompt_embeds": states, f"{prefix}pooled_prompt_embeds": pooled}
            return result
        arguments = {
            "prompt": prompt,
            "negative_prompt": negative,
            "device": "cpu",
            "do_classifier_free_guidance": True,
        }
        arguments |= {"num_images_per_prompt": 1} | options
        if "StableDiffusion3" in type(pipe).__name__:
            arguments |= {"prompt_2": None, "prompt_3": None} | options
        return dict(zip(names, pipe.encode_prompt(**arguments), strict=False))


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("family", [*FAMILIES, *(f"{name}-248" for name in FAMILIES)])
@pytest.mark.parametrize(("prompt", "negative"), BATCHES)
def test_one_window_equals_the_pipelines_own_encoding(pipes, family, prompt, negative):
    pipe = pipes(family)
    assert_same(encode_prompt(pipe, prompt, negative), own(pipe, prompt, negative))
    repeated = encode_prompt(pipe, prompt, negative, num_images_per_prompt=3)
    assert_same(repeated, own(pipe, prompt, negative, num_images_per_prompt=3))


@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_negative_prompt_it_is_the_pipelines_default(pipes, family):
    pipe = pipes(family)
    found = encode_prompt(pipe, [SHORT, "dog"])
    assert_same(found, own(pipe, [SHORT, "dog"]))
    if family == "sdxl":  # force_zeros_for_empty_prompt
        assert not found["negative_prompt_embeds"].any()
        assert not found["negative_pooled_prompt_embeds"].any()
        assert encode_prompt(pipe, SHORT, "")["negative_prompt_embeds"].any()
    assert ("negative_prompt_embeds" in found) == (family != "flux")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_picture_is_that_of_the_prompt_itself(pipes, family):
    pipe = pipes(family)
    given = {"negative_prompt": "blurry"} if family != "flux" else {}
    embeddings = encode_prompt(pipe, SHORT, *given.values())
    assert torch.equal(draw_family(pipe, **embeddings), draw_family(pipe, prompt=SHORT, **given))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("prompt", "negative"),
    [(LONG_PROMPT * 3, ""), (SHORT, LONG_PROMPT * 3), ([SHORT, LONG_PROMPT * 2], LONG_PROMPT * 4), ("a " * 600, None)],
)
def test_both_sides_have_one_length_and_give_a_picture(pipes, family, prompt, negative):
    pipe = pipes(f"{family}-248")
    if family == "flux" and negative is not None:
        found = encode_prompt(pipe, prompt, negative)
        pictures = draw_family(pipe, true_cfg_scale=2.0, **found)
    else:
        found = encode_prompt(pipe, prompt, negative)
        pictures = draw_family(pipe, **found)
    assert torch.isfinite(pictures).all()
    assert len(pictures) == (len(prompt) if isinstance(prompt, list) else 1)
    for name, tensor in found.items():
        assert not tensor.requires_grad
        assert tensor.shape == found[name.removeprefix("negative_")].shape
    if "pooled_prompt_embeds" in found:
        assert found["pooled_prompt_embeds"].ndim == 2
    if family in ("sd", "sd2", "sdxl", "refiner"):
        assert found["prompt_embeds"].shape[1] % 248 == 0
        assert found["prompt_embeds"].shape[1] > 248


@pytest.mark.parametrize("family", ["sdxl", "sd3"])
def test_texts_of_their_own_for_the_other_encoders(pipes, family):
    pipe = pipes(family)
    texts = {"prompt_2": "a dog", "negative_prompt_2": "dark"}
    if family == "sd3":
        texts |= {"prompt_3": "a bird", "negative_prompt_3": "bright"}
    assert_same(encode_prompt(pipe, SHORT, "blurry", **texts), own(pipe, SHORT, "blurry", **texts))
    windows = encode_prompt(pipe, SHORT, "blurry", prompt_2=LONG_PROMPT)["prompt_embeds"]
    same = encode_prompt(pipe, LONG_PROMPT, "blurry")["prompt_embeds"]
    joined = slice(32, 80)  # the columns of the second encoder
    torch.testing.assert_close(windows[:, : 77 * 2, joined], same[:, : 77 * 2, joined])


def test_every_clip_encoder_reads_the_same_text_in_each_window(pipes):
    pipe = pipes("sdxl")
    found = encode_prompt(pipe, "A cat runs. " + "dog " * 70 + ". A bird flies.", "")
    parts = [encode_prompt(pipe, text, "") for text in ("A cat runs. " + "dog " * 70 + ".", "A bird flies.")]
    joined = torch.cat([part["prompt_embeds"] for part in parts], dim=1)
    torch.testing.assert_close(found["prompt_embeds"], joined)
    torch.testing.assert_close(found["pooled_prompt_embeds"], parts[0]["pooled_prompt_embeds"])
    mean = encode_prompt(pipe, "A cat runs. " + "dog " * 70 + ". A bird flies.", "", pooled="mean")
    torch.testing.assert_close(mean["pooled_prompt_embeds"], sum(part["pooled_prompt_embeds"] for part in parts) / 2)
    assert torch.equal(mean["negative_pooled_prompt_embeds"], found["negative_pooled_prompt_embeds"])


@pytest.mark.parametrize("family", ["sd", "sd2", "sdxl", "refiner", "sd3"])
@pytest.mark.parametrize("skip", [0, 1, 2])
def test_clip_skip(pipes, family, skip):
    pipe = pipes(f"{family}-248")
    diffusers = own(pipe, SHORT, "blurry", clip_skip=skip)
    assert_same(encode_prompt(pipe, SHORT, "blurry", clip_skip=skip, negative_clip_skip=None), diffusers)
    both = encode_prompt(pipe, SHORT, "blurry", clip_skip=skip)
    as_prompt = own(pipe, "blurry", "", clip_skip=skip)
    assert torch.equal(both["prompt_embeds"], diffusers["prompt_embeds"])
    assert torch.equal(both["negative_prompt_embeds"], as_prompt["prompt_embeds"])
    if skip:
        assert not torch.equal(both["negative_prompt_embeds"], diffusers["negative_prompt_embeds"])
    long = encode_prompt(pipe, LONG_PROMPT * 2, "blurry", clip_skip=skip, negative_clip_skip=None)
    assert long["negative_prompt_embeds"].shape == long["prompt_embeds"].shape


@pytest.mark.parametrize("family", ["sd-248", "sdxl-248", "sd3-248", "flux-248"])
def test_auto_takes_77_when_everything_fits(pipes, family):
    pipe = pipes(family)
    full, auto = (encode_prompt(pipe, SHORT, "blurry", window=window) for window in (248, "auto"))
    if family.startswith("sd") and family != "sd3-248":
        for name in ("prompt_embeds", "negative_prompt_embeds"):
            assert auto[name].shape[1] == 77
            torch.testing.assert_close(auto[name], full[name][:, :77])
    for name in ("pooled_prompt_embeds", "negative_pooled_prompt_embeds"):
        if name in full:
            torch.testing.assert_close(auto[name], full[name])
    for texts in ((LONG_PROMPT, ""), (SHORT, LONG_PROMPT), ([SHORT, LONG_PROMPT], "")):
        assert_same(encode_prompt(pipe, *texts, window="auto"), encode_prompt(pipe, *texts))


@pytest.mark.parametrize("make", [tiny_sd3, tiny_flux])
def test_t5_reads_the_text_to_its_end(make):
    pipe = make()
    own_length = 256 if make is tiny_sd3 else 512
    clip = 77 if make is tiny_sd3 else 0
    encoder, tokenizer = (
        (pipe.text_encoder_3, pipe.tokenizer_3) if make is tiny_sd3 else (pipe.text_encoder_2, pipe.tokenizer_2)
    )
    short = encode_prompt(pipe, SHORT, "blurry")
    assert short["prompt_embeds"].shape == (1, clip + own_length, WIDTH_T5)
    assert encode_prompt(pipe, SHORT, max_sequence_length=64)["prompt_embeds"].shape[1] == clip + 64
    text = " ".join(f"word{number}" for number in range(200))
    ids = tokenizer(text, return_tensors="pt", verbose=False).input_ids
    assert ids.shape[1] > 512
    found = encode_prompt(pipe, text, "blurry")
    windows = found["prompt_embeds"].shape[1] - ids.shape[1]
    assert (windows > 77 and windows % 77 == 0) if clip else windows == 0
    with torch.no_grad():
        assert torch.equal(found["prompt_embeds"][:, windows:], encoder(ids)[0])
    assert found["negative_prompt_embeds"].shape == found["prompt_embeds"].shape


def test_stable_diffusion_3_without_t5_and_names_that_a_call_does_not_take():
    pipe = tiny_sd3(t5=False)
    assert_same(encode_prompt(pipe, SHORT, "blurry"), own(pipe, SHORT, "blurry"))
    assert encode_prompt(pipe, LONG_PROMPT, max_sequence_length=16)["prompt_embeds"].shape == (1, 2 * 77 + 16, WIDTH_T5)
    parts = tiny_sd_pipeline().components
    lcm = LatentConsistencyModelPipeline(**parts, requires_safety_checker=False)
    assert encode_prompt(lcm, SHORT).keys() == {"prompt_embeds"}
    parts = tiny_flux().components
    control = FluxControlPipeline(**{name: parts[name] for name in parts if name not in ADAPTER_PARTS})
    assert encode_prompt(control, SHORT).keys() == {"prompt_embeds", "pooled_prompt_embeds"}
    for pipe in (lcm, control):
        with pytest.raises(ValueError, match="takes no negative prompt; leave it out"):
            encode_prompt(pipe, SHORT, "blurry")


@pytest.mark.parametrize("kind", [StableDiffusionXLImg2ImgPipeline, StableDiffusionXLInpaintPipeline])
def test_siblings_of_sdxl(kind):
    from tiny_pipelines import picture

    pipe = with_text_encoder(kind(**tiny_sdxl().components), "stretched")
    pipe.set_progress_bar_config(disable=True)
    inputs = {"image": picture(), "strength": 1.0} | ({"mask_image": picture()} if "Inpaint" in kind.__name__ else {})
    found = encode_prompt(pipe, LONG_PROMPT, "blurry, " * 300)
    generator = torch.Generator().manual_seed(0)
    assert pipe(**inputs, **found, num_inference_steps=2, generator=generator, output_type="pt").images.isfinite().all()


@pytest.mark.parametrize(
    ("family", "arguments", "sentence"),
    [
        ("sd", {"prompt_2": "dog"}, "prompt_2 is for text encoder 2 and this pipeline has 1; leave it out"),
        ("refiner", {"negative_prompt": "a", "negative_prompt_2": "b"}, "negative_prompt_2 is for text encoder 2"),
        ("sdxl", {"prompt_2": ["a", "b"]}, "1 prompt and 2 texts for another text encoder are given"),
        ("sdxl", {"negative_prompt_2": "b"}, "comes without negative_prompt; give both"),
        ("flux", {"clip_skip": 1}, "FLUX reads no layers of its CLIP encoder; leave clip_skip out"),
        ("sd", {"clip_skip": 4}, "clip_skip is 4, this pipeline can skip 0 to 3 layers"),
        ("sdxl", {"clip_skip": 3}, "0 to 2 layers"),
        ("sd", {"clip_skip": -1}, "clip_skip is -1"),
        ("sd", {"clip_skip": 1, "negative_clip_skip": "all"}, "clip_skip is 'all'"),
        ("sd", {"max_sequence_length": 64}, "max_sequence_length is for T5, which StableDiffusionPipeline does not"),
        ("sd3", {"max_sequence_length": 0}, "max_sequence_length is 0, it starts at 1"),
        ("sdxl", {"pooled": "last"}, "pooled is 'last'"),
        ("sdxl", {"num_images_per_prompt": 0}, "num_images_per_prompt 0"),
        ("sdxl", {"num_images_per_prompt": True}, "num_images_per_prompt True"),
        ("sd", {"weighting": "compel"}, "weighting is 'compel' but must be None or 'a1111'"),
        ("sd", {"window": "long"}, "window is 'long', this text encoder reads 3 to 77 tokens"),
        ("sd", {"lora_scale": float("nan")}, "lora_scale is nan but must be a finite number"),
    ],
)
def test_what_the_pipeline_cannot_take_is_one_sentence(pipes, family, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        encode_prompt(pipes(family), SHORT, **arguments)
