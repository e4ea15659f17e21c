"""Which jobs a device takes next: every job once, all devices busy, equal shares for submitters."""

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.bench.job_queue import JobQueue, JobTimes, Lane
from flashinfer_bench.bench.planning.first_call import FirstCall, find_first_call

LIBRARY = "import torch\nfrom flashinfer.norm import rmsnorm\n"
EXTENSION = "from torch.utils.cpp_extension import load\n"


def make_solution(name, text="", language="python"):
    return SimpleNamespace(name=name, spec=SimpleNamespace(language=language), sources=[SimpleNamespace(content=text)])


def make_job(index, solution="s", *, definition="d", cost=0.5, text=""):
    return SimpleNamespace(
        index=index,
        definition=SimpleNamespace(name=definition),
        workload=SimpleNamespace(uuid=f"w{index}"),
        solution=make_solution(solution, text),
        solution_key=f"{definition}/{solution}",
        cost=cost,
    )


def make_jobs(*shapes):
    """Jobs of one definition for each (workloads, solutions), in the order of a plan."""
    named = [
        (f"d{at}", f"s{one}") for at, (work, count) in enumerate(shapes) for one in range(count) for _ in range(work)
    ]
    return [make_job(index, name, definition=definition) for index, (definition, name) in enumerate(named)]


def packing(jobs=(), cost_of=lambda job: 1.0):
    queue = JobQueue(cost_of)
    queue.add(jobs)
    return queue


def in_turns(*jobs):
    """The queue of a resident engine; jobs are (index, submitter, solution, keywords)."""
    queue = JobQueue(lambda job: job.cost, turn_s=1.0)
    submit(queue, *jobs)
    return queue


def submit(queue, *jobs):
    for index, submitter, solution, *more in jobs:
        keywords = dict(more[0]) if more else {}
        lane = Lane(keywords.pop("priority", 0), submitter)
        queue.add([make_job(index, solution, **keywords)], lane)


def indices(jobs):
    return [job.index for job in jobs]


def take_all(queue, **settings):
    """Take batches to the end; each ends before the next is taken."""
    taken = []
    while jobs := queue.take(**settings):
        taken.append(indices(jobs))
        queue.forget(indices(jobs))
    return taken


def play(jobs, devices, start=0.0):
    """Play a run: a free device takes a batch; a job takes 1, a solution that it did not have before `start` more."""
    queue, free, had, batches = packing(jobs), dict.fromkeys(map(str, range(devices)), 0.0), {}, []
    running = {}
    while queue.remaining:
        device = min(free, key=free.get)
        queue.forget(running.pop(device, []))
        batch = queue.take(device, devices=devices)
        running[device] = indices(batch)
        batches.append((device, batch))
        for job in batch:
            free[device] += 1 + start * (had.get(device) != job.solution_key)
            had[device] = job.solution_key
    return list(free.values()), batches


SHAPES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=5)
# A resumed run leaves holes in the matrix.
JOBS = st.tuples(SHAPES, st.sets(st.integers(0, 400), max_size=120)).map(
    lambda drawn: [job for job in make_jobs(*drawn[0]) if job.index not in drawn[1]]
)


@settings(max_examples=80, deadline=None)
@given(JOBS, st.integers(1, 4), st.lists(st.tuples(st.integers(0, 9), st.sets(st.integers(0, 9))), max_size=12))
def test_every_job_is_taken_once_in_batches_of_one_definition_whatever_is_built_or_given_back(jobs, devices, steps):
    queue, done = packing(jobs), []
    for lost, built in [*steps, *[(0, set(range(10)))] * (len(jobs) + 1)]:
        ready = {f"s{number}" for number in built}
        batch = queue.take("a", devices=devices, is_ready=lambda solution, ready=ready: solution.name in ready)
        assert {job.solution.name for job in batch} <= ready
        assert len({job.definition.name for job in batch}) <= 1
        order = [job.solution_key for job in batch]
        changes = sum(one != before for one, before in zip(order, [None, *order], strict=False))
        assert changes == len(set(order))  # each solution is in one piece
        kept = batch[: max(0, len(batch) - lost)]
        done += indices(kept)
        queue.forget(indices(kept))
        queue.give_back(batch[len(kept) :])
        assert queue.remaining == len(jobs) - len(done)
    assert sorted(done) == indices(jobs)


@settings(max_examples=80, deadline=None)
@given(JOBS.filter(bool), st.integers(2, 9))
def test_all_devices_get_work_and_end_at_about_the_same_time(jobs, devices):
    queue = packing(jobs)
    batches = [queue.take(str(device), devices=devices) for device in range(devices)]
    assert sum(map(bool, batches)) == min(devices, len(jobs))
    queue = packing(jobs)
    while queue.remaining:
        half_share = queue.remaining / (2 * devices)
        batch = queue.take("a", devices=devices)
        assert len(batch) <= half_share or len({job.solution_key for job in batch}) == 1
    free, _ = play(jobs, devices)
    assert max(free) <= len(jobs) / devices + 9  # a solution has nine jobs at most


