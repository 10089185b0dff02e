"""Loading holds at most one text encoder more than diffusers' own loading does, measured in fresh processes."""

import subprocess
import sys
from pathlib import Path

import pytest
from tiny import tiny_encoder, tiny_text_encoder
from tiny_pipelines import tiny_projected_encoder, tiny_sdxl

PEAK = """
import sys
from pathlib import Path
import torch
from diffusers import DiffusionPipeline
from debias_sd.pipeline import load_debias_pipeline
how, base, encoder = sys.argv[1:]
if how == "stock":
    pipe = DiffusionPipeline.from_pretrained(base)
else:
    pipe = load_debias_pipeline(base, encoder, torch_dtype=torch.float32)
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(int(status["VmHWM"].split()[0]) * 1024)  # of this program alone: getrusage counts what its parent had
"""
WIDTH = 1024  # 49,408 tokens of it are 200 MB


def peak(how, base, encoder):
    arguments = [sys.executable, "-c", PEAK, how, str(base), str(encoder)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from Linux's /proc")
def test_loading_peaks_at_most_one_encoder_above_stock(tmp_path):
    base = tiny_sdxl()
    base.text_encoder = tiny_text_encoder(77, width=WIDTH)
    base.text_encoder_2 = tiny_projected_encoder(width=WIDTH)
    base.register_modules(text_encoder=base.text_encoder, text_encoder_2=base.text_encoder_2)
    base.save_pretrained(tmp_path / "base")
    encoder = tiny_encoder(width=WIDTH)
    encoder.save(tmp_path / "encoder")
    size = sum(weight.numel() * weight.element_size() for weight in encoder.model.parameters())
    stock, ours = (peak(how, tmp_path / "base", tmp_path / "encoder") for how in ("stock", "ours"))
    assert size > 200_000_000
    assert stock > 2 * size, "the measure does not see the two encoders that stock loading holds"
    assert ours - stock <= size, f"{(ours - stock) / size:.2f} encoders above stock"
