"""Baselines on disk: what a later run takes over, what an earlier one keeps, and files that count as missing."""

import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.runner.baseline_cache import MOST_BYTES, BaselineCache, KeptBaseline
from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.bench.runner.session import reference_timing
from flashinfer_bench.bench.runner.session.reference_timing import KeptTimes, move_to_gap
from flashinfer_bench.bench.runner.workers.kernel_task import MeasurePlan
from flashinfer_bench.timing.measurement import Measured
from flashinfer_bench.timing.nvml import GpuSettings, GpuState
from flashinfer_bench.timing.settings import TimingSettings
from tests.kit import make_definition, make_workload

pytestmark = pytest.mark.cpu
MARKS = {"definition": "d", "workload": "w", "device": "GPU-1"}
TIMES = {f"{name}_ms": 2.0 for name in ("mean", "std", "min", "q25", "median", "q75", "max")}
RECORD = {"method": "cupti", "cache_state": "cold", "stop": "precision", "calls": 14, "trials": 1, "samples": 9}
RECORD |= {**TIMES, "interval95_ms": [1.99, 2.01], "launch_gap_ns": 1100, "operations": 7, "flags": ["host_bound"]}
MEASURED = Measured(2.0, [2.0], RECORD)
SETTINGS = GpuSettings(700.0, 1980, 3201, 1980, 3201)
STATE = GpuState(1980, 3201, 400.0, 40, (), 0)


def make_kept(**changes):
    fields = {"marks": MARKS, "sm_mhz": 1980, "definition": "double", "workload": "w0", "hardware": "H200"}
    fields |= {"taken": "2026-01-01T00:00:00Z", "latency_ms": 2.0, "trials_ms": [2.0], "record": RECORD}
    return KeptBaseline.model_validate({**fields, **changes})


@pytest.fixture
def cache(tmp_path):
    return BaselineCache(tmp_path / "cache")


def edited(**changes):
    return lambda path: path.write_text(json.dumps({**json.loads(make_kept().model_dump_json()), **changes}))


HOSTILE = {
    "a pipe": os.mkfifo,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "too large": lambda path: path.write_text(make_kept().model_dump_json() + " " * MOST_BYTES),
    "cut short": lambda path: path.write_text(make_kept().model_dump_json()[:-20]),
    "nested deeply": lambda path: path.write_text("[" * (MOST_BYTES - 1)),
    "about something else": edited(marks={**MARKS, "definition": "other"}),
    "of a later form": edited(format=2),
    "a time that is no number": edited(latency_ms="2.0"),
    "an endless time": edited(latency_ms=1e300 * 1e300),
    "no record": edited(record={}),
}


@pytest.mark.parametrize("spoil", HOSTILE.values(), ids=HOSTILE)
def test_a_file_that_is_no_baseline_of_ours_counts_as_missing_and_is_listed_as_such(cache, spoil):
    cache.folder.mkdir(parents=True)
    place = cache.place(MARKS)
    spoil(place)
    assert cache.read(MARKS) is None
    assert place in [file.path for file in cache.files() if file.baseline is None]
    cache.write(make_kept())
    assert (cache.read(MARKS) is not None) is place.is_file()
    assert cache.clear() > 0
    assert cache.files() == []


def test_nothing_of_inputs_or_of_the_moment_is_kept_and_a_text_moves_no_cursor():
    kept = make_kept(record={**RECORD, "samples_ns": {"span": [[1]]}, "gpu": {"power_w": [1]}}, definition="a\x1b[2Jb")
    assert (kept.record, kept.definition) == (RECORD, "a [2Jb")


def test_what_a_linked_folder_leads_to_is_not_removed_and_a_folder_that_cannot_be_is_none(cache, tmp_path):
    elsewhere = BaselineCache(tmp_path)
    elsewhere.write(make_kept())
    cache.folder.parent.mkdir()
    cache.folder.symlink_to(elsewhere.folder)
    assert (cache.files(), cache.clear()) == ([], 0)
    assert elsewhere.read(MARKS) is not None
    (tmp_path / "file").write_text("a file")
    without = BaselineCache(tmp_path / "file")
    without.write(make_kept())
    assert without.read(MARKS) is None


class OtherEvaluator(DefaultEvaluator):
    """Judges otherwise."""

    revision = DefaultEvaluator.revision + 1


class Outside(DefaultEvaluator):
    """Is not ours."""


Outside.__module__ = "theirs"