def test_workers_are_few_and_devices_busy_to_the_end():
    free, batches = play(make_jobs((32, 64)), 4, start=5.0)
    assert sum(free) == 64 * (32 + 5)  # no worker is made twice
    assert max(free) <= 1.02 * sum(free) / 4
    assert len(batches) < 64
    free, batches = play(make_jobs((32, 1)), 4, start=5.0)
    assert (set(free), len(batches)) == ({8 + 5.0}, 4)
    _, batches = play(make_jobs(*[(4, 6)] * 4), 4)
    assert all(len({job.definition.name for at, batch in batches if at == one for job in batch}) == 1 for one in "0123")
    sizes = [len(batch) for _, batch in play(make_jobs((1000, 100)), 8)[1]]
    assert (sum(sizes), sizes[0]) == (100_000, 4000)
    assert len(sizes) < 200


@pytest.mark.parametrize(
    ("shapes", "devices", "sizes"),
    [
        ([(8, 1)], 8, [1] * 8),
        ([(16, 1)], 4, [4] * 4),
        ([(4, 3)], 2, [4, 4, 2, 2]),
        ([(3, 4), (2048, 3)], 1, [12, 4096, 2048]),
    ],
)
def test_a_solution_is_split_only_where_fewer_are_left_than_devices(shapes, devices, sizes):
    queue = packing(make_jobs(*shapes))
    assert [len(queue.take(str(at % devices), devices=devices)) for at in range(len(sizes))] == sizes


def test_a_device_that_asks_ahead_gets_whole_solutions_or_nothing():
    queue = packing(make_jobs((4, 3)))
    assert [len(queue.take("a", devices=2, splits=False)) for _ in range(3)] == [4, 4, 0]
    assert queue.remaining == 4


def test_a_device_stays_with_its_definition_and_takes_what_is_built_and_what_came_back_first():
    queue = packing(make_jobs((2, 3), (2, 2)))
    ready = {"s0"}
    settings = {"is_ready": lambda solution: solution.name in ready}
    assert [indices(queue.take("a", **settings)) for _ in range(3)] == [[0, 1], [6, 7], []]
    assert not queue.has_ready(**settings)
    ready |= {"s1", "s2"}
    last = queue.take("a", **settings)
    assert indices(last) == [8, 9]
    assert indices(queue.take("a", **settings)) == [2, 3, 4, 5]
    queue.give_back(last)
    queue.add([make_job(20, "s0", definition="d0")])
    assert indices(queue.take("a", **settings)) == [8, 9]
    with pytest.raises(ValueError, match="not taken, or was given back"):
        queue.give_back(make_jobs((1, 1)) * 2)


def test_the_costliest_solution_comes_first_where_several_devices_share():
    cost_of = {"s0": 1.0, "s1": 3.0, "s2": 2.0, "s3": 4.0}
    jobs = make_jobs((2, 4), (2, 4))
    queue = packing(jobs, lambda job: cost_of[job.solution.name])
    taken = [job.solution.name for _ in range(3) for job in queue.take("a", devices=2)]
    assert taken == [name for name in ("s3", "s1", "s2", "s0") for _ in range(2)]


@pytest.mark.parametrize(
    ("text", "language", "first_call"),
    [
        (LIBRARY, "python", FirstCall.MODULES),
        ("def run(x):\n    import flashinfer\n", "python", FirstCall.MODULES),
        ("import triton, flashinfer_bench\n# as flashinfer does\n", "python", FirstCall.TRITON),
        (EXTENSION, "python", FirstCall.MODULES),
        ("import flashinfer\n@torch.compile\ndef run(x): ...\n", "python", FirstCall.OTHERS),
        ("import tvm_ffi.cpp\n", "python", FirstCall.OTHERS),
        ("import torch\n", "python", FirstCall.NOTHING),
        (LIBRARY, "cuda", FirstCall.NOTHING),
    ],
)
@pytest.mark.parametrize("devices", [1, 2])
def test_a_device_that_is_alone_takes_solutions_last_that_compile_for_minutes(text, language, first_call, devices):
    assert find_first_call(make_solution("s", text, language)) is first_call
    jobs = make_jobs((2, 3), (2, 3))
    for job in jobs[:2]:
        job.solution = make_solution("slow", text, language)
    order = [index for batch in take_all(packing(jobs), devices=devices) for index in batch]
    assert (order[-2:] == [0, 1]) is (first_call.is_long and devices == 1)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text", ["\n" * 2_000_000, " " * 2_000_000, "import\n " * 300_000], ids=["lines", "blanks", "words"]
)
def test_no_text_holds_the_host_up(text):
    assert not find_first_call(make_solution("s0", text)).is_long


