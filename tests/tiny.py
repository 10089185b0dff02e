"""Tiny random models with the vocabulary and the config keys of the real ones: no download, milliseconds to build."""

import functools
import gzip
import json
from pathlib import Path

import open_clip
import torch
from diffusers import AutoencoderKL, DDIMScheduler, DiffusionPipeline, StableDiffusionPipeline, UNet2DConditionModel
from open_clip.tokenizer import bytes_to_unicode
from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from debias_sd.encoder import TextEncoder

WIDTH = 32
LONG_PROMPT = (
    "A wide view of a quiet harbour at dawn. A red fishing boat lies at the stone pier, its nets drying on deck. Two "
    "gulls sit on the mast and look at the water. Behind the pier stand seven narrow houses, each in another colour. "
    "The third one has a green door and a brass lamp. An old man in a blue jacket carries a basket of silver fish. A "
    "small dog with one white paw follows him closely. On the left, a child draws a whale on the ground with chalk. "
    "Far out, a lighthouse sends its last beam into the mist. The sky is pale orange, with one long thin cloud."
)


@functools.cache
def _merges() -> list[tuple[str, str]]:
    """CLIP's own, from the file inside the open_clip wheel."""
    packed = (Path(open_clip.__file__).parent / "bpe_simple_vocab_16e6.txt.gz").read_bytes()
    return [tuple(line.split()) for line in gzip.decompress(packed).decode().split("\n")[1 : 49152 - 256 - 2 + 1]]


@functools.cache
def _usual_merges() -> list[tuple[str, str]]:
    """The commonest, with CLIP's ids, and those of `LONG_PROMPT` and a few more words: these are as long as in CLIP."""
    words = LONG_PROMPT.lower() + " dragon runs flies easynegatives playing forest"
    own = [pair for pair in _merges()[3000:] if "".join(pair).removesuffix("</w>") in words]
    return [*_merges()[:3000], *own]


def _tokenizer(merges: list[tuple[str, str]], model_max_length: int, pad_token: str) -> CLIPTokenizer:
    alphabet = list(bytes_to_unicode().values())
    tokens = [*alphabet, *(byte + "</w>" for byte in alphabet), *("".join(pair) for pair in merges)]
    vocab = {token: index for index, token in enumerate([*tokens, "<|startoftext|>", "<|endoftext|>"])}
    return CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=model_max_length, pad_token=pad_token)


def clip_tokenizer(model_max_length: int = 77, *, pad_token: str = "<|endoftext|>") -> CLIPTokenizer:
    """The real CLIP tokenizer: 49,408 tokens, end token 49407."""
    return _tokenizer(_merges(), model_max_length, pad_token)


def tiny_tokenizer(model_max_length: int = 77, *, pad_token: str = "<|endoftext|>") -> CLIPTokenizer:
    """CLIP's with its commonest merges: read, copied and written in a fraction of the time."""
    return _tokenizer(_usual_merges(), model_max_length, pad_token)


START = 512 + len(_usual_merges())
END = START + 1
VOCABULARY = END + 1
CLIP_END = 49407  # of the real tokenizer


def text_config(length: int = 77, *, width: int = WIDTH, eos_token_id: int = END) -> dict[str, object]:
    """Keys of a CLIP text config; `eos_token_id=2` gives the ids that old ones have, `CLIP_END` the real vocabulary."""
    return {
        "vocab_size": CLIP_END + 1 if eos_token_id == CLIP_END else VOCABULARY,
        "hidden_size": width,
        "intermediate_size": 37,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": length,
        "projection_dim": 16,
        "bos_token_id": 0 if eos_token_id == 2 else eos_token_id - 1,
        "eos_token_id": eos_token_id,
        "pad_token_id": 1,
    }


def _loud(model: CLIPModel | CLIPTextModel) -> None:
    """CLIP's initialisation is so small that a random encoder gives nearly one vector for all texts."""
    embeddings = model.text_model.embeddings if isinstance(model, CLIPModel) else model.embeddings
    torch.nn.init.normal_(embeddings.token_embedding.weight, std=0.5)
    torch.nn.init.normal_(embeddings.position_embedding.weight, std=0.2)


def tiny_text_encoder(
    length: int = 248, *, width: int = WIDTH, seed: int = 0, eos_token_id: int = END
) -> CLIPTextModel:
    torch.manual_seed(seed)
    model = CLIPTextModel(CLIPTextConfig(**text_config(length, width=width, eos_token_id=eos_token_id)))
    _loud(model)
    return model.eval()


def tiny_encoder(length: int = 248, *, width: int = WIDTH, seed: int = 0) -> TextEncoder:
    return TextEncoder(tiny_text_encoder(length, width=width, seed=seed), tiny_tokenizer(length))


def tiny_clip_model(length: int = 77, *, seed: int = 0, eos_token_id: int = 2) -> CLIPModel:
    """A whole CLIPModel with an image tower, and the end token id of old configs."""
    torch.manual_seed(seed)
    vision = {
        "hidden_size": WIDTH,
        "intermediate_size": 37,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 30,
        "patch_size": 15,
    }
    text = text_config(length, eos_token_id=eos_token_id)
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))
    _loud(model)
    return model.eval()


def save_clip_model(folder: Path, *, length: int = 77, seed: int = 0) -> CLIPModel:
    """Write a whole CLIPModel folder, as training and the hub have them."""
    model = tiny_clip_model(length, seed=seed)
    model.save_pretrained(folder)
    tiny_tokenizer(length).save_pretrained(folder)
    return model


def edit_json(path: Path, **changes: object) -> None:
    """Change keys of a JSON file; None removes one."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def tiny_sd_pipeline(
    *, width: int = WIDTH, pad_token: str = "<|endoftext|>", seed: int = 1, eos_token_id: int = 2
) -> StableDiffusionPipeline:
    """A stock SD 1.x pipeline as diffusers' own tests build it: 64 x 64 pictures in milliseconds."""
    text_encoder = tiny_text_encoder(77, width=width, seed=seed, eos_token_id=eos_token_id)
    torch.manual_seed(seed)
    unet = UNet2DConditionModel(
        block_out_channels=(4, 8),
        layers_per_block=1,
        sample_size=32,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=width,
        norm_num_groups=2,
    )
    vae = AutoencoderKL(
        block_out_channels=(4, 8),
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        latent_channels=4,
        norm_num_groups=2,
    )
    scheduler = DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
    )
    pipe = StableDiffusionPipeline(
        vae=vae.eval(),
        text_encoder=text_encoder,
        tokenizer=tiny_tokenizer(pad_token=pad_token),
        unet=unet.eval(),
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def draw(pipe: DiffusionPipeline, **inputs: object) -> torch.Tensor:
    """Two steps from one seed: (batch, 3, height, width)."""
    generator = torch.Generator().manual_seed(0)
    return pipe(**inputs, num_inference_steps=2, generator=generator, output_type="pt").images
