"""A training run's state on disk: finite, whole, told apart; a real disk that is full."""

import json
import os
import subprocess

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from debias_sd import run_state
from debias_sd.report import write_atomically
from debias_sd.run_state import (
    NonFinite,
    check_finite,
    find_disk_fault,
    fingerprint,
    list_changes,
    note_versions,
    read_state,
    remove_files,
    weights_fingerprint,
    write_state,
)

NAN, INF = float("nan"), float("inf")


def moment_of(value):
    """An AdamW's state with one value in a moment, as it is saved."""
    weight = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    optimizer.state[weight]["exp_avg_sq"][1, 0] = value
    return {"optimizer": optimizer.state_dict()}


FAULTY = {
    "a weight": ({"towers": {"a": torch.ones(3), "b": torch.tensor([1.0, NAN])}}, "towers.b"),
    "minus infinity": ({"a": torch.tensor(-INF)}, "a"),
    "bfloat16": ({"a": torch.tensor([INF], dtype=torch.bfloat16)}, "a"),
    "float16 that ran over": ({"a": torch.tensor([70_000.0]).half()}, "a"),
    "a complex number": ({"a": torch.tensor([complex(0, NAN)])}, "a"),
    "a moment": (moment_of(NAN), "optimizer.state.0.exp_avg_sq"),
    "an infinite moment": (moment_of(INF), "optimizer.state.0.exp_avg_sq"),
    "a plain number": ({"groups": [{"lr": NAN}]}, "groups.0.lr"),
    "several": ({"a": [torch.tensor(NAN), torch.tensor(1.0), torch.tensor(INF)]}, "2 tensors, the first is a.0"),
}


@pytest.mark.parametrize(("state", "named"), FAULTY.values(), ids=FAULTY)
def test_nan_and_infinity_are_found_wherever_they_are(state, named):
    """Case 127: NaN or infinity in a weight, a moment or a number, at any depth and in any precision."""
    with pytest.raises(NonFinite) as caught:
        check_finite(state, what="x", advice="do y")
    assert str(caught.value) == f"x holds NaN or infinity ({named}); do y."


def test_fingerprints_know_names_shapes_types_and_bounds_and_what_is_finite_passes():
    state = {"a": torch.tensor([1e38]), "n": torch.tensor([2**62]), "rng": torch.get_rng_state(), "s": "NaN", "i": 3}
    check_finite(state | moment_of(1.0), what="x", advice="y")
    check_finite({"empty": torch.zeros(0), "truth": torch.tensor([True])}, what="x", advice="y")
    state = {"a": torch.arange(4.0), "b": torch.tensor(1)}
    first = weights_fingerprint(state)
    assert weights_fingerprint({"b": state["b"], "a": state["a"].clone()}) == first
    others = [{"a": state["a"].view(2, 2)}, {"b": torch.tensor(1, dtype=torch.int32)}, {"c": torch.zeros(0)}]
    others += [{"a": torch.tensor([0.0, 1.0, 2.0, 3.0000002])}]
    assert len({first, *(weights_fingerprint(state | other) for other in others)}) == 5
    assert fingerprint([b"ab", b"c"]) != fingerprint([b"a", b"bc"])
    assert weights_fingerprint({"t": torch.ones(3, 2).T}) == weights_fingerprint({"t": torch.ones(2, 3)})


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory):
    """A disk of 1 MB; skips where nobody may mount one."""
    place = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


LARGE = {"x": torch.zeros(1_000_000)}


def save_with_safetensors(path):
    save_file(LARGE, path)


def save_with_the_librarys_writer(path):
    write_atomically(path, bytes(4_000_000))


def save_raw(path):
    path.write_bytes(bytes(4_000_000))


