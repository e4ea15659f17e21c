"""The reference beside a solution, in real workers on a CPU: what cores they have, who is held still, who failed."""

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Baseline
from flashinfer_bench.bench.runner.readout import Readout
from flashinfer_bench.bench.runner.session import beside as beside_module
from flashinfer_bench.bench.runner.session.beside import (
    ReferenceBeside,
    ReferenceKernel,
    told_in_turns,
)
from flashinfer_bench.bench.runner.session.reference_timing import ReferenceTimer
from flashinfer_bench.bench.runner.workers.arena import SharedArena
from flashinfer_bench.bench.runner.workers.calling_style import FORMAT_DEFAULT, CallingStyle
from flashinfer_bench.bench.runner.workers.claims import OutputSpec
from flashinfer_bench.bench.runner.workers.kernel import TURN_READS, RemoteKernel
from flashinfer_bench.bench.runner.workers.kernel_task import (
    KernelMetadata,
    KernelTask,
    MeasurePlan,
    SessionTools,
    Waiting,
)
from flashinfer_bench.bench.runner.workers.process import WorkerProcess
from flashinfer_bench.bench.runner.workers.timed import turns as turns_module
from flashinfer_bench.compile import Artifact
from flashinfer_bench.data import Performance
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.clocks import Lead
from flashinfer_bench.timing.measurement import KnownCall
from tests.kit.trials import vary
from tests.kit.workers import running_template, worker_order

pytestmark = pytest.mark.cpu

CPU = torch.device("cpu")
X = torch.arange(1.0, 5.0)
NUMBER = 12
CALL = Waiting(1.0, Lead())
PLAN = MeasurePlan(1, 3, 1.0, reads=2)
SPIN = """
import time
def spin(ms):
    end = time.perf_counter() + ms / 1e3
    while time.perf_counter() < end:
        pass
"""
DOUBLE = SPIN + "def run(x):\n    spin({ms})\n    return x * 2\n"


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    with running_template(tmp_path_factory.mktemp("session") / "run") as socket:
        yield socket


class Sides:
    """A solution and a reference, each in a worker with memory of its own."""

    def __init__(self, template, folder):
        self.template, self.folder, self.opened, self.ended = template, folder, [], 0
        self.call_ms = 1.0

    def open(self, source, kind=RemoteKernel, **task):
        number = len(self.opened)
        place = self.folder / f"artifact-{number}"
        place.mkdir()
        (place / "main.py").write_text(source)
        worker = WorkerProcess(self.template, worker_order(), self.folder / f"home-{number}")
        arena = SharedArena(CPU)
        self.opened += [arena, worker]
        worker.wait_ready()
        worker.time_empty_bursts(lambda: None)
        fields = {"timeout_seconds": 60.0, "plan": PLAN, "vary": vary(), **task}
        asked = KernelTask(["x"], [OutputSpec("y", (4,), torch.float32)], **fields)
        tools = SessionTools(arena, Readout(None), lambda: None)
        kernel = kind(worker, tools, asked, KernelMetadata("s", "d", False))
        kernel.load(Artifact(place, "main.py", "run"), {"FOLDER": str(self.folder)})
        kernel.calling_style = CallingStyle("value", FORMAT_DEFAULT)
        return kernel

    def beside(self, reference):
        def end():
            self.ended += 1

        return ReferenceBeside(lambda: reference, end, lambda: False, self.call_ms)

    def take(self, solution, reference):
        """Have both take turns, where the solution was measured before."""
        solution.reads = solution.reads or [[]]
        return self.beside(reference)(solution, [X], NUMBER, CALL)["turns"]


@pytest.fixture
def sides(template, tmp_path, monkeypatch):
    monkeypatch.setattr(beside_module, "OF_CALLS", turns_module.Limits(20.0, 12))  # also where both cores are busy
    made = Sides(template, tmp_path)
    yield made
    for one in reversed(made.opened):
        (one.end if isinstance(one, WorkerProcess) else one.release)()


def open_reference(sides, source, **task):
    return sides.open(source, ReferenceKernel, by_keyword=True, may_write_inputs=True, is_ours=True, **task)


def test_the_ratio_is_how_many_times_as_long_the_reference_takes(sides):
    sides.call_ms = 2.0
    record = sides.take(sides.open(DOUBLE.format(ms=1)), open_reference(sides, DOUBLE.format(ms=2)))
    assert record["ratio"] == pytest.approx(2.0, rel=0.25)
    assert record["rounds"] >= turns_module.FEWEST_ROUNDS


