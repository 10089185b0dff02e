"""Loading holds at most one text encoder more than diffusers' own loading does, measured in fresh processes."""

import subprocess
import sys
from pathlib import Path

import pytest
from tiny import VOCABULARY, tiny_encoder, tiny_text_encoder
from tiny_pipelines import tiny_projected_encoder, tiny_sdxl

# Every weight is read once at the end: loading alone maps the file and reads nothing of it.
PEAK = """
import sys
from pathlib import Path
import torch
from diffusers import DiffusionPipeline
from debias_sd.pipelines.load import load_debias_pipeline
how, base, encoder, dtype = sys.argv[1:]
dtype = getattr(torch, dtype)
pipe = None
if how == "stock":
    pipe = DiffusionPipeline.from_pretrained(base, torch_dtype=dtype)
elif how == "ours":
    pipe = load_debias_pipeline(base, encoder, torch_dtype=dtype)
for name in ("text_encoder", "text_encoder_2") if pipe else ():
    sum(float(weight.sum()) for weight in getattr(pipe, name).parameters())
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(int(status["VmHWM"].split()[0]) * 1024)  # of this program alone: getrusage counts what its parent had
"""
WIDTH = 1024
ENCODER = VOCABULARY * WIDTH * 4  # bytes in its file, which is mapped while it is cast


def peak(how, folder, dtype):
    arguments = [sys.executable, "-c", PEAK, how, str(folder / "base"), str(folder / "encoder"), dtype]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    base = tiny_sdxl()
    encoders = {
        "text_encoder": tiny_text_encoder(77, width=WIDTH),
        "text_encoder_2": tiny_projected_encoder(width=WIDTH),
    }
    base.register_modules(**encoders)
    base.save_pretrained(folder / "base")
    tiny_encoder(width=WIDTH).save(folder / "encoder")
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from Linux's /proc")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_loading_peaks_at_most_one_encoder_above_stock(folder, dtype):
    nothing, stock, ours = (peak(how, folder, dtype) for how in ("nothing", "stock", "ours"))
    assert stock - nothing > ENCODER, "the measure does not see the two encoders that stock loading holds"
    assert ours - stock <= ENCODER, f"{(ours - stock) / ENCODER:.2f} encoders above stock"
