"""A reference makes its first call here and in its worker at once; what fails in either is told where it counts."""

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.runner.session.reference_timing import ReferenceTimer, SlowReference
from flashinfer_bench.bench.runner.workers.pool import WorkerPool, reference_files
from flashinfer_bench.errors import DefinitionFault, SolutionFailure, WorkloadFault
from flashinfer_bench.timing.measurement import Measured

pytestmark = pytest.mark.cpu


class FakeKernel:
    """A reference's worker; `fails` is raised by its first call, before what is done beside it, or after."""

    worker = object()

    def __init__(self, fails=None, *, late=False):
        self.calls = 0
        self.meanwhile = None
        self._fails = fails
        self._late = late

    def call_once(self, inputs):
        self.calls += 1
        if self._fails is not None and not self._late:
            raise self._fails
        if self.meanwhile is not None:
            self.meanwhile()
        if self._fails is not None:
            raise self._fails

    def measure(self, input_sets):
        return Measured(1.0, [1.0], {})


def open_timer(monkeypatch, kernel):
    """Return a timer with this kernel for each job, and what it has ended."""
    ended = []
    monkeypatch.setattr(ReferenceTimer, "_open_kernel", lambda timer, job: kernel)
    monkeypatch.setattr(ReferenceTimer, "_load", lambda *_arguments: None)
    end = partial(ended.append, kernel)
    real = WorkerPool(None, None, SimpleNamespace(device="cpu", gpu_index=None, sessions=1), on_ready=None)
    pool = SimpleNamespace(end_reference=end, finish_ending=end, tend_spares=lambda: None)
    pool.excess_ns, pool.see_context = real.excess_ns, real.see_context
    pool.is_awaited, pool.work_while = lambda _files: False, partial(WorkerPool.work_while, pool)
    tools = SimpleNamespace(readout=SimpleNamespace(launch_gap_ns=0))
    return ReferenceTimer(SimpleNamespace(device="cpu"), pool, tools), ended


def make_job(reference, key="job"):
    return SimpleNamespace(
        key=key, block=SimpleNamespace(reference=reference, definition=SimpleNamespace(name="d", digest=lambda: "d"))
    )


def test_both_make_their_first_call_and_the_worker_makes_it_once(monkeypatch):
    kernel, seen = FakeKernel(), []
    timer, ended = open_timer(monkeypatch, kernel)
    job = make_job(lambda inputs: [*inputs, "expected"])
    outputs = timer.call_first(job, [1], [lambda inputs, outputs: seen.append((inputs, outputs))])
    assert outputs == [1, "expected"]
    assert seen == [([1], outputs)]
    timer.measure(job, [[1]], is_alone=True)
    assert (kernel.calls, ended) == (1, [])
    timer.measure(make_job(job.block.reference, "another"), [[1]], is_alone=True)
    assert kernel.calls == 2


@pytest.mark.parametrize(("looks", "ahead"), [(0, []), (1, ["here"]), (2, ["here", "a"]), (9, ["here", "a", "b"])])
def test_what_can_be_done_is_done_while_no_worker_has_started(monkeypatch, looks, ahead):
    kernel, done, asked = FakeKernel(), [], []
    timer, _ = open_timer(monkeypatch, kernel)
    monkeypatch.setattr(ReferenceTimer, "_open_kernel", lambda timer, job: done.append("worker") or kernel)
    timer.pool.is_awaited = lambda files: asked.append(files) or len(asked) <= looks
    steps = [lambda inputs, outputs, name=name: done.append(name) for name in ("a", "b")]
    assert timer.call_first(make_job(lambda inputs: done.append("here") or inputs), [1], steps) == [1]
    left = [name for name in ("here", "a", "b") if name not in ahead]
    assert done == [*ahead, "worker", *left]
    assert set(asked) == {reference_files("d")}


def test_a_first_call_of_another_worker_does_not_count(monkeypatch):
    kernel = FakeKernel()
    timer, _ = open_timer(monkeypatch, kernel)
    job = make_job(list)
    timer.call_first(job, [1])
    kernel.worker = object()
    timer.measure(job, [[1]], is_alone=True)
    assert kernel.calls == 2


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_what_fails_in_the_worker_is_told_when_it_is_timed(monkeypatch, late):
    kernel = FakeKernel(SolutionFailure("RUNTIME_ERROR", "no such kernel"), late=late)
    timer, ended = open_timer(monkeypatch, kernel)
    job = make_job(list)
    assert timer.call_first(job, [1]) == [1]
    assert ended == [kernel]
    with pytest.raises(DefinitionFault, match="no such kernel"):
        timer.measure(job, [[1]], is_alone=True)


@pytest.mark.parametrize("lacks", [MemoryError("all in use"), WorkloadFault("does not fit")])
def test_a_call_that_lacks_memory_beside_the_other_is_made_alone(monkeypatch, lacks):
    timer, ended = open_timer(monkeypatch, FakeKernel())
    tries = []

    def lacks_memory_at_first(inputs):
        tries.append(len(ended))
        if len(tries) == 1:
            raise lacks
        return inputs

    assert timer.call_first(make_job(lacks_memory_at_first), [1]) == [1]
    assert tries == [0, 2]  # the worker has ended, and that was waited for


