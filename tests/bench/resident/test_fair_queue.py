"""Whose job is next: priorities, equal shares by cost, and no solution on two devices while there is another."""

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.resident.fair_queue import FairQueue, Precedence


def make_job(index, submitter="a", solution="s", *, priority=0, definition="d", cost=0.5):
    return SimpleNamespace(
        index=index,
        definition=SimpleNamespace(name=definition),
        solution=SimpleNamespace(name=solution, definition=definition),
        solution_key=solution,
        precedence=Precedence(priority, submitter),
        cost=cost,
    )


@pytest.fixture
def queue():
    return new_queue()


def new_queue():
    return FairQueue(lambda job: job.cost, lambda job: job.precedence)


def take(queue, devices=1, **settings):
    """The indices of the jobs of the next block."""
    block = queue.take(devices, **settings)
    return [] if block is None else [job.index for job in block.jobs]


def take_all(queue, **settings):
    """Take blocks to the end, one device after the other; each ends before the next is taken."""
    taken = []
    while indices := take(queue, **settings):
        taken.append(indices)
        queue.forget(indices)
    return taken


def test_submitters_take_turns_whatever_one_of_them_has_waiting(queue):
    queue.add(make_job(at, "flood", f"f{at}") for at in range(20))
    assert take(queue) == [0, 1]
    queue.add([make_job(20, "b", "b0"), make_job(21, "c", "c0"), make_job(22, "b", "b1")])
    assert take_all(queue)[:3] == [[20, 21], [2, 22], [3, 4]]


def test_shares_are_equal_by_seconds_not_by_jobs(queue):
    queue.add(make_job(at, "dear", f"d{at}", cost=2.0) for at in range(10))
    queue.add(make_job(100 + at, "cheap", f"c{at}", cost=0.25) for at in range(80))
    seconds = Counter()
    for _ in range(20):
        for job in queue.take(1).jobs:
            seconds[job.precedence.submitter] += job.cost
    assert abs(seconds["dear"] - seconds["cheap"]) <= 2.0


def test_who_comes_again_and_again_gets_no_more_than_who_waits(queue):
    queue.add(make_job(at, "waits", f"w{at}") for at in range(50))
    served = Counter()
    for number in range(40):
        queue.add([make_job(1000 + number, "comes", f"c{number}")])
        taken = queue.take(1).jobs
        queue.forget(job.index for job in taken)
        served.update(job.precedence.submitter for job in taken)
    assert abs(served["waits"] - served["comes"]) <= 2


def test_a_higher_priority_goes_before_all_and_others_stay_fair(queue):
    queue.add([make_job(0, "a", "x"), make_job(1, "b", "y", priority=1), make_job(2, "a", "z", priority=2)])
    assert take_all(queue) == [[2, 1], [0]]


def test_a_long_solution_is_dealt_out_in_turns_and_others_come_between(queue):
    queue.add(make_job(at, "long", "l", cost=0.5) for at in range(6))
    queue.add(make_job(10 + at, "short", f"s{at}", cost=1.0) for at in range(2))
    assert take_all(queue) == [[0, 1], [10], [2, 3], [11], [4, 5]]


def test_a_block_is_of_one_definition_and_ends_where_it_is_anothers_turn(queue):
    queue.add([make_job(0, "a", "x", cost=0.1), make_job(1, "b", "y", definition="e", cost=0.1)])
    queue.add([make_job(2, "a", "z", cost=0.1), make_job(3, "c", "v", cost=0.1)])
    assert take_all(queue) == [[0], [1], [3, 2]]


def test_a_device_gets_a_solution_that_another_is_at_only_where_there_is_nothing_else(queue):
    queue.add(make_job(at, "a", "big") for at in range(6))
    queue.add([make_job(10, "a", "small")])
    assert take(queue, 2, device="one") == [0, 1]
    assert take(queue, 2, device="two") == [10]
    assert take(queue, 2, device="two", splits=False) == []
    assert take(queue, 2, device="one", splits=False) == [2, 3]
    assert take(queue, 2, device="two") == [4, 5]


def test_what_is_not_built_is_passed_over(queue):
    queue.add([make_job(0, "a", "slow"), make_job(1, "a", "quick"), make_job(2, "b", "slow too")])
    ready = {"is_ready": lambda solution: "slow" not in solution.name}
    assert queue.has_ready(**ready)
    assert take_all(queue, **ready) == [[1]]
    assert (queue.remaining, queue.has_ready(**ready)) == (2, False)


def test_jobs_given_back_come_first_and_cost_nothing(queue):
    queue.add(make_job(at, "a", f"s{at}") for at in range(4))
    taken = queue.take(1).jobs
    queue.give_back(reversed(taken))
    assert queue.remaining == 4
    queue.add([make_job(9, "b", "other")])
    assert (take(queue), take(queue)) == ([9, 1], [0, 2])
    with pytest.raises(ValueError, match="was not taken"):
        queue.give_back([make_job(3)])


def test_removed_jobs_are_gone_and_taken_ones_stay(queue):
    queue.add(make_job(at, "a", "s") for at in range(4))
    assert take(queue) == [0, 1]
    assert [job.index for job in queue.remove([0, 2])] == [2]
    assert take_all(queue) == [[3]]


def test_nothing_is_kept_of_submitters_who_have_gone(queue):
    for number in range(50):
        queue.add([make_job(number, f"visitor {number}", f"s{number}")])
        take_all(queue)
    assert (len(queue._queues), len(queue._taken), len(queue._holds)) == (0, 0, 0)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 2), st.booleans()), max_size=30), st.data()
)
def test_every_job_is_taken_once_whatever_is_given_back(shapes, data):
    queue = new_queue()
    jobs = [
        make_job(at, f"u{who}", f"{definition}{which}", priority=int(is_urgent), definition=definition)
        for at, (who, which, definition, is_urgent) in enumerate(shapes)
    ]
    queue.add(jobs)
    done = []
    while queue.remaining:
        block = queue.take(2, device=data.draw(st.sampled_from("xy")))
        assert len({job.definition.name for job in block.jobs}) == 1
        if data.draw(st.integers(0, 3)):
            done += block.jobs
            queue.forget(job.index for job in block.jobs)
        else:
            queue.give_back(block.jobs)
    assert sorted(job.index for job in done) == [job.index for job in jobs]


def test_a_block_of_ten_thousand_jobs_looks_at_few():
    looked_at = []
    queue = FairQueue(lambda job: looked_at.append(job) or 0.5, lambda job: job.precedence)
    queue.add(make_job(at, f"u{at % 20}", f"s{at}") for at in range(10_000))
    assert len(queue.take(1).jobs) == 2
    assert len(looked_at) < 20