def test_calls_of_turns_get_content_of_their_own_and_some_are_compared(sides):
    solution = sides.open(DOUBLE.format(ms=0.2))
    sides.take(solution, open_reference(sides, DOUBLE.format(ms=0.2)))
    reads = [read for read in solution.reads[0] if read.way == "turn"]
    assert TURN_READS < len(reads) <= 2 * TURN_READS  # of single calls, and of bursts, fewer on a busy machine
    assert len({read.inputs[0].numpy().tobytes() for read in solution.reads[0]}) == len(solution.reads[0])
    assert all(torch.equal(read.outputs[0], read.inputs[0] * 2) for read in solution.reads[0])


NOTES = """
import os
def run(x):
    with open(os.environ["FOLDER"] + "/seen", "a") as seen:
        seen.write(f"{x.tolist()}\\n")
    return x * 2
"""


def test_the_reference_gets_new_content_for_each_call_too(sides):
    sides.take(sides.open(DOUBLE.format(ms=0.2)), open_reference(sides, NOTES))
    seen = (sides.folder / "seen").read_text().splitlines()
    assert len(seen) > turns_module.FEWEST_ROUNDS
    assert len(set(seen)) >= len(seen) - 1  # the evaluator's own come twice


CORES = "import os\ndef run(x):\n    x[:] = 0\n    return x + float(len(os.sched_getaffinity(0)))\n"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this process has one core")
def test_both_keep_to_one_core_for_their_turns_and_have_all_of_them_again(sides):
    solution = sides.open(CORES, in_out_inputs=frozenset("x"))
    sides.take(solution, open_reference(sides, DOUBLE.format(ms=0.1)))
    assert {read.outputs[0][0].item() for read in solution.reads[0]} == {1.0}
    assert solution.call_once([X])[0][0].item() == len(os.sched_getaffinity(0))


CHILD = """
import mmap, os
started = None
def run(x):
    global started
    if started is None:
        count = mmap.mmap(os.open(os.environ["FOLDER"] + "/count", os.O_RDWR), 8)
        started = os.fork()
        while started == 0:
            count[:] = (int.from_bytes(count[:], "little") + 1).to_bytes(8, "little")
    return x * 2
"""
LOOKS = (
    SPIN
    + """
import os
def look():
    with open(os.environ["FOLDER"] + "/count", "rb") as count:
        return int.from_bytes(count.read(8), "little")
def run(x):
    spin(0.2)
    before = look()
    spin(0.5)
    with open(os.environ["FOLDER"] + "/seen", "a") as seen:
        seen.write(f"{before} {look() - before}\\n")
    return x * 2
"""
)


def test_what_a_solution_has_started_stands_still_while_it_is_the_references_turn(sides):
    (sides.folder / "count").write_bytes(bytes(8))
    solution = sides.open(CHILD)
    sides.take(solution, open_reference(sides, LOOKS))
    seen = [line.split() for line in (sides.folder / "seen").read_text().splitlines()]
    assert len(seen) > turns_module.FEWEST_ROUNDS
    assert int(seen[-1][0]) > int(seen[0][0])  # it goes on when it is the solution's turn
    assert sum(moved != "0" for _, moved in seen) <= len(seen) // 10
    assert torch.equal(solution.call_once([X])[0], X * 2)


def test_a_solution_that_fails_in_its_turn_has_failed(sides):
    source = "count = 0\ndef run(x):\n    global count\n    count += 1\n    return x * 2 if count < 9 else 1 / 0\n"
    solution, reference = sides.open(source), open_reference(sides, DOUBLE.format(ms=0.1))
    with pytest.raises(SolutionFailure, match="ZeroDivisionError") as failed:
        sides.take(solution, reference)
    assert (failed.value.is_answer, sides.ended) == (True, 0)
    assert torch.equal(reference.call_once([X])[0], X * 2)
    assert solution.worker.recover()


def test_a_reference_that_fails_beside_a_solution_is_not_the_solutions_failure(sides):
    record = sides.take(sides.open(DOUBLE.format(ms=0.1)), open_reference(sides, "def run(x):\n    return 1 / 0\n"))
    assert "ratio" not in record
    assert "ZeroDivisionError" in record["why_not"]
    assert sides.ended == 1


def test_a_gpu_that_is_not_free_when_the_references_turn_comes_tells_nothing(sides, monkeypatch):
    monkeypatch.setattr(beside_module, "FREE_NS", -(10**12))
    record = sides.take(sides.open(DOUBLE.format(ms=0.1)), open_reference(sides, DOUBLE.format(ms=0.1)))
    assert record["why_not"] == "the GPU was not free when it was the reference's turn"


def test_slow_calls_and_large_ones_take_no_turns_and_no_reference_is_started(sides, monkeypatch):
    solution = sides.open(DOUBLE.format(ms=0.1))
    beside = ReferenceBeside(lambda: pytest.fail("it is started"), lambda: None, lambda: False, 100.0)
    assert "fewer than 10" in beside(solution, [X], NUMBER, CALL)["turns"]["why_not"]
    monkeypatch.setattr(beside_module, "MOST_BYTES", 15)
    beside = replace(beside, call_ms=1.0)
    assert "too large" in beside(solution, [X], NUMBER, CALL)["turns"]["why_not"]


