"""Which jobs a device takes next: every job once, all devices busy, equal shares for submitters."""

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.bench.job_queue import JobQueue, QueueClass

SECONDS = {"d": 0.5, "e": 0.5, "quick": 0.1, "cheap": 0.25, "dear": 2.0}
"""Duration of a job by its definition."""


def make_job(index, solution="s", definition="d"):
    named, key = SimpleNamespace(name=definition), f"{definition}/{solution}"
    return SimpleNamespace(index=index, definition=named, solution=SimpleNamespace(name=solution), solution_key=key)


def make_jobs(*shapes):
    """Jobs of one definition for each (workloads, solutions), in the order of a plan."""
    named = [
        (f"s{one}", f"d{at}") for at, (work, count) in enumerate(shapes) for one in range(count) for _ in range(work)
    ]
    return [make_job(index, *names) for index, names in enumerate(named)]


def packing(jobs=()):
    queue = JobQueue()
    queue.add(jobs)
    return queue


def resident(text, queue=None):
    """The queue of a resident engine with known durations of jobs. Each job is `index submitter solution definition`.

    A digit behind the submitter is the priority.
    """
    if queue is None:
        queue = JobQueue(quantum_s=1.0)
        for definition, seconds in SECONDS.items():
            queue.end(make_job(-1, definition=definition), seconds)
    for index, submitter, *names in (job.split() for job in text.split(",")):
        priority = int(submitter[-1]) if submitter[-1].isdigit() else 0
        queue.add([make_job(int(index), *names)], QueueClass(priority, submitter))
    return queue


def indices(jobs):
    return [job.index for job in jobs]


def take(queue):
    """Take a batch, and end its jobs."""
    jobs = queue.take()
    for job in jobs:
        queue.end(job, SECONDS[job.definition.name])
    return jobs


SHAPES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=5)
# A resumed run leaves holes in the matrix.
JOBS = st.tuples(SHAPES, st.sets(st.integers(0, 400), max_size=120)).map(
    lambda drawn: [job for job in make_jobs(*drawn[0]) if job.index not in drawn[1]]
)


@settings(max_examples=50, deadline=None)
@given(JOBS, st.integers(1, 4), st.lists(st.tuples(st.integers(0, 9), st.sets(st.integers(0, 9))), max_size=12))
def test_every_job_is_taken_once_in_batches_of_one_definition_whatever_is_built_or_given_back(jobs, devices, steps):
    queue, done = packing(jobs), []
    for lost, built in [*steps, *[(0, set(range(10)))] * (len(jobs) + 1)]:
        ready = {f"s{number}" for number in built}
        batch = queue.take("a", devices=devices, is_ready=lambda job, ready=ready: job.solution.name in ready)
        assert {job.solution.name for job in batch} <= ready
        assert len({job.definition.name for job in batch}) <= 1
        kept = batch[: max(0, len(batch) - lost)]
        for job in kept:
            queue.end(job)
        done += indices(kept)
        queue.give_back(batch[len(kept) :])
        assert queue.remaining == len(jobs) - len(done)
    assert sorted(done) == indices(jobs)


@settings(max_examples=50, deadline=None)
@given(JOBS.filter(bool), st.integers(1, 9), st.sampled_from([0.0, 5.0]))
def test_devices_are_busy_to_the_end_and_workers_few(jobs, devices, start_s):
    """A job takes one second; a solution that a device did not have before `start_s` more."""
    queue, free, had, starts, running = packing(jobs), [0.0] * devices, {}, 0, {}
    while queue.remaining:
        device = min(range(devices), key=free.__getitem__)
        for job in running.pop(device, []):
            queue.end(job)
        running[device] = batch = queue.take(str(device), devices=devices, idle=devices - len(running))
        assert batch
        for job in batch:
            is_new, had[device] = had.get(device) != job.solution_key, job.solution_key
            free[device] += 1 + start_s * is_new
            starts += is_new
    assert starts <= len({job.solution_key for job in jobs}) + devices - 1
    assert max(free) <= sum(free) / devices + 9 + start_s  # a solution has nine jobs at most


@pytest.mark.parametrize(
    ("shapes", "devices", "idle", "sizes"),
    [
        ([(16, 1)], 4, [4, 3, 2, 1], [4] * 4),
        ([(4, 3)], 2, [2, 1, 1], [4, 4, 4]),
        ([(4, 3)], 2, [0, 0, 0], [4, 4, 0]),  # the last solution is for the device that is done first
        ([(3, 4), (2048, 3)], 1, [1] * 3, [12, 4096, 2048]),
    ],
)
def test_a_batch_has_whole_solutions_but_for_the_last(shapes, devices, idle, sizes):
    queue = packing(make_jobs(*shapes))
    assert [len(queue.take(str(at), devices=devices, idle=one)) for at, one in enumerate(idle)] == sizes


def test_an_order_that_is_given_is_kept():
    queue, queue_class = JobQueue(), QueueClass(in_order=True)
    jobs = [make_job(index, f"s{index % 2}", "d" if index < 20 else "e") for index in range(22)]
    queue.add(jobs, queue_class)
    first = queue.take()
    assert indices(first) == list(range(16))
    queue.give_back(first[3:])
    assert [indices(queue.take()) for _ in range(3)] == [list(range(3, 19)), [19], [20, 21]]
    queue.add(jobs[:2], queue_class)
    assert queue.take(is_ready=lambda job: job.solution.name == "s1") == []


@pytest.mark.parametrize(
    ("jobs", "batches"),
    [
        ("0 flood f0,1 flood f1,2 flood f2,3 flood f3,20 b b0,21 c c0,22 b b1", [[0, 1], [20, 22], [21], [2, 3]]),
        ("0 a x,1 b1 y,2 a2 z", [[2], [1], [0]]),
        ("0 long l,1 long l,2 long l,3 long l,4 long l,9 b s", [[0, 1], [9], [2, 3], [4]]),
        ("0 a x,1 a y e,2 a z", [[0, 2], [1]]),
        (",".join(f"{at} a s{at} quick" for at in range(12)), [[*range(10)], [10, 11]]),
    ],
    ids=["turns", "priorities", "a long solution", "one definition", "a second of work"],
)
def test_batches_of_a_resident_engine(jobs, batches):
    queue = resident(jobs)
    assert [indices(take(queue)) for _ in batches] == batches
    assert queue.remaining == 0


@pytest.mark.parametrize(
    ("kinds", "alone"),
    [(("dear", "cheap"), 0), (("d", "d"), 0), (("d", "d"), 20)],
    ids=["dear and cheap jobs", "equal ones", "a newcomer"],
)
def test_shares_are_equal_by_seconds_even_for_a_submitter_that_returns_again_and_again(kinds, alone):
    queue, seconds = resident(",".join(f"{at} waits w{at} {kinds[0]}" for at in range(90))), Counter()
    for _ in range(alone):
        take(queue)
    for number in range(20):
        resident(",".join(f"{1000 + 4 * number + at} comes c{number} {kinds[1]}" for at in range(4)), queue)
        for job in take(queue):
            seconds[job.index >= 1000] += SECONDS[job.definition.name]
    assert abs(seconds[True] - seconds[False]) <= 2.0


def test_returned_jobs_cost_nothing_and_removed_jobs_are_gone():
    queue = resident("0 a s0,1 a s1,2 a s2,3 a s3")
    queue.give_back(queue.take())
    resident("9 b other", queue)
    assert [indices(queue.take()) for _ in range(2)] == [[0, 1], [9]]
    assert indices(queue.remove([0, 3, 7])) == [3]
    assert (queue.remaining, indices(queue.take())) == (1, [2])
