"""Pictures as CLIP's preprocessing makes them, and every fault by its kind."""

import io
import os
import time

import numpy as np
import pytest
from PIL import Image

from debias_sd.datasets.pictures import LARGEST_PIXELS, PictureFault, read_rgb, square
from debias_sd.datasets.records import Encoded, Faults, Piece, TooManyFaults

NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 50, 3), dtype=np.uint8))


def encoded(image, kind, **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def read(content, size=24):
    return square(read_rgb(Encoded(content, "x")), size=size)


def fault_of(picture):
    with pytest.raises(PictureFault, match="^[^\n]*; repair it or drop its record.$") as caught:
        square(read_rgb(picture), size=24)
    assert caught.value.kind in PictureFault.KINDS
    return caught.value.kind


SIDES = [(336, 512), (501, 333), (224, 225), (224, 224), (100, 37), (1, 1), (640, 427), (2, 31), (223, 500)]


@pytest.mark.parametrize(("width", "height"), SIDES)
def test_squares_are_those_of_clip(width, height):
    transforms = pytest.importorskip("torchvision.transforms")
    bicubic = transforms.InterpolationMode.BICUBIC
    clip = transforms.Compose([transforms.Resize(224, interpolation=bicubic), transforms.CenterCrop(224)])
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8))
    assert (square(image, size=224) == np.asarray(clip(image))).all()


def test_pictures_are_cut_and_turned_as_clip_does_and_read_from_their_place_in_an_archive(tmp_path):
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200
    assert (square(Image.fromarray(wide), size=10) == 200).all()
    turned = Image.Exif()
    turned[0x0112] = 6
    assert (read(encoded(NOISE, "PNG")) == read(encoded(NOISE, "PNG", exif=turned.tobytes()))).all()
    content = encoded(NOISE, "PNG")
    (tmp_path / "a.tar").write_bytes(b"12345" + content + b"end")
    piece = Piece(tmp_path / "a.tar", 5, len(content), "1.png")
    assert (square(read_rgb(piece), size=24) == read(content)).all()
    assert str(piece).endswith("a.tar:1.png")
    assert fault_of(Piece(tmp_path / "a.tar", 5, len(content) + 10, "1.png")) == "truncated picture"
    NOISE.save(tmp_path / "a.png")
    assert (square(read_rgb(tmp_path / "a.png"), size=24) == read(encoded(NOISE, "PNG"))).all()


@pytest.mark.parametrize(("width", "height"), [(1, 30_000), (30_000, 2)])
def test_a_thread_of_pixels_takes_no_memory(width, height):
    line = np.zeros((height, width), np.uint8)
    line[height // 2 - 50 : height // 2 + 50] = 90
    line[:, width // 2 - 50 : width // 2 + 50] = 90
    started = time.monotonic()
    assert (read(encoded(Image.fromarray(line), "PNG"), size=224) == 90).all()
    assert time.monotonic() - started < 5


def test_every_colour_mode_becomes_rgb():
    grey = np.full((30, 30), 32_896, np.uint16)  # 128 * 257
    palette = Image.new("P", (30, 30), 0)
    palette.putpalette([255, 0, 0] * 256)
    clear = Image.new("RGBA", (30, 30), (255, 0, 0, 0))
    cases = {
        "cmyk": (encoded(Image.new("CMYK", (30, 30), (0, 255, 255, 0)), "JPEG"), (254, 0, 0)),
        "transparent is white": (encoded(clear, "PNG"), (255, 255, 255)),
        "opaque": (encoded(Image.new("RGBA", (30, 30), (9, 8, 7, 255)), "PNG"), (9, 8, 7)),
        "palette": (encoded(palette, "PNG"), (255, 0, 0)),
        "palette, one clear colour": (encoded(palette, "PNG", transparency=0), (255, 255, 255)),
        "palette, alpha by colour": (encoded(palette, "PNG", transparency=bytes(256)), (255, 255, 255)),
        "16 bit": (encoded(Image.fromarray(grey), "PNG"), (128, 128, 128)),
        "16 bit TIFF": (encoded(Image.fromarray(grey), "TIFF"), (128, 128, 128)),
        "one bit": (encoded(Image.new("1", (30, 30), 1), "PNG"), (255, 255, 255)),
        "grey and half clear": (encoded(Image.new("LA", (30, 30), (0, 128)), "PNG"), (127, 127, 127)),
        "1 x 1": (encoded(Image.new("RGB", (1, 1), (1, 2, 3)), "PNG"), (1, 2, 3)),
    }
    for name, (content, colour) in cases.items():
        picture = read(content)
        assert (picture.shape, picture.dtype) == ((24, 24, 3), np.uint8), name
        assert np.abs(picture.astype(int) - colour).max() <= 1, name


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF"])
def test_half_a_picture_is_truncated(kind):
    content = encoded(NOISE, kind)
    read(content)
    for end in (len(content) // 2, 20):
        assert fault_of(Encoded(content[:end], "x")) == "truncated picture"


def test_damage_in_the_middle_is_named_and_bombs_are_refused_before_they_are_unpacked():
    content = bytearray(encoded(NOISE, "PNG"))
    content[len(content) // 2 : len(content) // 2 + 200] = bytes(200)
    assert fault_of(Encoded(bytes(content), "x")) == "damaged picture"
    assert fault_of(Encoded(encoded(NOISE, "WEBP")[:800], "x")) == "damaged picture"
    side = int(LARGEST_PIXELS**0.5) + 1
    assert fault_of(Encoded(encoded(Image.new("1", (side, side)), "PNG"), "x")) == "too large picture"
    assert fault_of(Encoded(encoded(Image.new("1", (side * 2, side)), "PNG"), "x")) == "too large picture"
    values = Image.fromarray(np.zeros((3, 3), np.float32))
    assert fault_of(Encoded(encoded(values, "TIFF"), "x")) == "unknown colours"


def test_files_that_are_no_pictures_are_named_and_nothing_hangs(tmp_path):
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.jpg").write_text("no picture")
    os.mkfifo(tmp_path / "pipe.jpg")
    kinds = {"empty.png": "empty file", "text.jpg": "not a picture", "pipe.jpg": "no file", ".": "no file"}
    kinds |= {"gone.jpg": "missing picture", "text.jpg/below.jpg": "missing picture"}
    assert {name: fault_of(tmp_path / name) for name in kinds} == kinds


def test_faults_are_counted_once_and_stop_past_the_limit_with_the_list():
    faults = Faults(2)
    faults.add([(7, "a.jpg", "empty file"), (8, "b.jpg", "missing picture")])
    faults.add([(7, "a.jpg", "empty file")])
    assert (len(faults), faults.counts()) == (2, {"empty file": 1, "missing picture": 1})
    resumed = Faults(2)
    resumed.add(faults.as_list())
    for counter in (faults, resumed):
        with pytest.raises(TooManyFaults) as caught:
            counter.add([(9, "c.jpg", "missing picture")])
        assert str(caught.value) == (
            "3 records cannot be used (2 missing picture, 1 empty file), data_fault_limit is 2: a.jpg (empty file), "
            "b.jpg (missing picture), c.jpg (missing picture); repair or drop them, or raise the limit."
        )
    with pytest.raises(TooManyFaults, match=r"9 \(x\), \.\.\.; repair"):
        Faults(0).add([(number, str(number), "x") for number in range(20)])