@pytest.mark.parametrize("waits", [True, False])
def test_a_measurement_has_turns_where_the_call_waits_for_the_gpu(sides, monkeypatch, waits):
    numbers = []
    asked = []

    def noted(trial, inputs):
        numbers.append(trial)
        return vary()(trial, inputs)

    def beside(kernel, inputs, number, call):
        asked.append((inputs, number, call))
        return {"turns": {"ratio": 2.0}}

    solution = sides.open(DOUBLE.format(ms=0.1), vary=noted, beside=beside)
    take = solution._take_trial

    def take_trial(*arguments, **keywords):
        trial = take(*arguments, **keywords)
        return as_waiting(trial) if waits else trial

    monkeypatch.setattr(solution, "_take_trial", take_trial)
    measured = solution.measure([[X], [X + 1]])
    assert (measured.record.get("turns") == {"ratio": 2.0}) is waits
    if waits:
        ((inputs, number, call),) = asked
        assert torch.equal(inputs[0], X)
        assert number not in numbers
        assert call == Waiting(measured.latency_ms, Lead(settled=True))


def as_waiting(trial):
    known = KnownCall("wall", trial.samples[0], 1e-4, 1000, 0, True, False, True, False)
    return replace(trial, facts={**trial.facts, "waits_inside": True}, known=known)


def test_a_solution_with_a_setup_takes_no_turns(sides, monkeypatch):
    source = "def setup(x):\n    return {'more': 1}\ndef run(x, more):\n    return x * 2\n"
    solution = sides.open(source, beside=lambda *_arguments: pytest.fail("it takes turns"))
    take = solution._take_trial

    def take_trial(*arguments, **keywords):
        return as_waiting(take(*arguments, **keywords))

    monkeypatch.setattr(solution, "_take_trial", take_trial)
    assert solution.worker.has_setup
    assert "turns" not in solution.measure([[X]]).record


def open_timer(*, device="cuda", has_walls=True, ended=None):
    """Return a timer of references whose arena would lie on such a device."""
    tools = SimpleNamespace(arena=SimpleNamespace(device=torch.device(device)), settle=lambda: False)
    ended = [] if ended is None else ended
    pool = SimpleNamespace(
        has_walls=has_walls,
        end_reference=lambda: ended.append("begun"),
        finish_ending=lambda: ended.append("awaited"),
    )
    return ReferenceTimer(None, pool, tools)


WAITS = Baseline([], [], 0.5, {"flags": ["host_bound", "waits_inside"]})


@pytest.mark.parametrize(
    ("machine", "baseline", "takes"),
    [
        ({}, WAITS, True),
        ({"device": "cpu"}, WAITS, False),
        ({"has_walls": False}, WAITS, False),
        ({}, Baseline([], [], 0.5, {"flags": ["host_bound"]}), False),
        ({}, Baseline([], [], 0.5, {}), False),
        ({}, Baseline([], [], None, None), False),
    ],
    ids=["it waits", "on a CPU", "without walls", "it does not wait", "no flags", "not timed"],
)
def test_a_reference_takes_turns_on_a_gpu_behind_walls_where_it_waits(machine, baseline, takes):
    beside = open_timer(**machine).beside(None, baseline)
    assert (beside is not None) is takes
    assert not takes or beside.call_ms == 0.5


@pytest.mark.parametrize(("above", "is_kept"), [(0, False), (1 << 20, True)])
def test_memory_beside_solutions_is_given_back_once_nobody_maps_it(above, is_kept):
    ended = []
    timer = open_timer(ended=ended)
    timer.release()  # there is none yet
    assert ended == []
    timer.side = SharedArena(CPU)
    timer.side.reserve(1 << 20)
    timer.release(above=above)
    assert (timer.side is not None) is is_kept
    assert ended == ([] if is_kept else ["begun", "awaited"])
    timer.release()


PERFORMANCE = Performance(latency_ms=2.0, reference_latency_ms=3.0, speedup_factor=1.5)


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"turns": {"ratio": 2.0}}, (4.0, 2.0)),
        ({"turns": {"ratio": 9.0}}, (6.0, 3.0)),
        ({"turns": {"why_not": "it was busy"}}, (3.0, 1.5)),
        ({}, (3.0, 1.5)),
        (None, (3.0, 1.5)),
    ],
)
def test_the_reference_is_told_as_the_turns_have_it(record, told):
    performance = told_in_turns(PERFORMANCE, record)
    assert (performance.latency_ms, performance.reference_latency_ms, performance.speedup_factor) == (2.0, *told)


def test_without_a_reference_turns_tell_no_speed_up():
    performance = Performance(latency_ms=2.0)
    assert told_in_turns(performance, {"turns": {"ratio": 2.0}}) == performance
