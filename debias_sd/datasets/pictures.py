"""Read a picture as CLIP's own preprocessing does, and name what is wrong with one that cannot be read.

As OpenAI's and open_clip's `Resize` and `CenterCrop`: shorter side to `size` (bicubic), centre square, RGB. The EXIF
orientation is ignored, as it is there, so that features are the published ones. Decided here, because CLIP does not
say: transparent pixels are laid on white, as a viewer shows them; 16-bit grey is scaled to 8 bits (a plain conversion
clips it to white); of an animation the first frame counts; a picture of 1 x 1 is a picture.
"""

from __future__ import annotations

import io
import os
import stat
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from debias_sd.datasets.records import Encoded, Picture, Piece
from debias_sd.text import count_of

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif")
LARGEST_PIXELS = 89_478_485  # Pillow's own bound for what it calls a decompression bomb: 256 MiB as RGB
LARGEST_BYTES = 1 << 29  # of a file; as raw RGB the most pixels allowed are half of it
_THINNEST = 16  # a picture longer than this many times its shorter side is not scaled whole
_OPENINGS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"II*\x00", b"MM\x00*", b"BM")


class PictureFault(ValueError):
    """A picture that cannot be used: `kind` is one of KINDS."""

    KINDS = (
        "missing picture", "unreadable file", "no file", "empty file", "not a picture",
        "truncated picture", "damaged picture", "too large picture", "unknown colours",
    )  # fmt: skip

    def __init__(self, kind: str, picture: Picture, detail: str = "") -> None:
        self.kind = kind
        reason = f"{kind}: {detail}" if detail else kind
        super().__init__(f"picture {picture} cannot be read ({reason}); repair it or drop its record.")


def square(image: Image.Image, *, size: int) -> np.ndarray:
    """Scale the shorter side to `size` (bicubic) and cut the centre square: uint8 [size, size, 3]."""
    width, height = image.size
    # int() and round() are torchvision's: the longer side is cut down, the margins are rounded to even.
    scaled = (size, int(size * height / width)) if width <= height else (int(size * width / height), size)
    left, top = (round((side - size) / 2.0) for side in scaled)
    if max(scaled) > _THINNEST * size:
        # 1 x 10,000 would become 224 x 2,240,000 for the sake of its centre: scale that alone.
        across, down = width / scaled[0], height / scaled[1]
        box = (left * across, top * down, (left + size) * across, (top + size) * down)
        return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC, box=box))
    if scaled != image.size:
        image = image.resize(scaled, Image.Resampling.BICUBIC)
    return np.asarray(image.crop((left, top, left + size, top + size)))


def read_rgb(picture: Picture) -> Image.Image:
    """Return the whole picture in RGB; PictureFault says what kind of fault it has."""
    return decode_rgb(read_content(picture), picture)


def decode_rgb(content: bytes, picture: Picture) -> Image.Image:
    """Return the picture in RGB that the bytes of its file hold; PictureFault says what kind of fault it has."""
    with _decoding(picture, content):
        with Image.open(io.BytesIO(content)) as opened:
            if opened.width * opened.height > LARGEST_PIXELS:
                raise PictureFault("too large picture", picture, _size_text(opened))
            opened.load()  # the whole picture: half a JPEG must not pass (ImageFile.LOAD_TRUNCATED_IMAGES stays off)
            return _to_rgb(opened, picture)


def read_content(picture: Picture) -> bytes:
    """Return the bytes of the picture's file; PictureFault when there are none."""
    if isinstance(picture, Encoded):
        content = picture.content
    else:
        content = _read_file(picture)
    if not content:
        raise PictureFault("empty file", picture)
    return content


def picture_state(picture: Picture) -> str:
    """Changes when a picture is replaced by another of the same name: size and time of its file, or a checksum."""
    if isinstance(picture, Encoded):
        return f"{zlib.crc32(picture.content):08x}"
    try:
        status = os.stat(picture.path if isinstance(picture, Piece) else picture)
    except (OSError, ValueError):
        return "missing"
    return f"{status.st_size} {status.st_mtime_ns}"


def _read_file(picture: Path | Piece) -> bytes:
    path = picture.path if isinstance(picture, Piece) else picture
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # to open a pipe that nobody writes to would wait for ever
            raise PictureFault("no file", picture, "a folder or a device")
        size = picture.size if isinstance(picture, Piece) else status.st_size
        if size > LARGEST_BYTES:
            raise PictureFault("too large picture", picture, f"{count_of(size, 'byte')}, at most {LARGEST_BYTES:,}")
        with open(path, "rb") as file:
            if isinstance(picture, Piece):
                file.seek(picture.start)
            content = file.read(size)
    except PictureFault:
        raise
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a name that no disk has, with a NUL
        raise PictureFault("missing picture", picture) from None
    except OSError as error:
        raise PictureFault("unreadable file", picture, str(error.strerror)) from None
    if isinstance(picture, Piece) and len(content) < size:
        raise PictureFault("truncated picture", picture, "its archive ends early")
    return content


@contextmanager
def _decoding(picture: Picture, content: bytes) -> Iterator[None]:
    """Turn what Pillow raises into a PictureFault."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks on EXIF and palettes; what matters is raised
            yield
    except PictureFault:
        raise
    except UnidentifiedImageError:
        if content.startswith(_OPENINGS):
            raise PictureFault("truncated picture", picture, count_of(len(content), "byte")) from None
        raise PictureFault("not a picture", picture) from None
    except Image.DecompressionBombError:
        raise PictureFault("too large picture", picture) from None
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged files, struct.error to IndexError
        text = " ".join(str(error).split())
        early = isinstance(error, EOFError) or any(word in text.lower() for word in ("truncated", "unexpected end"))
        raise PictureFault("truncated picture" if early else "damaged picture", picture, text) from None


def _size_text(image: Image.Image) -> str:
    return f"{image.width} x {image.height}, at most {count_of(LARGEST_PIXELS, 'pixel')}"


def _to_rgb(image: Image.Image, picture: Picture) -> Image.Image:
    """Return a decoded picture of any colour mode in RGB."""
    if image.mode == "F":
        raise PictureFault("unknown colours", picture, "floating-point values without a range")
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.float64) / 257  # 65,535 / 255
        return Image.fromarray(np.rint(values.clip(0, 255)).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info:
        clear = image.convert("RGBA")
        white = Image.new("RGBA", clear.size, "white")
        return Image.alpha_composite(white, clear).convert("RGB")
    return image.convert("RGB")