@pytest.mark.parametrize(
    "write",
    [lambda path: write_state(path, LARGE), save_with_safetensors, save_with_the_librarys_writer, save_raw],
    ids=["torch", "safetensors", "write_atomically", "bytes"],
)
def test_a_full_disk_is_named_whoever_wrote(small_disk, write):
    """Case 134: torch says "unexpected pos", safetensors says it in words, the library's writer as a ValueError."""
    path = small_disk / "file"
    path.write_text("what was there")
    with pytest.raises((OSError, SafetensorError, ValueError)) as caught:
        write(path)
    fault = find_disk_fault(caught.value, small_disk)
    assert fault.startswith("the disk is full (No space left on device: ")
    if write is not save_raw:
        assert path.read_text() == "what was there"
        assert [one.name for one in small_disk.iterdir()] == ["file"]
    path.unlink()


def test_other_errors_are_not_called_a_full_disk_and_torchs_stay_torchs(tmp_path):
    with pytest.raises(AttributeError):  # a local class cannot be pickled
        write_state(tmp_path / "x", {"f": lambda: 1})
    assert list(tmp_path.iterdir()) == []
    assert find_disk_fault(ValueError("x"), tmp_path) is None
    assert find_disk_fault(FileNotFoundError(2, "No such file"), tmp_path) is None
    assert find_disk_fault(SafetensorError("Error while deserializing header"), tmp_path) is None
    assert find_disk_fault(Exception("No space left on device (os error 28)"), tmp_path) == (  # tokenizers'
        f"the disk is full (No space left on device: {tmp_path})"
    )
    assert find_disk_fault(OSError(122, "x", "/a/b"), tmp_path) == (
        f"the disk quota is used up ({os.strerror(122)}: /a/b)"
    )


def test_a_state_comes_back_and_a_damaged_one_is_one_sentence(tmp_path):
    path = tmp_path / "state.pt"
    write_state(path, {"step": 3, "w": torch.arange(5.0)})
    assert read_state(path)["step"] == 3
    for content in (path.read_bytes()[:-40], b"", b"text"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"^.*state.pt cannot be read \([^\n]*\); delete it and go on from anoth"):
            read_state(path)


def test_changes_are_named_with_their_values_and_fingerprints_only_alone():
    """Case 128: what differs has a name; a seed changes fingerprints, which say nothing more then."""
    saved = {"seed": 0, "data": fingerprint([b"a"]), "long": "x" * 99, "same": [1]}
    assert list_changes(saved, saved) == []
    assert list_changes(saved, saved | {"data": fingerprint([b"b"])}) == ["data"]
    assert list_changes(saved, saved | {"data": fingerprint([b"b"]), "seed": 1}) == ["seed (0, now 1)"]
    assert list_changes(saved, saved | {"long": "y", "new": 2}) == ["long", "new (unknown, now 2)"]


def test_versions_that_changed_are_named_and_kept(monkeypatch):
    """Case 128: a package that computes has another version: a warning, and both stand in the history."""
    history, warning = note_versions([], since=0)
    assert warning is None
    assert {"python", "torch", "transformers", "accelerate", "numpy", "pillow", "tokenizers"} <= history[0][
        "versions"
    ].keys()
    assert note_versions(history, since=3) == (history, None)
    now = history[0]["versions"] | {"torch": "99.0"}
    monkeypatch.setattr(run_state, "package_versions", lambda: now)
    longer, warning = note_versions(json.loads(json.dumps(history)), since=3)
    assert longer == [*history, {"since": 3, "versions": now}]
    assert warning == (
        f"going on with another torch ({history[0]['versions']['torch']}, now 99.0): the weights may differ from an "
        "uninterrupted run's"
    )


def test_only_what_matches_is_removed_and_links_are_not_followed(tmp_path):
    """Case 129: what `--overwrite_output_dir` deletes is what the run wrote."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine").touch()
    folder = tmp_path / "run"
    (folder / "step-1").mkdir(parents=True)
    (folder / "step-2").symlink_to(tmp_path / "elsewhere")
    (folder / "notes.txt").touch()
    remove_files(folder, ["step-*", "nowhere/*"])
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert (tmp_path / "elsewhere" / "mine").exists()
