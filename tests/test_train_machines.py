"""Two launchers as on two machines, one process each, on WebDataset shards: the run of one machine with two."""

import io
import json
import subprocess
import tarfile

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tests.test_train_processes import ACCELERATE, PLAIN, ROOT, SEVERAL, environment_of, launch
from tests.train_tiny import arguments, tiny_settings

pytestmark = pytest.mark.slow


@pytest.fixture
def shards(tmp_path):
    """Four archives of six samples, one picture of which is broken."""
    for shard in range(4):
        with tarfile.open(tmp_path / f"world-{shard:03d}.tar", "w") as archive:
            for number in range(6):
                stream = io.BytesIO()
                Image.new("RGB", (48, 48), (40 * number, 60 * shard, 0)).save(stream, "PNG")
                content = b"broken" if (shard, number) == (2, 3) else stream.getvalue()
                text = f"a red star in {shard}. a box {'. a disc' * number}.".encode()
                for suffix, part in (("png", content), ("txt", text)):
                    info = tarfile.TarInfo(f"{number}.{suffix}")
                    info.size = len(part)
                    archive.addfile(info, io.BytesIO(part))
    return f"shards:{tmp_path}/world-{{000..003}}.tar"


def start_machine(rank, settings, port):
    options = ["--multi_gpu", "--num_machines", "2", "--num_processes", "2", "--machine_rank", str(rank)]
    options += ["--main_process_ip", "127.0.0.1", "--main_process_port", str(port)]
    command = [*ACCELERATE, *options, *PLAIN, "-m", "train_encoder", *arguments(settings)]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment_of(port), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize("freeze", [False, True], ids=["pictures", "kept features"])
def test_two_machines_are_one_with_two_processes(base, shards, tmp_path, freeze):
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base), "train_data": shards}
    settings |= {"train_batch_size": 3, "max_train_steps": 8, "expect_processes": 2, "freeze_image_tower": freeze}
    ports = (29660, 29661) if freeze else (29662, 29663)
    machines = [start_machine(rank, tiny_settings(tmp_path / "two", **settings), ports[0]) for rank in (0, 1)]
    said = [machine.communicate(timeout=400) for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], said
    assert "2 process(es) x 3 pairs" in said[0][0]
    assert said[1][0] == ""  # the second machine says nothing of its own
    done = launch(SEVERAL, tiny_settings(tmp_path / "one", **settings), ports[1])
    assert done.returncode == 0, done.stderr
    left, right = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert all(torch.equal(left[name], right[name]) for name in left)
    stories = [json.loads((tmp_path / name / "provenance.json").read_text())["data"] for name in ("one", "two")]
    assert stories[0] == stories[1] == {"records": 24, "skipped": {}, "broken": {"not a picture": 1}}
