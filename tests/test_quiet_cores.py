"""A thread leaves a core that is slow now, and may go anywhere afterwards."""

import os
import random

import pytest

from flashinfer_bench.base import quiet_cores
from flashinfer_bench.base.quiet_cores import MOST_TRIED, SLOWER, QuietCores, find_quiet_core, on_core, share_cores

pytestmark = pytest.mark.cpu

CORES = list(range(16))


class PlayedCores:
    """Cores of which each takes so long for the loop; this thread is on one of them."""

    def __init__(self, took_ns, core=0):
        self.took_ns, self.core, self.allowed = took_ns, core, set(took_ns)
        self.tried = []

    def get(self, _):
        return set(self.allowed)

    def set(self, _, cores):
        self.allowed = set(cores)
        if self.core not in self.allowed:
            (self.core,) = self.allowed
            self.tried.append(self.core)

    def time_loop(self):
        return self.took_ns[self.core]


@pytest.fixture
def play(monkeypatch):
    def start(took_ns, core=0):
        played = PlayedCores(took_ns, core)
        monkeypatch.setattr(os, "sched_getaffinity", played.get)
        monkeypatch.setattr(os, "sched_setaffinity", played.set)
        return played, QuietCores(CORES, played.time_loop)

    return start


def test_a_thread_that_has_a_quick_core_stays(play):
    played, cores = play(dict.fromkeys(CORES, 100))
    cores.settle()
    played.tried.clear()
    for _ in range(20):
        cores.settle()
    assert played.tried == []


@pytest.mark.parametrize("seed", range(8))
def test_a_thread_leaves_a_core_that_has_become_slow_and_is_bound_to_none(play, seed):
    played, cores = play(dict.fromkeys(CORES, 100))
    cores._chance = random.Random(seed)
    cores.settle()
    before = played.core
    slow = {core: 200 if core % 2 else 100 for core in CORES}
    slow[before] = 200
    played.took_ns, played.tried = slow, []
    cores.settle()
    assert len(set(played.tried)) <= MOST_TRIED
    assert played.took_ns[played.core] == min(slow[core] for core in [before, *played.tried])
    assert played.allowed == set(CORES)


def test_where_all_cores_are_slower_than_once_the_search_ends(play):
    played, cores = play(dict.fromkeys(CORES, 100))
    cores.settle()
    played.took_ns = dict.fromkeys(CORES, 140)
    looks = []
    for _ in range(60):
        played.tried = []
        cores.settle()
        looks.append(len(played.tried))
    assert looks[0] > 0
    assert looks[-1] == 0
    assert SLOWER < 1.4


def test_a_core_that_is_not_ours_any_more_is_passed_over(play, monkeypatch):
    played, cores = play({core: 300 - core for core in CORES})

    def refuse(_, wanted):
        if len(wanted) == 1 and min(wanted) % 2:
            raise OSError(22, "Invalid argument")
        played.set(_, wanted)

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    for _ in range(10):
        cores.settle()
    assert played.core % 2 == 0
    assert played.allowed == set(CORES)


def test_chance_that_the_solution_has_seeded_is_left_alone(play):
    _, cores = play({core: 300 - core for core in CORES})
    random.seed(7)
    wanted = random.random()
    random.seed(7)
    cores.settle()
    assert random.random() == wanted


@pytest.mark.parametrize("cores", [[], [3]])
def test_one_core_is_no_choice(cores):
    QuietCores(cores, lambda: pytest.fail("nothing is to be timed")).settle()


def test_this_thread_keeps_all_of_its_cores():
    before = os.sched_getaffinity(0)
    cores = QuietCores(sorted(before))
    cores.settle()
    cores.settle()
    core = find_quiet_core()
    assert core in before or (core is None and len(before) == 1)
    with on_core(min(before)):
        assert os.sched_getaffinity(0) == {min(before)}
    with on_core(None):
        assert os.sched_getaffinity(0) == before
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("cores", "spared", "sessions", "shares"),
    [
        (8, [], 1, [([0, 2, 4, 6], [1, 3, 5, 7])]),
        (8, [6, 7], 1, [([0, 2, 4], [1, 3, 5])]),
        (8, [], 2, [([0, 2], [1, 3]), ([4, 6], [5, 7])]),
        (2, [], 4, [([], [])] * 4),
    ],
)
def test_no_two_try_the_same_cores(monkeypatch, cores, spared, sessions, shares):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert [share_cores(number, sessions, spared=spared) for number in range(sessions)] == shares
    assert share_cores(sessions, sessions) == share_cores(0, sessions)


def test_the_loop_takes_about_a_tenth_of_a_millisecond():
    assert 5_000 < quiet_cores.time_loop_here() < 5_000_000
