"""The host's loop with sessions that only pretend: who waits for a compiler, and who does not."""

import json
import socket
from typing import ClassVar

import pytest

from flashinfer_bench.bench import BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobStarted, Notice
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner import fleet as fleet_module
from flashinfer_bench.bench.runner.fleet import Fleet, FleetRules, Judged
from flashinfer_bench.bench.runner.orders import OrderMaker
from flashinfer_bench.compile import BuildFarm, find_toolchain
from tests.kit.make import make_definition, make_evaluation, make_solution, make_workload
from tests.kit.native import EXPORT, make_native, pretend_compiler, until_there

TOOLCHAIN = find_toolchain()
pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(TOOLCHAIN.cxx is None or TOOLCHAIN.tvm_ffi is None, reason="needs g++ and tvm-ffi"),
]
IN_TURNS = FleetRules(build_turn_s=0.05)


class FakeClient:
    """A session that has a verdict for every job the moment it gets it."""

    is_ready, has_unsent = True, False
    left_s = 100.0
    phase = "solution"
    blocks: ClassVar[list] = []

    def __init__(self, device, hello):
        self._ours, self._theirs = socket.socketpair()

    def fileno(self):
        return self._ours.fileno()

    def send(self, block):
        self.sent = block

    def drop(self):
        self.sent = None

    def begin(self):
        block, self.sent = self.sent, None
        self.blocks.append(block)
        for job in block.jobs:
            verdict = {"job": job.index, "evaluation": make_evaluation().model_dump(mode="json"), "seconds": 0.0}
            self._theirs.sendall(json.dumps({"verdict": verdict}).encode() + b"\n")

    def wait_forever(self):
        pass

    def check_deadline(self):
        pass

    def messages(self):
        for line in self._ours.recv(1 << 20).splitlines():
            yield json.loads(line)

    def end(self):
        self._ours.close()
        self._theirs.close()


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run jobs of solutions on one pretended device; returns what happened, with how many builds were open then.

    At its n-th verdict the file `verdict_n` is made, for a compiler that waits for it.
    """
    monkeypatch.setattr(fleet_module, "SessionClient", FakeClient)
    monkeypatch.setattr(FakeClient, "blocks", [])

    def go(solutions, *, kind, action="sleep 0.3", workloads=2, rules=None, devices=1):
        config = BenchmarkConfig().resolve_eval_config(make_definition())
        pairs = [(one, make_workload(f"w{number}")) for one in solutions for number in range(workloads)]
        jobs = [Job(index, make_definition(), uuid, one, config, {}) for index, (one, uuid) in enumerate(pairs)]
        names = [f"GPU-{number}-of-a-test" if kind == "cuda" else "cpu" for number in range(devices)]
        places = [Device(kind, number, "a device", name) for number, name in enumerate(names)]
        farm = BuildFarm(tmp_path / "cache", jobs=1, toolchain=pretend_compiler(tmp_path, action=action))
        settings = {
            "hello_for": lambda device: None,
            "orders": OrderMaker(farm, blob_root_for=lambda job: tmp_path, seed_of=lambda job: 1),
        }
        with Fleet(places, rules=rules, **settings) as fleet:
            told, verdicts = [], 0
            for happening in fleet.run(jobs):
                told.append((happening, farm.open_builds))
                if isinstance(happening, Judged):
                    verdicts += 1
                    (tmp_path / f"verdict_{verdicts}").touch()
                    if rules is not None and verdicts == workloads:
                        break  # what is left has no end
            return told

    return go


def judged(happenings):
    return [(one.job.solution.name, open_builds) for one, open_builds in happenings if isinstance(one, Judged)]


def test_a_gpu_takes_what_is_built_while_the_rest_is_compiled(run, tmp_path):
    long, short = make_native("long", main=f"// {'x' * 90_000}\n{EXPORT}"), make_native("short")
    waits = [until_there(tmp_path / f"verdict_{count}") for count in (2, 4)]
    action = "if grep -q xxx main.cpp; then {}; else {}; fi".format(*waits)
    happenings = run([short, make_solution(), long], kind="cuda", action=action)
    assert judged(happenings) == [("double_python", 2)] * 2 + [("long", 1)] * 2 + [("short", 0)] * 2
    assert len(FakeClient.blocks) == 3


def test_a_cpu_measures_nothing_while_compilers_run_on_it(run):
    happenings = run([make_native(), make_solution()], kind="cpu")
    assert {open_builds for _, open_builds in judged(happenings)} == {0}
    assert len(FakeClient.blocks) == 1
    assert "compiling 1 solution" in next(one.message for one, _ in happenings if isinstance(one, Notice))


def test_a_build_that_never_ends_keeps_no_other_solution_from_a_cpu_that_stays(run):
    happenings = run([make_native(), make_solution()], kind="cpu", action="sleep 30", rules=IN_TURNS)
    assert judged(happenings) == [("double_python", 1)] * 2


def test_what_does_not_compile_is_judged_and_what_cannot_be_built_here_is_a_fault(run):
    refused = make_native("refused", compile_options={"cflags": ["-o x"]})
    happenings = [one for one, _ in run([refused, make_native()], kind="cuda", action="kill -9 $$")]
    assert [one.job.solution.name for one in happenings if isinstance(one, Judged)] == ["refused"] * 2
    assert FakeClient.blocks[0].solutions["refused"].build_error.startswith("compile_options.cflags: '-o'")
    faults = [one for one in happenings if isinstance(one, JobFaulted)]
    assert [fault.job.solution.name for fault in faults] == ["native"] * 2
    assert "a compiler was killed" in faults[0].message
    assert not [one for one in happenings if isinstance(one, JobStarted)]


@pytest.mark.parametrize(("phase", "is_blamed"), [("reference", True), ("expected", False), ("solution", False)])
def test_a_reference_is_blamed_for_a_lost_session_only_where_no_solution_was_loaded(tmp_path, phase, is_blamed):
    config = BenchmarkConfig().resolve_eval_config(make_definition())
    job = Job(0, make_definition(), make_workload(), make_solution(), config, {})
    farm = BuildFarm(tmp_path / "cache", jobs=1)
    settings = {
        "hello_for": lambda device: None,
        "orders": OrderMaker(farm, blob_root_for=lambda job: tmp_path, seed_of=lambda job: 1),
    }
    with Fleet([], **settings) as fleet:
        fleet.queue.add([job])
        for _ in range(2):
            fleet.queue.take(1)
            told = list(fleet._retry_or_fault(job, "it is gone", retry=True, phase=phase))
        assert [type(one) for one in told] == [JobFaulted]
        assert bool(fleet._retries.broken) == is_blamed


def test_making_a_baseline_ahead_is_not_the_start_of_a_job(tmp_path):
    config = BenchmarkConfig().resolve_eval_config(make_definition())
    job = Job(3, make_definition(), make_workload(), make_solution(), config, {})
    station = fleet_module.Station(Device("cpu", 0, "a device", "cpu"), open_jobs={3: job})
    farm = BuildFarm(tmp_path / "cache", jobs=1)
    settings = {
        "hello_for": lambda device: None,
        "orders": OrderMaker(farm, blob_root_for=lambda job: tmp_path, seed_of=lambda job: 1),
    }
    with Fleet([], **settings) as fleet:
        told = [
            (name, list(fleet._hear(station, {"phase": {"job": 3, "name": name, "limit_s": 1.0}})))
            for name in ("reference", "load", "expected", "solution")
        ]
    assert [name for name, events in told if events] == ["load"]
    assert station.current == 3


def test_a_device_that_another_run_has_keeps_nobody_waiting_who_can_use_another(run, monkeypatch):
    def ask(device, stack):
        while device.label == "cuda:0":
            yield None

    monkeypatch.setattr(fleet_module, "ask_for_device", ask)
    happenings = run([make_solution()], kind="cuda", devices=2)
    assert {one.device.label for one, _ in happenings if isinstance(one, Judged)} == {"cuda:1"}
