"""Small damaged files of every form through every reader: one sentence or a counted fault, in time and in memory."""

import contextlib
import io
import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import traceback
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from debias_sd.checkpoints.reading import read_source
from debias_sd.datasets.names import open_records
from debias_sd.datasets.pictures import PictureFault, read_rgb
from debias_sd.encoder import TextEncoder
from debias_sd.prompts.files import read_prompt_file
from tests.tiny import tiny_encoder

SECONDS, BYTES = 20, 1 << 30
ENCODINGS = ["utf-8"] * 8 + ["utf-8-sig", "utf-16", "utf-32", "cp1252", "utf-16-le"]
# What breaks readers: no numbers, numbers that are too long, deep nesting, half characters, marks, line breaks.
NASTY = (
    b"NaN", b"-Infinity", b"1" * 5000, b"[" * 3000, b'{"a":' * 3000, b'"\\ud83d"', b"\0", b"\xef\xbb\xbf", b"\xff\xfe",
    b"\r", b"\r\n", b'"', b"\\", b",", b"\t", b"{}", b"[]", b"null", b"true", b"-1", b"1e999", b"\xed\xa0\x80", b"../",
)  # fmt: skip


def picture(rng, form=None):
    form = form or rng.choice(["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "ICO"])
    mode = rng.choice(["RGB", "L", "P", "RGBA", "I;16", "LA"]) if form in ("PNG", "TIFF") else "RGB"
    stream = io.BytesIO()
    Image.new(mode, (rng.randint(1, 40), rng.randint(1, 40))).save(stream, form)
    return stream.getvalue()


def value(rng):
    """A caption, mostly; else anything that JSON has."""
    text = " ".join(rng.choice(["a", "red", "Füße", "中", "star.", "\u2028", "🌟"]) for _ in range(rng.randint(1, 12)))
    odd = [None, 3, 2.5, True, float("nan"), float("inf"), [], {}, [text, text], [text, 1], {"a": text}, "", "a \ud83d"]
    return text if rng.random() < 0.8 else rng.choice(odd)


def rows(rng):
    image, caption = rng.choice(["image"] * 6 + ["file_name", "x"]), rng.choice(["caption"] * 6 + ["text", "y"])
    return [
        {image: f"{rng.randint(0, 3)}.png" if rng.random() < 0.9 else value(rng), caption: value(rng)}
        for _ in range(rng.randint(0, 8))
    ]


def said(row):
    first, *last = [*row.values(), ""]
    return {"image": first, "conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": last[0]}]}


def encoded(rng, text):
    return text.encode(rng.choice(ENCODINGS), "replace")


def table(rng):
    separator, some = rng.choice("\t,;|"), rows(rng)
    lines = [list(some[0]) if some else ["image", "caption"], *([str(v) for v in row.values()] for row in some)]
    return encoded(rng, rng.choice(["\n", "\r\n", "\r"]).join(separator.join(line) for line in lines))


def archive(rng):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=rng.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])) as tar:
        for number in range(rng.randint(0, 4)):
            key = f"{rng.randint(0, 2)}" if rng.random() < 0.3 else f"d/{number}" * rng.choice([1, 1, 60])
            members = {".png": picture(rng, "PNG"), ".txt": encoded(rng, str(value(rng)))}
            members[".json"] = encoded(rng, json.dumps(rng.choice([*rows(rng), value(rng)])))
            for suffix in rng.sample(list(members), rng.randint(1, 3)):
                info = tarfile.TarInfo(key + suffix)
                info.size = len(members[suffix])
                tar.addfile(info, io.BytesIO(members[suffix]))
    return stream.getvalue()


def damaged(rng, content):
    content = bytearray(content)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 8])):
        place, what = rng.randrange(len(content) + 1), rng.random()
        if what < 0.4 and content:
            content[place % len(content)] ^= 1 << rng.randrange(8)
        elif what < 0.6:
            del content[place:]
        elif what < 0.9:
            content[place:place] = rng.choice(NASTY)
        else:
            content[place:place] = content[rng.randrange(len(content) + 1) :][:200]
    return bytes(content)


def as_lines(rng):
    return encoded(rng, "\n".join(json.dumps(row, ensure_ascii=rng.random() < 0.5) for row in rows(rng)))


def as_json(rng):
    some = rows(rng)
    by_file = {str(next(iter(row.values()))): list(row.values())[-1] for row in some}
    content = rng.choice([some, [said(row) for row in some], by_file, {"images": some}, value(rng)])
    return encoded(rng, json.dumps(content, indent=rng.choice([None, 1]), ensure_ascii=rng.random() < 0.5))


