"""Which times of references a session takes over from earlier runs, and which it leaves for later ones."""

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.runner.baseline_cache import BaselineCache
from flashinfer_bench.bench.runner.protocol import BlockJob, Hello
from flashinfer_bench.bench.runner.session import kept_baselines
from flashinfer_bench.bench.runner.session.job import BlockContext
from flashinfer_bench.bench.runner.session.kept_baselines import KeptBaselines, move_to_gap, open_kept_baselines
from flashinfer_bench.bench.runner.session.reference_timing import ReferenceTimer
from flashinfer_bench.bench.runner.workers.kernel_task import MeasurePlan
from flashinfer_bench.timing.gpu_state import GpuSettings, GpuState
from flashinfer_bench.timing.measurement import Measured
from flashinfer_bench.timing.settings import TimingSettings
from tests.bench.runner.test_baseline_cache import RECORD
from tests.kit import make_definition, make_workload

pytestmark = pytest.mark.cpu
STORED = {"x": {"type": "safetensors", "path": "blob/x.safetensors", "tensor_key": "x"}}
PLAN = MeasurePlan(10, 50, 2.0)
MEASURED = Measured(2.0, [2.0], RECORD)
SETTINGS = GpuSettings(700.0, 1980, 3201, 1980, 3201)
STATE = GpuState(1980, 3201, 400.0, 40, (), 0)


@pytest.fixture
def here(tmp_path):
    (tmp_path / "blob").mkdir()
    (tmp_path / "blob" / "x.safetensors").write_bytes(b"stored")
    return tmp_path


def make_hello(here, **changes):
    fields = {"device": "cuda", "hardware": "H200", "isolated": False, "timeout_seconds": 5.0, "profile_baseline": True}
    fields |= {"time_budget_s": 1.0, "baseline_budget_s": 2.0, "worker_memory_bytes": None, "needs_triton": False}
    return Hello(**{**fields, "cache_root": str(here / "cache"), "gpu_uuid": "GPU-1", "baselines": "use", **changes})


def make_kept(here, hello=None, **changes):
    hello = hello or make_hello(here)
    marks = {"device": "GPU-1", "gpu": "700 W", "libraries": "torch 2.11"}
    return KeptBaselines(hello, BaselineCache(here / "cache"), {**marks, **changes}, sm_mhz=1980)


def make_job(here, *, reference="def run(x):\n    return x * 2\n", evaluator=DefaultEvaluator, axes=None, **settings):
    definition = make_definition(reference=reference)
    config = BenchmarkConfig(**settings).resolve_eval_config(definition)
    block = BlockContext(definition, config, evaluator, Reference.compile(definition), {})
    workload = make_workload(axes=axes or {"n": 4}, inputs=STORED).model_dump(mode="json")
    return block.open_job(BlockJob(index=0, solution="s", workload=workload, blob_root=str(here), seed=1))


def test_a_later_session_finds_what_an_earlier_one_kept(here):
    make_kept(here).keep(make_job(here), PLAN, MEASURED)
    found = make_kept(here).find(make_job(here), PLAN)
    assert (found.latency_ms, found.trials, found.record["source"]) == (2.0, [2.0], "cached")
    assert {name: found.record[name] for name in RECORD} == RECORD


def write_blob_anew(here):
    (here / "blob" / "x.safetensors").write_bytes(b"STORED")
    return make_kept(here), make_job(here)


class OtherEvaluator(DefaultEvaluator):
    """Judges otherwise."""

    revision = DefaultEvaluator.revision + 1


