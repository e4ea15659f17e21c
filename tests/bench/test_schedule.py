"""How jobs are dealt out: every job once, all devices busy, few baselines measured twice."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.bench.schedule import MAX_WORKLOADS, BlockQueue


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
            solution=SimpleNamespace(name=solution),
        )
        for index, (definition, workload, solution) in enumerate(named)
    ]


def take_all(queue, device_count):
    blocks = []
    while (block := queue.take(device_count)) is not None:
        blocks.append(block)
    return blocks


def columns(blocks):
    return [(block.definition, uuid) for block in blocks for uuid in {job.workload.uuid for job in block.jobs}]


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
def test_only_the_last_columns_are_split(shapes, device_count):
    seen = columns(take_all(BlockQueue(make_jobs(*shapes)), device_count))
    split = {column for column in seen if seen.count(column) > 1}
    assert len(split) < device_count


@settings(max_examples=80, deadline=None)
@given(JOBS, st.integers(2, 9))
def test_no_block_is_larger_than_half_a_fair_share_unless_it_is_one_workload(jobs, device_count):
    queue = BlockQueue(jobs)
    while queue.remaining:
        half_share = -(-queue.remaining // (2 * device_count))
        block = queue.take(device_count)
        assert len(block.jobs) <= half_share or len({job.workload.uuid for job in block.jobs}) == 1


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


def test_a_definition_whose_solutions_are_all_built_goes_before_one_of_which_some_are():
    queue = BlockQueue(make_jobs((2, 3), (2, 2)))
    ready = {"s0", "s1"}
    first, second = (queue.take(1, lambda solution: solution.name in ready) for _ in range(2))
    assert (first.definition, len(first.jobs)) == ("d1", 4)
    assert (second.definition, {job.solution.name for job in second.jobs}) == ("d0", ready)
    assert queue.take(1, lambda solution: solution.name in ready) is None
    assert len(queue.take(1).jobs) == 2


def test_one_solution_on_eight_devices_uses_eight():
    queue = BlockQueue(make_jobs((8, 1)))
    assert [len(queue.take(8).jobs) for _ in range(8)] == [1] * 8


def test_one_workload_with_many_solutions_uses_eight_devices():
    queue = BlockQueue(make_jobs((1, 100)))
    sizes = [len(queue.take(8).jobs) for _ in range(8)]
    assert min(sizes) >= 4
    assert max(sizes) <= 7


def test_one_device_gets_a_definition_at_a_time():
    blocks = take_all(BlockQueue(make_jobs((3, 4), (MAX_WORKLOADS + 6, 2))), 1)
    assert [len(block.jobs) for block in blocks] == [12, 2 * MAX_WORKLOADS, 12]


def test_the_jobs_of_a_block_go_solution_by_solution():
    (block,) = take_all(BlockQueue(make_jobs((3, 2))), 1)
    assert [(job.solution.name, job.workload.uuid) for job in block.jobs] == [
        (solution, workload) for solution in ("s0", "s1") for workload in ("w0", "w1", "w2")
    ]


def test_taking_is_deterministic_and_follows_the_plan():
    order = [[job.index for job in block.jobs] for block in take_all(BlockQueue(make_jobs((2, 2), (2, 1))), 2)]
    assert order == [[0, 2], [1, 3], [4], [5]]


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
    assert sizes[0] == 6200
