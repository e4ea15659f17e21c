"""Baselines on disk: what is written is read again, and whatever else lies there counts as missing."""

import json
import os

import pytest

from flashinfer_bench.bench.runner.baseline_cache import MOST_BYTES, BaselineCache, KeptBaseline

MARKS = {"definition": "d", "workload": "w", "device": "GPU-1"}
TIMES = {f"{name}_ms": 2.0 for name in ("mean", "std", "min", "q25", "median", "q75", "max")}
RECORD = {"method": "cupti", "cache_state": "cold", "stop": "precision", "calls": 14, "trials": 1, "samples": 9}
RECORD |= {**TIMES, "interval95_ms": [1.99, 2.01], "launch_gap_ns": 1100, "operations": 7, "flags": ["host_bound"]}


def make_kept(**changes):
    fields = {"marks": MARKS, "sm_mhz": 1980, "definition": "double", "workload": "w0", "hardware": "H200"}
    fields |= {"taken": "2026-01-01T00:00:00Z", "latency_ms": 2.0, "trials_ms": [2.0], "record": RECORD}
    return KeptBaseline.model_validate({**fields, **changes})


@pytest.fixture
def cache(tmp_path):
    return BaselineCache(tmp_path / "cache")


def test_what_is_written_is_read_again_and_says_that_it_is_cached(cache):
    assert cache.read(MARKS) is None
    assert cache.write(make_kept())
    measured = cache.read(MARKS).to_measured()
    assert (measured.latency_ms, measured.trials) == (2.0, [2.0])
    assert measured.record == {**RECORD, "source": "cached", "taken": "2026-01-01T00:00:00Z"}
    assert cache.read({**MARKS, "device": "GPU-2"}) is None


def test_nothing_of_inputs_or_of_the_moment_is_kept():
    kept = make_kept(record={**RECORD, "samples_ns": {"span": [[1]]}, "gpu": {"power_w": [1, 2]}})
    assert kept.record.model_dump(exclude_none=True) == RECORD


def edited(**changes):
    return lambda path: path.write_text(json.dumps({**json.loads(make_kept().model_dump_json()), **changes}))


HOSTILE = {
    "a pipe": lambda path: os.mkfifo(path),
    "a link to a good one": lambda path: (
        path.with_name("other").write_text(make_kept().model_dump_json()),
        path.symlink_to("other"),
    ),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": lambda path: path.mkdir(),
    "too large": lambda path: path.write_text(make_kept().model_dump_json() + " " * MOST_BYTES),
    "cut short": lambda path: path.write_text(make_kept().model_dump_json()[:-20]),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "nested deeply": lambda path: path.write_text("[" * (MOST_BYTES - 1)),
    "a long number": lambda path: path.write_text("1" * (MOST_BYTES - 1)),
    "about something else": edited(marks={**MARKS, "definition": "other"}),
    "of a later form": edited(format=2),
    "with more": edited(expected=[1.0]),
    "no time": edited(latency_ms=0.0),
    "a time that is no number": edited(latency_ms="2.0"),
    "an endless time": edited(latency_ms=1e300 * 1e300),
    "a nan": edited(record={**RECORD, "median_ms": float("nan")}),
    "no record": edited(record={}),
    "too many trials": edited(trials_ms=[2.0] * 1001),
}


@pytest.mark.parametrize("spoil", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_baseline_of_ours_counts_as_missing_and_is_listed_as_such(cache, spoil):
    cache.folder.mkdir(parents=True)
    place = cache.place(MARKS)
    spoil(place)
    assert cache.read(MARKS) is None
    assert place in [file.path for file in cache.files() if file.baseline is None]
    if cache.write(make_kept()):
        assert cache.read(MARKS) is not None
    assert cache.clear() > 0
    assert cache.files() == []


def test_a_text_moves_no_cursor(cache):
    assert make_kept(definition="a\x1b[2Jb").definition == "a [2Jb"


def test_a_folder_that_is_a_link_is_neither_read_nor_written(cache, tmp_path):
    elsewhere = BaselineCache(tmp_path)
    elsewhere.write(make_kept())
    cache.folder.parent.mkdir()
    cache.folder.symlink_to(elsewhere.folder)
    assert (cache.read(MARKS), cache.write(make_kept()), cache.files(), cache.clear()) == (None, False, [], 0)
    assert elsewhere.read(MARKS) is not None


def test_a_cache_that_cannot_be_written_to_is_no_error(tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert not BaselineCache(tmp_path / "cache").write(make_kept())


def test_the_longest_unused_go_where_there_are_too_many(cache):
    marks = [{**MARKS, "workload": str(number)} for number in range(12)]
    for number, one in enumerate(marks):
        cache.write(make_kept(marks=one))
        os.utime(cache.place(one), (1e9 + number, 1e9 + number))
    (cache.folder / ".1-dead").write_text("half")
    os.utime(cache.folder / ".1-dead", (1, 1))
    assert cache.read(marks[0]) is not None
    cache.trim(10)
    left = [number for number, one in enumerate(marks) if cache.place(one).exists()]
    assert left == [0, *range(4, 12)]
    assert not (cache.folder / ".1-dead").exists()