@pytest.fixture
def session(tmp_path, monkeypatch):
    """Return a function that gives what one session finds and keeps; keywords change its conditions."""
    (tmp_path / "blob").mkdir()
    (tmp_path / "blob" / "x.safetensors").write_bytes(b"stored")
    stored = {"x": {"type": "safetensors", "path": "blob/x.safetensors", "tensor_key": "x"}}

    def opened(**changes):
        how = {"baselines": "use", "gpu_uuid": "GPU-1", "settings": SETTINGS, "state": STATE, "libraries": "2.11"}
        how |= {"environment": {}, "reference": "def run(x):\n    return x * 2\n", "evaluator": DefaultEvaluator}
        how |= {"axes": {"n": 4}, "num_trials": 3, **changes}
        monkeypatch.setattr(reference_timing, "read_gpu_settings", lambda _uuid: how["settings"])
        monkeypatch.setattr(reference_timing, "read_gpu_state", lambda _uuid: how["state"])
        hello = {name: how[name] for name in ("baselines", "gpu_uuid")}
        hello = Hello.model_construct(hardware="H200", cache_root=str(tmp_path / "cache"), **hello)
        kept = KeptTimes.open(hello, {"torch": how["libraries"]}, how["environment"])
        if kept is None:
            return None
        definition = make_definition(reference=how["reference"])
        config = BenchmarkConfig(num_trials=how["num_trials"]).resolve_eval_config(definition)
        workload = make_workload(axes=how["axes"], inputs=stored)
        job = SimpleNamespace(
            block=SimpleNamespace(definition=definition, evaluator=how["evaluator"], config=config),
            workload=workload,
            order=SimpleNamespace(blob_root=str(tmp_path)),
            key=(definition.digest(), workload.digest()),
        )
        plan = replace(MeasurePlan(10, 50, 2.0), **how.get("measured", {}))
        return SimpleNamespace(find=lambda: kept.find(job, plan), keep=lambda measured: kept.keep(job, plan, measured))

    return opened


OTHER = {
    "definition": {"reference": "def run(x):\n    return x + x\n"},
    "workload": {"axes": {"n": 5}},
    "timing": {"measured": {"timing": TimingSettings("warm")}},
    "trials": {"num_trials": 1},
    "evaluator": {"evaluator": OtherEvaluator},
    "device": {"gpu_uuid": "GPU-2"},
    "power limit": {"settings": replace(SETTINGS, power_limit_w=300.0)},
    "locked clocks": {"state": replace(STATE, sm_mhz=1200)},
    "versions": {"libraries": "2.12"},
    "environment": {"environment": {"CUDA_LAUNCH_BLOCKING": "1"}},
    "--fresh-baselines": {"baselines": "refresh"},
}


def test_a_later_session_finds_what_an_earlier_one_kept(session):
    session().keep(MEASURED)
    for same in ({}, {"environment": {"HOME": "/root", "PATH": "/bin"}}, {"state": replace(STATE, sm_mhz=1965)}):
        found = session(**same).find()
        assert (found.latency_ms, found.trials) == (2.0, [2.0])
        assert found.record == {**RECORD, "source": "cached", "taken": found.record["taken"]}
    session(baselines="refresh").keep(replace(MEASURED, latency_ms=2.01))
    assert session().find().latency_ms == 2.01


@pytest.mark.parametrize("change", OTHER.values(), ids=OTHER)
def test_nothing_is_taken_over_if_something_differs(session, change):
    session().keep(MEASURED)
    assert session(**change).find() is None


def test_a_stored_input_that_was_written_anew_is_another_one_and_a_missing_one_has_no_baseline(session, tmp_path):
    stored = tmp_path / "blob" / "x.safetensors"
    session().keep(MEASURED)
    stored.write_bytes(b"STORED")
    assert session().find() is None
    stored.unlink()
    session().keep(MEASURED)
    assert session().find() is None


@pytest.mark.parametrize(
    ("changes", "is_kept"),
    [
        ({"flags": ["throttled"]}, False),
        ({"flags": ["throttled"], "gpu": {"slowed_by": ["power_cap", "sw_thermal"]}}, False),
        ({"flags": ["throttled", "other_processes"], "gpu": {"slowed_by": ["power_cap"]}}, False),
        ({"interval95_ms": [1.95, 2.05]}, False),
        ({"interval95_ms": None}, False),
        ({"flags": ["throttled"], "gpu": {"slowed_by": ["power_cap"]}}, True),
    ],
    ids=["throttled", "hot", "not alone", "not known well", "too few samples", "draws all the power"],
)
def test_what_was_disturbed_or_is_not_known_well_is_not_kept_and_leaves_no_older_one(session, changes, is_kept):
    session().keep(MEASURED)
    session(baselines="refresh").keep(replace(MEASURED, record={**RECORD, **changes}))
    assert (session().find() is not None) is is_kept


@pytest.mark.parametrize(
    "how",
    [
        {"settings": None},
        {"state": None},
        {"baselines": "off"},
        {"gpu_uuid": None},
        {"evaluator": Outside},
    ],
    ids=["unknown GPU", "no clock told", "off", "a CPU", "an evaluator from outside"],
)
def test_nothing_is_kept_if_what_it_depends_on_is_not_known_or_nobody_wants_it(session, tmp_path, how):
    opened = session(**how)
    assert (opened is not None) is ("evaluator" in how)
    if opened is not None:
        opened.keep(MEASURED)
    assert not (tmp_path / "cache").exists()


def test_a_cached_time_gets_the_launch_gap_of_this_run():
    moved = move_to_gap(MEASURED, 1600)
    assert (moved.latency_ms, moved.trials) == (pytest.approx(2.0005), [pytest.approx(2.0005)])
    assert moved.record["interval95_ms"] == pytest.approx([1.9905, 2.0105])
    assert (moved.record["launch_gap_ns"], moved.record["std_ms"]) == (1600, 2.0)
    without_gpu_work = replace(MEASURED, record={**RECORD, "operations": 0})
    assert move_to_gap(without_gpu_work, 1600) is without_gpu_work
