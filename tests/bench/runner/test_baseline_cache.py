"""Times of references on disk: reuse by later runs, the stored fields, and foreign files."""

import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.runner.baseline_cache import BaselineCache, KeptBaseline
from flashinfer_bench.bench.runner.protocol import SessionConfig
from flashinfer_bench.bench.runner.session import reference_timing
from flashinfer_bench.bench.runner.session.reference_timing import KeptTimes, ReferenceTimer, move_to_gap
from flashinfer_bench.bench.runner.workers.kernel_task import MeasurePlan
from flashinfer_bench.timing.measurement import Measured
from flashinfer_bench.timing.nvml import GpuSettings, GpuState
from flashinfer_bench.timing.settings import TimingSettings
from tests.kit import make_definition, make_workload

pytestmark = pytest.mark.cpu
KEYS = {"definition": "d", "workload": "w", "device": "GPU-1"}
TIMES = {f"{name}_ms": 2.0 for name in ("mean", "std", "min", "q25", "median", "q75", "max")}
RECORD = {"method": "cupti", "cache_state": "cold", "stop": "precision", "calls": 14, "trials": 1, "samples": 9}
RECORD |= {**TIMES, "interval95_ms": [1.99, 2.01], "launch_gap_ns": 1100, "operations": 7, "flags": ["host_bound"]}
MEASURED = Measured(2.0, [2.0], RECORD)
SETTINGS, STATE = GpuSettings(700.0, 1980, 3201, 1980, 3201), GpuState(1980, 3201, 400.0, 40, (), 0)


def make_kept(**changes):
    fields = {"marks": KEYS, "sm_mhz": 1980, "definition": "double", "workload": "w0", "hardware": "H200"}
    fields |= {"taken": "2026-01-01T00:00:00Z", "latency_ms": 2.0, "trials_ms": [2.0], "record": RECORD}
    return KeptBaseline.model_validate({**fields, **changes})


def edited(**changes):
    return lambda path: path.write_text(json.dumps({**json.loads(make_kept().model_dump_json()), **changes}))


HOSTILE = {
    "a pipe": os.mkfifo,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "too large": lambda path: path.write_text(make_kept().model_dump_json() + " " * (1 << 20)),
    "cut short": lambda path: path.write_text(make_kept().model_dump_json()[:-20]),
    "nested deeply": lambda path: path.write_text("[" * 50_000),
    "about something else": edited(marks={**KEYS, "definition": "other"}),
    "of a later form": edited(format=2),
    "an endless time": edited(latency_ms=1e300 * 1e300),
    "no record": edited(record={}),
}


@pytest.mark.parametrize("spoil", HOSTILE.values(), ids=HOSTILE)
def test_a_file_that_is_no_baseline_of_ours_counts_as_missing_and_is_listed_as_such(tmp_path, spoil):
    cache = BaselineCache(tmp_path)
    cache.folder.mkdir()
    place = cache.path_of(KEYS)
    spoil(place)
    assert cache.read(KEYS) is None
    assert place in [file.path for file in cache.files() if file.baseline is None]
    cache.write(make_kept())
    assert (cache.read(KEYS) is not None) is place.is_file()
    assert cache.clear() > 0
    assert cache.files() == []


def test_a_linked_folder_is_not_cleared_and_a_text_moves_no_cursor(tmp_path):
    elsewhere, cache = BaselineCache(tmp_path / "elsewhere"), BaselineCache(tmp_path)
    elsewhere.write(make_kept(definition="a\x1b[2Jb"))
    cache.folder.symlink_to(elsewhere.folder)
    assert (cache.files(), cache.clear()) == ([], 0)
    assert elsewhere.read(KEYS).definition == "a\\x1b[2Jb"


class OtherEvaluator(DefaultEvaluator):
    """Judges otherwise."""

    revision = DefaultEvaluator.revision + 1


class Outside(DefaultEvaluator):
    """Is not ours."""


Outside.__module__ = "theirs"