DATA = {
    "a.csv": table, "a.tsv": table, "a.txt": lambda rng: encoded(rng, str(value(rng))), "a.jsonl": as_lines,
    "a.json": as_json, "share-captioner.json": as_json, "captions_val2017.json": as_json, "a.tar": archive,
    "dataset_flickr30k.json": as_json, "flickr_annotations_30k.csv": table, "results.token": table,
    "docci_descriptions.jsonlines": as_lines, "metadata.csv": table, "metadata.jsonl": as_lines, "1.txt": table,
}  # fmt: skip


def read_all(path):
    records = open_records(str(path), skip_missing=random.random() < 0.5)
    for number in range(len(records)):
        record = records[number]
        assert all(isinstance(text, str) and text.encode() for text in record.captions)
        with contextlib.suppress(PictureFault):
            read_rgb(record.image)


def read_data(rng, folder, encoder):
    """A data set, as a file and as the folder around it; the same file as prompts."""
    name = rng.choice(list(DATA))
    for number in range(3):
        (folder / f"{number}.png").write_bytes(damaged(rng, picture(rng)) if number else picture(rng, "PNG"))
    (folder / name).write_bytes(damaged(rng, DATA[name](rng)))
    yield from ((read_all, folder / name), (read_all, folder), (read_prompt_file, folder / name))
    yield read_prompt_file, folder


def read_weights(rng, folder, encoder):
    """A checkpoint file and an encoder folder, one file of it damaged."""
    for path in encoder.iterdir():
        shutil.copy(path, folder / path.name)
    victim = rng.choice(sorted(folder.iterdir()))
    content = victim.read_bytes()
    head = 8 + int.from_bytes(content[:8], "little") if victim.suffix == ".safetensors" else len(content)
    victim.write_bytes(damaged(rng, content[:head]) + content[head:])
    yield TextEncoder.load, folder
    yield read_source, folder
    form = rng.choice(["a.safetensors", "a.pt"])
    tensors = {f"t{number}": torch.zeros(rng.randint(1, 5)) for number in range(3)}
    save_file(tensors, folder / form) if form == "a.safetensors" else torch.save(tensors, folder / form)
    (folder / form).write_bytes(damaged(rng, (folder / form).read_bytes()))
    yield read_source, folder / form


def fault_of(read, path):
    """What is wrong with how `read` takes `path`, or None: it reads it, or says in one sentence why not."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        read(path)
    except ValueError as error:
        at, text = traceback.extract_tb(error.__traceback__)[-1].filename, str(error)
        if "\n" in text or not text.endswith((".", "`")) or type(error).__module__ in ("json", "builtins.Unicode"):
            return f"{type(error).__name__}: {text[:300]!r} of {at}"
        return None if "/debias_sd/" in at else f"{type(error).__name__} of {at}: {text[:300]}"
    except BaseException:
        return traceback.format_exc()[-1500:]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


def fuzz(folder, *, first, count):
    """Numbered faults of `count` files from number `first` on: the same in every run."""
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError(f"more than {SECONDS} seconds")))
    encoder, faults = folder / "encoder", []
    tiny_encoder(77).save(encoder)
    for number in range(first, first + count):
        rng = random.Random(f"fuzz {number}")
        random.seed(number)
        place = folder / f"{number}"
        place.mkdir()
        for read, path in (read_weights if number % 5 == 4 else read_data)(rng, place, encoder):
            fault = fault_of(read, path)
            if fault is not None:
                faults.append(f"{number}, {read.__name__}({path.name}): {fault}")
        shutil.rmtree(place)
    return faults


def fuzz_alone(folder, *, first, count):
    """The same in a process of its own: (faults, bytes above what the process had before)."""
    command = [sys.executable, "-m", "tests.test_reader_fuzz", str(folder), str(first), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return found["faults"], found["bytes"]


@pytest.mark.filterwarnings("default")
def test_damaged_files_are_one_sentence_or_a_counted_fault(tmp_path):
    """Cases 104, 107 and 110: no reader ends in a traceback or hangs, whatever a file holds."""
    assert fuzz(tmp_path, first=0, count=25) == []


@pytest.mark.slow  # two thousand files: minutes
def test_two_thousand_damaged_files_in_time_and_memory(tmp_path):
    """Cases 104, 107 and 110: the same at length, and in less than 1 GB."""
    faults, taken = fuzz_alone(tmp_path, first=0, count=2000)
    assert faults == []
    assert taken < BYTES


if __name__ == "__main__":
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = fuzz(Path(sys.argv[1]), first=int(sys.argv[2]), count=int(sys.argv[3]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"faults": result, "bytes": (peak - before) * 1024}))  # noqa: T201
