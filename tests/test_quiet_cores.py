"""A thread leaves a core that is slow now, and may go anywhere afterwards."""

import os
import random

import pytest

from flashinfer_bench.base import quiet_cores
from flashinfer_bench.base.quiet_cores import (
    MOST_TRIED,
    SLOWER,
    QuietCores,
    cores_near,
    moving,
    processors_beside,
    read_processors,
    share_cores,
)

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
    cores.leave_slow()
    played.tried.clear()
    for _ in range(20):
        cores.leave_slow()
    assert played.tried == []


@pytest.mark.parametrize("seed", range(8))
def test_a_thread_leaves_a_core_that_has_become_slow_and_is_bound_to_none(play, seed):
    played, cores = play(dict.fromkeys(CORES, 100))
    cores._chance = random.Random(seed)
    cores.leave_slow()
    before = played.core
    slow = {core: 200 if core % 2 else 100 for core in CORES}
    slow[before] = 200
    played.took_ns, played.tried = slow, []
    cores.leave_slow()
    assert len(set(played.tried)) <= MOST_TRIED
    assert played.took_ns[played.core] == min(slow[core] for core in [before, *played.tried])
    assert played.allowed == set(CORES)


def test_where_all_cores_are_slower_than_once_the_search_ends(play):
    played, cores = play(dict.fromkeys(CORES, 100))
    cores.leave_slow()
    played.took_ns = dict.fromkeys(CORES, 140)
    looks = []
    for _ in range(60):
        played.tried = []
        cores.leave_slow()
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
        cores.leave_slow()
    assert played.core % 2 == 0
    assert played.allowed == set(CORES)


def test_chance_that_the_solution_has_seeded_is_left_alone(play):
    _, cores = play({core: 300 - core for core in CORES})
    random.seed(7)
    wanted = random.random()
    random.seed(7)
    cores.leave_slow()
    assert random.random() == wanted


@pytest.mark.parametrize("cores", [[], [3]])
def test_one_core_is_no_choice(cores):
    QuietCores(cores, lambda: pytest.fail("nothing is to be timed")).leave_slow()


def test_this_thread_keeps_all_of_its_cores():
    before = os.sched_getaffinity(0)
    cores = QuietCores(sorted(before))
    cores.leave_slow()
    cores.leave_slow()
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


@pytest.mark.parametrize(("text", "processors"), [("0\n", {0}), ("0-2,8\n", {0, 1, 2, 8}), ("3,7", {3, 7})])
def test_lists_of_processors_are_read_as_the_system_writes_them(text, processors):
    assert read_processors(text) == processors


def test_a_processor_of_which_nothing_is_told_has_a_core_of_its_own():
    assert processors_beside(10**6) == {10**6}
    assert 0 in processors_beside(0)


@pytest.mark.parametrize(
    ("near", "tried"),
    [
        (set(), {0, 1, 2, 3, 4, 5}),
        ({4, 5, 6}, {0, 1, 2, 3, 4, 5}),
        ({0, 1, 2, 3, 7}, {0, 1, 2, 3}),
    ],
    ids=["unknown", "few", "enough"],
)
def test_cores_near_the_gpu_are_tried_where_there_are_enough(monkeypatch, near, tried):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    session, workers = share_cores(0, 1, spared=[6, 7], near=frozenset(near))
    assert {*session, *workers} == tried


def test_one_processor_of_each_core_is_tried(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(quiet_cores, "processors_beside", lambda one: frozenset({one % 4, one % 4 + 4}))
    assert share_cores(0, 1) == ([0, 2], [1, 3])
    assert share_cores(0, 1, spared=[0]) == ([1, 3], [2])  # 4 shares a core with 0
    assert share_cores(0, 1, spared=[0, 1, 2]) == ([3, 5], [4, 6])  # too few would be left


def test_a_thread_whose_cores_were_taken_away_meanwhile_is_bound_to_none(monkeypatch):
    asked = []

    def refuse(_, cores):
        asked.append(set(cores))
        if cores == {0, 1}:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    with moving() as move:
        assert move(1)
    assert asked == [{1}, {0, 1}, {0, 1, 2, 3}]


DEVICES = {
    "0000:0a:00.0": ("0x10de", "0x030200", "0-3,8-11"),
    "0000:09:00.0": ("0x10de", "0x030000", "4-7"),
    "0000:01:00.0": ("0x8086", "0x030000", "0"),
    "0000:02:00.0": ("0x10de", "0x040300", "1"),
}


@pytest.mark.parametrize(
    ("gpu", "cores"), [(0, {4, 5, 6, 7}), (1, {0, 1, 2, 3, 8, 9, 10, 11}), (2, set()), (None, set())]
)
def test_the_system_tells_which_cores_lie_near_a_gpu(tmp_path, gpu, cores):
    for name, (vendor, kind, near) in DEVICES.items():
        (tmp_path / name).mkdir()
        for file, text in (("vendor", vendor), ("class", kind), ("local_cpulist", near)):
            (tmp_path / name / file).write_text(f"{text}\n")
    (tmp_path / "0000:03:00.0").mkdir()
    assert cores_near(gpu, tmp_path) == cores
    assert cores_near(gpu, tmp_path / "nothing") == set()


def test_the_loop_takes_about_a_tenth_of_a_millisecond():
    assert 5_000 < quiet_cores.time_loop_here() < 5_000_000