def test_a_reference_that_fails_is_not_called_twice(monkeypatch):
    timer, ended = open_timer(monkeypatch, FakeKernel())
    tries = []

    def fails(inputs):
        tries.append(inputs)
        raise DefinitionFault("it divides by zero")

    with pytest.raises(DefinitionFault, match="divides by zero"):
        timer.call_first(make_job(fails), [1])
    assert (len(tries), ended) == (1, [])


def test_where_something_else_fails_the_worker_is_ended_whose_answer_is_still_to_come(monkeypatch):
    timer, ended = open_timer(monkeypatch, FakeKernel())
    with pytest.raises(ZeroDivisionError):
        timer.call_first(make_job(lambda inputs: 1 / 0), [1])
    assert len(ended) == 1


def test_a_first_call_that_took_all_its_time_is_not_made_again(monkeypatch):
    kernel = FakeKernel(SolutionFailure("TIMEOUT", "still running"), late=True)
    timer, _ = open_timer(monkeypatch, kernel)
    job = make_job(list)
    assert timer.call_first(job, [1]) == [1]
    with pytest.raises(DefinitionFault, match="still running"):
        timer.measure(job, [[1]], is_alone=True)
    assert kernel.calls == 1


def time_in_context(monkeypatch, record, kept=None):
    """Return a timer whose references have this record, a job, and which workers were ended."""
    kernel = FakeKernel()
    kernel.measure = lambda _sets: Measured(0.1, [0.1], record)
    timer, ended = open_timer(monkeypatch, kernel)
    timer.kept = kept
    monkeypatch.setattr(ReferenceTimer, "_plan", lambda *_arguments: None)
    return timer, make_job(list), ended


IN_A_SLOW_CONTEXT = {"chain_gap_ns": 1_954, "operations": 40}


@pytest.mark.parametrize(
    ("chain_gap_ns", "operations", "is_slow"),
    [(1_954, 40, True), (1_954, 2, False), (1_834, 40, False), (0, 40, False)],
    ids=["slow", "few operations", "fast", "unknown"],
)
def test_a_reference_whose_context_turns_out_to_be_slow_is_timed_again(monkeypatch, chain_gap_ns, operations, is_slow):
    timer, job, ended = time_in_context(monkeypatch, {"chain_gap_ns": chain_gap_ns, "operations": operations})
    timer.measure(job, [[1]], is_alone=False)
    timer.check_context(job)  # nobody has seen a better one
    timer.pool.see_context(1_770)
    with pytest.raises(SlowReference) if is_slow else nullcontext():
        timer.check_context(job)
    if not is_slow:
        return
    assert timer.forget_slow() == {job.key}
    assert timer.recall(job) is None
    assert len(ended) == 1


def test_it_is_timed_again_at_once_where_a_faster_context_was_seen_meanwhile(monkeypatch):
    timer, job, ended = time_in_context(monkeypatch, IN_A_SLOW_CONTEXT)
    timer.pool.tend_spares = lambda: timer.pool.see_context(1_770)
    taken = []
    take = ReferenceTimer._take
    monkeypatch.setattr(ReferenceTimer, "_take", lambda *given: taken.append(len(ended)) or take(*given))
    timer.measure(job, [[1]], is_alone=False)
    assert taken == [0, 1]
    timer.check_context(job)  # no faster one was to be had


def test_other_workloads_in_slow_contexts_are_told_to_the_session_and_not_forgotten_in_silence(monkeypatch):
    timer, first, _ = time_in_context(monkeypatch, IN_A_SLOW_CONTEXT)
    timer.measure(first, [[1]], is_alone=False)
    timer.pool.tend_spares = lambda: timer.pool.see_context(1_770)
    second = make_job(list, "second")
    timer.measure(second, [[1]], is_alone=False)
    assert timer.recall(first) is not None
    with pytest.raises(SlowReference):
        timer.check_context(first)
    timer.check_context(second)
    assert timer.forget_slow() == {first.key}


def test_it_is_timed_again_once_also_where_an_earlier_run_has_kept_it(monkeypatch):
    kept = SimpleNamespace(find=lambda job, plan: Measured(0.1, [0.1], IN_A_SLOW_CONTEXT), keep=None)
    timer, job, _ = time_in_context(monkeypatch, IN_A_SLOW_CONTEXT, kept)
    timer.measure(job, [[1]], is_alone=False)
    timer.pool.see_context(1_770)
    with pytest.raises(SlowReference):
        timer.check_context(job)
    timer.forget_slow()
    assert timer.recall(job) is None
    timer.measure(job, [[1]], is_alone=False)
    timer.check_context(job)
    assert timer.forget_slow() == set()