OTHER = {
    "definition": lambda here: (make_kept(here), make_job(here, reference="def run(x):\n    return x + x\n")),
    "workload": lambda here: (make_kept(here), make_job(here, axes={"n": 5})),
    "blob": write_blob_anew,
    "iterations": lambda here: (make_kept(here), make_job(here), replace(PLAN, iterations=20)),
    "trials": lambda here: (make_kept(here), make_job(here, num_trials=1)),
    "evaluator": lambda here: (make_kept(here), make_job(here, evaluator=OtherEvaluator)),
    "budget": lambda here: (make_kept(here), make_job(here), replace(PLAN, budget_s=1.0)),
    "timing": lambda here: (make_kept(here), make_job(here), replace(PLAN, timing=TimingSettings("warm"))),
    "device": lambda here: (make_kept(here, device="GPU-2"), make_job(here)),
    "power limit": lambda here: (make_kept(here, gpu="300 W"), make_job(here)),
    "versions": lambda here: (make_kept(here, libraries="torch 2.12"), make_job(here)),
    "locked clocks": lambda here: (replace(make_kept(here), sm_mhz=1200), make_job(here)),
    "--fresh-baselines": lambda here: (make_kept(here, make_hello(here, baselines="refresh")), make_job(here)),
}


@pytest.mark.parametrize("change", OTHER.values(), ids=OTHER)
def test_nothing_is_taken_over_where_something_differs(here, change):
    make_kept(here).keep(make_job(here), PLAN, MEASURED)
    kept, job, plan = (*change(here), PLAN)[:3]
    assert kept.find(job, plan) is None


def test_a_clock_that_differs_a_little_is_the_same_setting(here):
    make_kept(here).keep(make_job(here), PLAN, MEASURED)
    assert replace(make_kept(here), sm_mhz=1965).find(make_job(here), PLAN) is not None


def test_fresh_baselines_are_kept_in_the_place_of_older_ones(here):
    make_kept(here).keep(make_job(here), PLAN, MEASURED)
    fresh = make_kept(here, make_hello(here, baselines="refresh"))
    fresh.keep(make_job(here), PLAN, replace(MEASURED, latency_ms=2.01))
    assert make_kept(here).find(make_job(here), PLAN).latency_ms == 2.01


@pytest.mark.parametrize(
    "changes",
    [
        {"flags": ["throttled"]},
        {"flags": ["throttled"], "gpu": {"slowed_by": ["power_cap", "sw_thermal"]}},
        {"flags": ["throttled", "other_processes"], "gpu": {"slowed_by": ["power_cap"]}},
        {"flags": ["other_processes", "noisy"]},
        {"interval95_ms": [1.95, 2.05]},
        {"interval95_ms": None},
        {"median_ms": -1.0},
    ],
    ids=["throttled", "hot", "also not alone", "not alone", "not known well", "too few readings", "strange"],
)
def test_what_was_disturbed_or_is_not_known_well_is_not_kept(here, changes):
    make_kept(here).keep(make_job(here), PLAN, replace(MEASURED, record={**RECORD, **changes}))
    assert make_kept(here).find(make_job(here), PLAN) is None
    assert not (here / "cache").exists()


def test_a_reference_that_draws_all_the_power_is_kept(here):
    record = {**RECORD, "flags": ["throttled"], "gpu": {"slowed_by": ["power_cap"]}}
    make_kept(here).keep(make_job(here), PLAN, replace(MEASURED, record=record))
    assert make_kept(here).find(make_job(here), PLAN) is not None


def test_a_fresh_baseline_that_is_not_kept_leaves_no_older_one(here):
    make_kept(here).keep(make_job(here), PLAN, MEASURED)
    fresh = make_kept(here, make_hello(here, baselines="refresh"))
    fresh.keep(make_job(here), PLAN, replace(MEASURED, record={**RECORD, "flags": ["throttled"]}))
    assert make_kept(here).find(make_job(here), PLAN) is None


def test_a_stored_input_that_is_missing_or_an_evaluator_from_outside_has_no_marks(here):
    outside = type("Outside", (DefaultEvaluator,), {"__module__": "theirs"})
    (here / "blob" / "x.safetensors").rename(here / "blob" / "y.safetensors")
    for job in (make_job(here), make_job(here, evaluator=outside)):
        make_kept(here).keep(job, PLAN, MEASURED)
        assert make_kept(here).find(job, PLAN) is None
    assert not (here / "cache").exists()


