"""How jobs are dealt out: every job once, all devices busy, whole solutions as far as that goes."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.bench.planning.first_call import FirstCall
from flashinfer_bench.bench.schedule import MOST_JOBS, BlockQueue, find_first_call


def make_jobs(*shapes):
    """Jobs of one definition per (workloads, solutions), in the order of a plan."""
    named = [
        (f"d{number}", f"w{workload}", f"s{solution}")
        for number, (workloads, solutions) in enumerate(shapes)
        for solution in range(solutions)
        for workload in range(workloads)
    ]
    return [
        SimpleNamespace(
            index=index,
            definition=SimpleNamespace(name=definition),
            workload=SimpleNamespace(uuid=workload),
            solution=make_solution(solution),
            solution_key=solution,
        )
        for index, (definition, workload, solution) in enumerate(named)
    ]


def make_solution(name, text="", language="python"):
    sources = [SimpleNamespace(content=text)]
    return SimpleNamespace(name=name, spec=SimpleNamespace(language=language), sources=sources)


def take_all(queue, device_count):
    blocks = []
    while (block := queue.take(device_count)) is not None:
        blocks.append(block)
    return blocks


def rows(blocks):
    return [(block.definition, name) for block in blocks for name in {job.solution.name for job in block.jobs}]


def deal(jobs, device_count, cost_of=lambda job: 1.0, start=0.0):
    """Play a run: each device takes a block when it is free. Return when each one ended, and each one's blocks.

    Each job takes `cost_of(job)`, and a solution that a device did not have just before takes `start` more.
    """
    queue, free, had = BlockQueue(jobs, cost_of), dict.fromkeys(range(device_count), 0.0), {}
    blocks = {device: [] for device in free}
    while queue.remaining:
        device = min(free, key=free.get)
        block = queue.take(device_count, device=str(device))
        blocks[device].append(block)
        for job in block.jobs:
            free[device] += cost_of(job) + start * (had.get(device) != job.solution.name)
            had[device] = job.solution.name
    return free, blocks


SHAPES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=5)
# A resumed run leaves holes in the matrix.
JOBS = st.tuples(SHAPES, st.sets(st.integers(0, 400), max_size=120)).map(
    lambda drawn: [job for job in make_jobs(*drawn[0]) if job.index not in drawn[1]]
)


@settings(max_examples=80, deadline=None)
@given(JOBS, st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=20))
def test_every_job_is_dealt_out_exactly_once_whatever_is_taken_and_given_back(jobs, steps):
    queue, done, planned = BlockQueue(jobs), [], iter(steps)
    while queue.remaining:
        device_count, lost = next(planned, (2, 0))
        block = queue.take(device_count)
        finished = block.jobs[: max(0, len(block.jobs) - lost)]
        done += [job.index for job in finished]
        queue.give_back(block.jobs[len(finished) :])
        assert queue.remaining == len(jobs) - len(done)
    assert sorted(done) == [job.index for job in jobs]
    assert queue.take(3) is None


@settings(max_examples=80, deadline=None)
@given(JOBS, st.integers(1, 9))
def test_blocks_are_of_one_definition_and_each_solution_comes_once(jobs, device_count):
    for block in take_all(BlockQueue(jobs), device_count):
        assert block.jobs
        assert {job.definition.name for job in block.jobs} == {block.definition}
        solutions = [job.solution.name for job in block.jobs]
        changes = [name for name, before in zip(solutions, [None, *solutions], strict=False) if name != before]
        assert len(changes) == len(set(changes))
        assert len({job.index for job in block.jobs}) == len(block.jobs)


@settings(max_examples=150, deadline=None)
@given(JOBS, st.integers(1, 16))
def test_as_many_devices_as_there_are_jobs_get_work_at_once(jobs, device_count):
    queue = BlockQueue(jobs)
    blocks = [queue.take(device_count) for _ in range(device_count)]
    busy = sum(block is not None for block in blocks)
    if device_count > 1:
        assert busy >= min(device_count, len(jobs))
    else:
        assert busy == bool(jobs)


@settings(max_examples=80, deadline=None)
@given(SHAPES.filter(bool), st.integers(2, 9))
def test_a_solution_is_split_only_where_fewer_are_left_than_devices(shapes, device_count):
    seen = rows(take_all(BlockQueue(make_jobs(*shapes)), device_count))
    largest = max(workloads for workloads, _ in shapes)
    if all(workloads == largest for workloads, _ in shapes):
        assert len({row for row in seen if seen.count(row) > 1}) < device_count


@settings(max_examples=80, deadline=None)
@given(JOBS, st.integers(2, 9))
def test_no_block_is_larger_than_half_a_fair_share_unless_it_is_one_solution(jobs, device_count):
    queue = BlockQueue(jobs)
    while queue.remaining:
        half_share = queue.remaining / (2 * device_count)
        block = queue.take(device_count)
        assert len(block.jobs) <= half_share or len({job.solution.name for job in block.jobs}) == 1


@settings(max_examples=80, deadline=None)
@given(JOBS.filter(bool), st.integers(2, 9))
def test_devices_end_at_about_the_same_time(jobs, device_count):
    free, _ = deal(jobs, device_count)
    assert max(free.values()) <= len(jobs) / device_count + 9  # a solution has nine jobs at the most


@settings(max_examples=80, deadline=None)
@given(JOBS, st.integers(1, 4), st.lists(st.sets(st.integers(0, 9)), max_size=6))
def test_jobs_wait_for_their_own_solution_alone_and_all_are_dealt_out_once(jobs, device_count, built):
    queue, done = BlockQueue(jobs), []
    for numbers in [*built, set(range(10))]:
        ready = {f"s{number}" for number in numbers}
        while (block := queue.take(device_count, lambda solution, ready=ready: solution.name in ready)) is not None:
            assert {job.solution.name for job in block.jobs} <= ready
            done += [job.index for job in block.jobs]
        left = {job.solution.name for job in jobs if job.index not in done}
        assert not left & ready
        assert queue.remaining == len(jobs) - len(done)
    assert sorted(done) == [job.index for job in jobs]


def test_what_is_built_first_runs_first_and_a_device_stays_with_its_definition():
    queue = BlockQueue(make_jobs((2, 3), (2, 2)))
    ready = {"s0"}
    first, second = (queue.take(1, lambda solution: solution.name in ready, "a") for _ in range(2))
    assert [(block.definition, len(block.jobs)) for block in (first, second)] == [("d0", 2), ("d1", 2)]
    assert queue.take(1, lambda solution: solution.name in ready) is None
    ready |= {"s1", "s2"}
    following = [queue.take(1, lambda solution: solution.name in ready, "a") for _ in range(2)]
    assert [(block.definition, len(block.jobs)) for block in following] == [("d1", 2), ("d0", 4)]


def test_one_solution_on_eight_devices_uses_eight():
    queue = BlockQueue(make_jobs((8, 1)))
    assert [len(queue.take(8).jobs) for _ in range(8)] == [1] * 8


def test_a_part_that_comes_back_is_dealt_out_in_as_many_parts_as_there_are_devices():
    queue = BlockQueue(make_jobs((16, 1)))
    for _ in range(3):
        queue.give_back(queue.take(4).jobs)
    assert [len(queue.take(4).jobs) for _ in range(4)] == [4] * 4


def test_one_workload_with_many_solutions_uses_eight_devices():
    queue = BlockQueue(make_jobs((1, 100)))
    sizes = [len(queue.take(8, device=str(device)).jobs) for device in range(8)]
    assert min(sizes) >= 4
    assert max(sizes) <= 7


def test_one_device_gets_a_definition_at_a_time():
    blocks = take_all(BlockQueue(make_jobs((3, 4), (MOST_JOBS // 2, 3))), 1)
    assert [len(block.jobs) for block in blocks] == [12, MOST_JOBS // 2 * 2, MOST_JOBS // 2]


def test_devices_take_definitions_of_their_own_as_long_as_there_are_enough():
    _, blocks = deal(make_jobs(*[(4, 6)] * 4), 4)
    assert all(len({block.definition for block in dealt}) == 1 for dealt in blocks.values())


def test_the_costliest_solution_comes_first():
    jobs = make_jobs((2, 4), (2, 4))
    cost_of = {"s0": 1.0, "s1": 3.0, "s2": 2.0, "s3": 4.0}
    queue = BlockQueue(jobs, lambda job: cost_of[job.solution.name])
    taken = [job.solution.name for _ in range(3) for job in queue.take(2, device="a").jobs]
    assert taken == [name for name in ("s3", "s1", "s2", "s0") for _ in range(2)]


LIBRARY, EXTENSION = (
    "import torch\nfrom flashinfer.norm import rmsnorm\n",
    "from torch.utils.cpp_extension import load\n",
)


@pytest.mark.parametrize(
    ("text", "first_call"),
    [
        (LIBRARY, FirstCall.MODULES),
        ("def run(x):\n    import flashinfer\n", FirstCall.MODULES),
        ("import triton, flashinfer_bench\n# as flashinfer does\n", FirstCall.TRITON),
        (EXTENSION, FirstCall.MODULES),
        ("import flashinfer\n@torch.compile\ndef run(x): ...\n", FirstCall.OTHERS),
        ("import tvm_ffi.cpp\n", FirstCall.OTHERS),
        ("import torch\n", FirstCall.NOTHING),
    ],
)
def test_what_is_compiled_at_a_first_call_is_told_by_the_texts(text, first_call):
    assert find_first_call(make_solution("s", text)) is first_call
    assert find_first_call(make_solution("s", text, language="cuda")) is FirstCall.NOTHING


@pytest.mark.parametrize(
    ("text", "device_count", "is_last"),
    [
        (LIBRARY, 1, True),
        (LIBRARY, 2, False),
        (EXTENSION, 1, True),
        ("@torch.compile\ndef run(x): ...\n", 1, True),
        ("import triton\n", 1, False),
    ],
)
def test_a_device_that_is_alone_takes_solutions_last_of_all_that_compile_for_minutes(text, device_count, is_last):
    jobs = make_jobs((2, 3), (2, 3))
    for job in jobs[:2]:
        job.solution, job.solution_key = make_solution("slow", text), "slow"
    order = [job.solution_key for block in take_all(BlockQueue(jobs), device_count) for job in block.jobs]
    assert (order[-1] == "slow") is is_last
    assert sorted(order) == sorted(job.solution_key for job in jobs)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text", ["\n" * 2_000_000, " " * 2_000_000, "import\n " * 300_000], ids=["lines", "blanks", "words"]
)
def test_no_text_holds_the_host_up(text):
    assert not find_first_call(make_solution("s0", text)).is_long


def test_a_solution_that_is_built_need_not_come_last():
    jobs = make_jobs((1, 2))
    jobs[0].solution = make_solution("s0", "#include <flashinfer/norm.cuh>\nimport flashinfer", language="cuda")
    assert [job.solution_key for job in BlockQueue(jobs).take(1).jobs] == ["s0", "s1"]


def test_four_devices_are_busy_to_the_end_of_many_solutions():
    free, blocks = deal(make_jobs((32, 64)), 4, start=5.0)
    assert sum(free.values()) == 64 * (32 + 5)  # no worker is made twice
    assert max(free.values()) <= 1.02 * sum(free.values()) / 4
    assert sum(map(len, blocks.values())) < 64


def test_one_solution_is_split_in_as_many_parts_as_there_are_devices():
    free, blocks = deal(make_jobs((32, 1)), 4, start=5.0)
    assert set(free.values()) == {8 + 5.0}
    assert all(len(dealt) == 1 for dealt in blocks.values())


def test_a_device_that_asks_ahead_gets_whole_solutions_or_nothing():
    queue = BlockQueue(make_jobs((4, 3)))
    assert [len(queue.take(2, splits=False).jobs) for _ in range(2)] == [4, 4]
    assert queue.take(2, splits=False) is None
    assert queue.remaining == 4
    assert [len(queue.take(2).jobs) for _ in range(2)] == [2, 2]


def test_the_jobs_of_a_block_go_solution_by_solution():
    (block,) = take_all(BlockQueue(make_jobs((3, 2))), 1)
    assert [(job.solution.name, job.workload.uuid) for job in block.jobs] == [
        (solution, workload) for solution in ("s0", "s1") for workload in ("w0", "w1", "w2")
    ]


def test_taking_is_deterministic_and_follows_the_plan():
    order = [[job.index for job in block.jobs] for block in take_all(BlockQueue(make_jobs((2, 2), (2, 1))), 2)]
    assert order == [[0, 1], [2, 3], [4], [5]]


def test_jobs_given_back_come_first():
    queue = BlockQueue(make_jobs((2, 2), (4, 4)))
    lost = queue.take(2)
    following = queue.take(2)
    queue.give_back(lost.jobs)
    assert queue.take(2).jobs == lost.jobs
    assert following.jobs != lost.jobs


def test_only_taken_jobs_can_be_given_back_and_only_once():
    jobs = make_jobs((2, 2))
    queue = BlockQueue(jobs)
    with pytest.raises(ValueError, match="job 0 was not taken"):
        queue.give_back(jobs[:1])
    block = queue.take(1)
    with pytest.raises(ValueError, match="given back already"):
        queue.give_back([block.jobs[0], block.jobs[0]])


def test_a_block_needs_a_device():
    with pytest.raises(ValueError, match="device"):
        BlockQueue(make_jobs((1, 1))).take(0)


def test_a_hundred_thousand_jobs_are_dealt_out_in_blocks_that_shrink():
    sizes = [len(block.jobs) for block in take_all(BlockQueue(make_jobs((1000, 100))), 8)]
    assert sum(sizes) == 100_000
    assert len(sizes) < 200
    assert sizes[0] == 4000
