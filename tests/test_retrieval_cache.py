"""The feature cache: nothing twice, nothing stale, nothing half written."""

import errno
import os

import numpy as np
import pytest
from tiny import save_clip_model
from tiny_sets import caption, make_folder

from debias_sd import cli
from debias_sd.datasets.names import open_records
from debias_sd.measure.embedding import Embedder, FeatureCache, cache_folder, key_of, length_batches
from debias_sd.measure.processes import Processes
from debias_sd.measure.retrieval import Plan, measure_sets
from debias_sd.measure.towers import content_hash, load_towers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("clip")
    save_clip_model(path, length=248)
    return path


def test_a_second_run_embeds_only_what_changed_and_has_the_same_numbers(folder, tmp_path):
    records = open_records(str(make_folder(tmp_path / "data", count=6)))

    def run(*probes, kept=True):
        embedder = Embedder(load_towers(folder), FeatureCache(tmp_path / "cache" if kept else None, "one"), Processes())
        measured = measure_sets({"one": embedder}, [records], Plan(("keep", *probes), samples=10))
        return measured.encoders["one"]["sets"]["folder"]["probes"], embedder.work

    first, work = run()
    assert (work.texts, work.pictures, work.texts_known, work.pictures_known) == (6, 6, 0, 0)
    second, work = run("remove", "photo0", "first2")
    assert (work.texts, work.pictures, work.pictures_known) == (12, 0, 6)
    assert work.texts_known == 6 + 6  # keep, and first2, which photo0 equals
    assert second["keep"] == first["keep"]
    third, work = run("remove", "photo0", "first2")
    assert (third, work.texts) == (second, 0)
    cold, work = run("remove", "photo0", "first2", kept=False)
    assert (cold, work.texts_known) == (second, 6)
    (tmp_path / "data" / "0.png").write_bytes((tmp_path / "data" / "1.png").read_bytes())
    _, work = run()
    assert (work.pictures, work.pictures_known) == (0, 6)


def test_files_are_whole_or_not_there_and_damaged_ones_count_as_absent(tmp_path):
    cache = FeatureCache(tmp_path, "k" * 64)
    keys = [key_of(bytes([number])) for number in range(5)]
    rows = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    cache.add(keys, rows)
    cache.flush()
    cache.flush()
    (path,) = (tmp_path / ("k" * 32)).iterdir()
    again = FeatureCache(tmp_path, "k" * 64)
    np.testing.assert_array_equal(again.rows(keys[::-1]), rows[::-1])
    assert len(FeatureCache(tmp_path, "j" * 64)) == 0
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:40], b"", b"x" * 200, whole + b"x"):
        path.write_bytes(damaged)
        found = FeatureCache(tmp_path, "k" * 64)
        assert (len(found), found.damaged) == (0, 1)


def test_a_cache_that_cannot_be_written_to_costs_no_work(folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    cache = FeatureCache(tmp_path / "file", "k" * 64)
    cache.add([key_of(b"")], np.zeros((1, 2), np.float32))
    cache.flush()
    assert "cannot be written to" in cache.fault
    assert len(cache) == 1

    replace = os.replace

    def full(source, target):
        if str(target).endswith(".features"):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    data = ("--data", make_folder(tmp_path / "data"), "--cache", tmp_path / "cache", "--out", tmp_path / "r.json")
    arguments = ("evaluate", "retrieval", "--encoder", f"a={folder}", *data, "--samples", 5)
    assert cli.main([str(argument) for argument in arguments]) == 0
    err = capsys.readouterr().err
    assert err.count("features of a were not kept: file ") == 1
    assert "cannot be written (No space left on device); choose another path." in err
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert (tmp_path / "r.json").is_file()


def test_the_cache_lies_in_the_users_folder_and_every_file_that_decides_features_is_part_of_its_key(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "debias_sd" / "features"
    save_clip_model(tmp_path)
    before = content_hash(tmp_path)
    (tmp_path / "provenance.json").write_text("{}")
    assert content_hash(tmp_path) == before
    (tmp_path / "preprocessor_config.json").write_text("{}")
    assert content_hash(tmp_path) != before


def test_batches_have_one_length_each_hold_every_text_and_follow_no_order_of_the_file(folder):
    lengths = [8, 16, 8, 24, 16, 8, 8]
    batches = list(length_batches(lengths, rows=3))
    assert batches == [[0, 2, 5], [6], [1, 4], [3]]
    assert list(length_batches([], rows=3)) == []
    towers = load_towers(folder)
    rows, lengths = towers.ids_of([caption(1), "A cat."])
    assert [len(row) for row in rows] == [-(-length // 8) * 8 for length in lengths]
    assert max(map(len, rows)) < 248