def test_an_order_that_is_given_is_kept():
    queue, lane = JobQueue(), Lane(in_order=True)
    jobs = [make_job(index, f"s{index % 2}", definition="d" if index < 20 else "e") for index in range(22)]
    queue.add(jobs, lane)
    first = queue.take()
    assert indices(first) == list(range(16))
    queue.give_back(first[3:])
    assert [indices(queue.take()) for _ in range(3)] == [list(range(3, 19)), [19], [20, 21]]
    queue.add(jobs[:2], lane)
    assert queue.take(is_ready=lambda solution: solution.name == "s1") == []


HALF = {"cost": 0.5}


@pytest.mark.parametrize(
    ("jobs", "batches"),
    [
        (
            [*((at, "flood", f"f{at}") for at in range(4)), (20, "b", "b0"), (21, "c", "c0"), (22, "b", "b1")],
            [[0, 20], [21, 1], [22, 2], [3]],
        ),
        ([(0, "a", "x"), (1, "b", "y", {"priority": 1}), (2, "a", "z", {"priority": 2})], [[2, 1], [0]]),
        (
            [
                *((at, "long", "l") for at in range(6)),
                *((10 + at, "short", f"s{at}", {"cost": 1.0}) for at in range(2)),
            ],
            [[0, 1], [10], [2, 3], [11], [4, 5]],
        ),
        (
            [(0, "a", "x", {"cost": 0.1}), (1, "b", "y", {"definition": "e", "cost": 0.1}),
             (2, "a", "z", {"cost": 0.1}), (3, "c", "v", {"cost": 0.1})],
            [[0], [1], [3, 2]],
        ),
    ],
    ids=["turns", "priorities", "a long solution", "one definition"],
)  # fmt: skip
def test_batches_of_a_resident_engine(jobs, batches):
    assert take_all(in_turns(*jobs)) == batches


def test_shares_are_equal_by_seconds_also_for_a_submitter_who_comes_again_and_again():
    queue, seconds = in_turns(*((at, "dear", f"d{at}", {"cost": 2.0}) for at in range(10))), Counter()
    submit(queue, *((100 + at, "cheap", f"c{at}", {"cost": 0.25}) for at in range(80)))
    for _ in range(20):
        for job in queue.take():
            seconds[job.index >= 100] += job.cost
    assert abs(seconds[True] - seconds[False]) <= 2.0
    queue, served = in_turns(*((at, "waits", f"w{at}") for at in range(50))), Counter()
    for number in range(40):
        submit(queue, (1000 + number, "comes", f"c{number}"))
        taken = queue.take()
        queue.forget(indices(taken))
        served.update(job.index >= 1000 for job in taken)
    assert abs(served[True] - served[False]) <= 2


def test_a_device_gets_a_solution_that_another_is_at_only_where_there_is_nothing_else():
    queue = in_turns(*((at, "a", "big") for at in range(6)), (10, "a", "small"))
    asked = [("one", True), ("two", True), ("two", False), ("one", False), ("two", True)]
    taken = [indices(queue.take(device, devices=2, splits=splits)) for device, splits in asked]
    assert taken == [[0, 1], [10], [], [2, 3], [4, 5]]


def test_jobs_given_back_cost_nothing_and_removed_ones_are_gone():
    queue = in_turns(*((at, "a", f"s{at}") for at in range(4)))
    queue.give_back(queue.take())
    submit(queue, (9, "b", "other"))
    assert [indices(queue.take()) for _ in range(2)] == [[9, 0], [1, 2]]
    assert indices(queue.remove([0, 3, 7])) == [3]
    assert (queue.remaining, queue.take()) == (0, [])


def test_a_flood_is_not_looked_through_and_nothing_is_kept_of_submitters_who_have_gone():
    looked_at = []
    queue = JobQueue(lambda job: looked_at.append(job) or 0.5, turn_s=1.0)
    for at in range(2_000):
        queue.add([make_job(at, f"s{at}")], Lane(0, f"u{at % 20}"))
    assert len(queue.take()) == 2
    assert len(looked_at) < 20
    take_all(queue)
    assert len(queue._lanes) <= 2


def test_times_are_those_of_the_solution_else_of_the_definition_else_of_all():
    times, jobs = JobTimes(), [make_job(0, "s"), make_job(1, "t"), make_job(2, "s", definition="e")]
    assert times.estimate(jobs[0]) == 1.0
    times.add(jobs[0], 2.0)
    times.add(jobs[0], 4.0)
    times.add(jobs[1], 9.0)
    assert [times.estimate(job) for job in jobs] == [3.0, 9.0, 5.0]
    times.forget(jobs[0])
    assert times.estimate(jobs[0]) == 5.0