def fake_nvml(monkeypatch, settings=SETTINGS, state=STATE):
    monkeypatch.setattr(kept_baselines, "read_gpu_settings", lambda uuid: settings)
    monkeypatch.setattr(kept_baselines, "read_gpu_state", lambda uuid: state)


def test_the_marks_of_a_machine_tell_gpu_limits_versions_and_settings_of_the_environment(here, monkeypatch):
    def marks(settings=SETTINGS, libraries=None, environment=None, **changes):
        fake_nvml(monkeypatch, settings)
        opened = open_kept_baselines(make_hello(here, **changes), libraries or {"torch": "2.11"}, environment or {})
        return dict(opened.machine), opened.sm_mhz

    usual = marks()
    assert usual == marks(environment={"HOME": "/root", "CUDA_VISIBLE_DEVICES": "1"})
    assert usual[1] == 1980
    for other in (
        marks(replace(SETTINGS, power_limit_w=500.0)),
        marks(replace(SETTINGS, application_sm_mhz=1200)),
        marks(libraries={"torch": "2.12"}),
        marks(environment={"CUDA_LAUNCH_BLOCKING": "1"}),
        marks(gpu_uuid="GPU-2"),
    ):
        assert other != usual


@pytest.mark.parametrize(
    ("settings", "state", "baselines"),
    [(None, None, "use"), (replace(SETTINGS, power_limit_w=None), STATE, "use"), (SETTINGS, STATE, "off")],
    ids=["a GPU that NVML does not know", "no limit told", "off"],
)
def test_nothing_is_kept_where_the_gpu_does_not_tell_its_limits_or_nobody_wants_it(
    here, monkeypatch, settings, state, baselines
):
    fake_nvml(monkeypatch, settings, state)
    assert open_kept_baselines(make_hello(here, baselines=baselines), {}, os.environ) is None


class FakeKernel:
    """A reference's worker, with its time."""

    worker = object()

    def call_once(self, inputs):
        pass

    def measure(self, input_sets):
        return replace(MEASURED, latency_ms=float(len(input_sets)))


@pytest.mark.parametrize(("is_alone", "latency_ms"), [(True, 3.0), (False, None)])
def test_only_a_time_that_was_taken_while_no_worker_held_a_solution_is_left_for_later_runs(
    here, monkeypatch, is_alone, latency_ms
):
    monkeypatch.setattr(ReferenceTimer, "_open_kernel", lambda timer, job: FakeKernel())
    monkeypatch.setattr(ReferenceTimer, "_load", lambda *_arguments: None)
    tools = SimpleNamespace(readout=SimpleNamespace(launch_gap_ns=RECORD["launch_gap_ns"]))
    job = make_job(here)
    pool = SimpleNamespace(tend_spares=lambda: None, excess_ns=lambda _gap: 0)
    timer = ReferenceTimer(make_hello(here), pool, tools, make_kept(here))
    timer.measure(job, [[1], [2], [3]], is_alone=is_alone)
    assert timer.measure(job, [], is_alone=True).latency_ms == 3.0  # it is timed once in a run
    later = ReferenceTimer(make_hello(here), None, tools, make_kept(here))
    found = later.recall(job)
    assert (found and found.latency_ms) == latency_ms
    if found:
        assert later.measure(job, [], is_alone=True).record["source"] == "cached"


def test_a_cached_time_gets_the_launch_gap_of_this_run():
    moved = move_to_gap(MEASURED, 1600)
    assert (moved.latency_ms, moved.trials) == (pytest.approx(2.0005), [pytest.approx(2.0005)])
    assert moved.record["median_ms"] == pytest.approx(2.0005)
    assert moved.record["interval95_ms"] == pytest.approx([1.9905, 2.0105])
    assert (moved.record["launch_gap_ns"], moved.record["std_ms"]) == (1600, 2.0)
    assert move_to_gap(moved, 1600) is moved
    without_gpu_work = replace(MEASURED, record={**RECORD, "operations": 0})
    assert move_to_gap(without_gpu_work, 1600) is without_gpu_work