@pytest.fixture
def session(tmp_path, monkeypatch):
    """Return a function that gives the cached times of one session; keywords change its conditions."""
    (tmp_path / "x.safetensors").write_bytes(b"stored")
    stored = {"x": {"type": "safetensors", "path": "x.safetensors", "tensor_key": "x"}}

    def opened(
        *,
        baselines="use",
        gpu_uuid="GPU-1",
        settings=SETTINGS,
        state=STATE,
        libraries="2.11",
        environment=(),
        reference="def run(x):\n    return x * 2\n",
        evaluator=DefaultEvaluator,
        n=4,
        num_trials=3,
        mode="",
        **plan,
    ):
        monkeypatch.setattr(reference_timing, "read_gpu_settings", lambda _uuid: settings)
        monkeypatch.setattr(reference_timing, "read_gpu_state", lambda _uuid: state)
        names = {"baselines": baselines, "gpu_uuid": gpu_uuid, "cache_root": str(tmp_path / "cache")}
        kept = KeptTimes.open(
            SessionConfig.model_construct(hardware="H200", **names), {"torch": libraries}, dict(environment)
        )
        kept = ReferenceTimer(None, None, kept, mode).kept
        definition, workload = make_definition(reference=reference), make_workload(axes={"n": n}, inputs=stored)
        config = BenchmarkConfig(num_trials=num_trials).resolve_eval_config(definition)
        job = SimpleNamespace(
            request=SimpleNamespace(definition=definition, evaluator=evaluator, config=config),
            workload=workload,
            requested=SimpleNamespace(blob_root=str(tmp_path)),
            key=(definition.digest(), workload.digest()),
        )
        taken = replace(MeasurePlan(10, 50, 2.0), **plan)
        return SimpleNamespace(
            find=lambda: kept and kept.find(job, taken), keep=lambda measured: kept and kept.keep(job, taken, measured)
        )

    return opened


SLOWED = {"flags": ["throttled"], "gpu": {"slowed_by": ["power_cap"]}}
# What belongs to the user alone does not count.
SAME = [{}, {"environment": {"PATH": "/bin"}.items()}, {"state": replace(STATE, sm_mhz=1965)}]
OTHERS = [
    {"reference": "def run(x):\n    return x + x\n"},
    {"n": 5},
    {"timing": TimingSettings("warm")},
    {"num_trials": 1},
    {"evaluator": OtherEvaluator},
    {"gpu_uuid": "GPU-2"},
    {"settings": replace(SETTINGS, power_limit_w=300.0)},
    {"state": replace(STATE, sm_mhz=1200)},
    {"libraries": "2.12"},
    {"environment": {"CUDA_LAUNCH_BLOCKING": "1"}.items()},
    {"baselines": "refresh"},
    {"mode": "default"},
]
UNSURE = [  # A record that was disturbed, or is not known well, is not kept, and leaves no older one.
    {"flags": ["throttled"]},
    {**SLOWED, "gpu": {"slowed_by": ["power_cap", "sw_thermal"]}},
    {**SLOWED, "flags": ["throttled", "other_processes"]},
    {"interval95_ms": [1.95, 2.05]},
    {"interval95_ms": None},
]
# Nothing is kept if its conditions are not known, or nobody wants it.
UNKNOWN = [{"settings": None}, {"state": None}, {"baselines": "off"}, {"gpu_uuid": None}]


@pytest.mark.parametrize(
    ("earlier", "record", "later", "is_found"),
    [
        *(({}, {}, later, True) for later in SAME),
        *(({}, {}, later, False) for later in OTHERS),
        *(({}, record, {}, record is SLOWED) for record in (*UNSURE, SLOWED)),
        *((earlier, {}, {}, False) for earlier in UNKNOWN),
        ({"evaluator": Outside}, {}, {"evaluator": Outside}, False),
    ],
)
def test_a_later_session_finds_what_an_earlier_one_kept_under_the_same_conditions(
    session, earlier, record, later, is_found
):
    session(**earlier).keep(MEASURED)
    if record:
        session(baselines="refresh").keep(replace(MEASURED, record={**RECORD, **record}))
    found = session(**later).find()
    assert (found is not None) is is_found
    if is_found:
        assert (found.latency_ms, found.trials, found.record["source"]) == (2.0, [2.0], "cached")
        assert found.record["operations"] == RECORD["operations"]
        assert "gpu" not in found.record  # nothing of the moment is kept


def test_a_stored_input_that_was_written_anew_is_another_one_and_a_missing_one_has_no_baseline(session, tmp_path):
    stored = tmp_path / "x.safetensors"
    session().keep(MEASURED)
    stored.write_bytes(b"STORED")
    assert session().find() is None
    stored.unlink()
    session().keep(MEASURED)
    assert session().find() is None


def test_a_cached_time_gets_the_launch_gap_of_this_run():
    moved = move_to_gap(MEASURED, 1600)
    assert (moved.latency_ms, moved.trials) == (pytest.approx(2.0005), [pytest.approx(2.0005)])
    assert moved.record["interval95_ms"] == pytest.approx([1.9905, 2.0105])
    assert (moved.record["launch_gap_ns"], moved.record["std_ms"]) == (1600, 2.0)
    without_gpu_work = replace(MEASURED, record={**RECORD, "operations": 0})
    assert move_to_gap(without_gpu_work, 1600) is without_gpu_work
