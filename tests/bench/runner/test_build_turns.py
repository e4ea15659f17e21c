"""Compilers and jobs on a CPU: in turns where the engine stays, one after the other in a run."""

from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.runner.host.turns import BuildTurns

pytestmark = pytest.mark.cpu


class FakeFarm(SimpleNamespace):
    def hold(self):
        self.is_held = True

    def release(self):
        self.is_held = False


@pytest.fixture
def farm():
    return FakeFarm(open_builds=0, is_held=False)


@pytest.fixture
def clock():
    return SimpleNamespace(s=0.0)


@pytest.fixture
def turns(farm, clock):
    return BuildTurns(farm, 5.0, now=lambda: clock.s)


def test_in_a_run_no_job_begins_before_everything_is_built(farm, clock):
    turns = BuildTurns(farm, None, now=lambda: clock.s)
    farm.open_builds = 1
    clock.s = 1e6
    turns.update(is_busy=False, is_waiting=True)
    assert not turns.may_measure
    farm.open_builds = 0
    assert turns.may_measure


def test_builds_have_the_first_turn_then_jobs_have_one(farm, clock, turns):
    farm.open_builds = 1
    turns.update(is_busy=False, is_waiting=True)
    assert (turns.may_measure, farm.is_held) == (False, False)
    clock.s = 5.0
    turns.update(is_busy=False, is_waiting=True)
    assert (turns.may_measure, farm.is_held) == (True, True)
    clock.s = 10.0
    turns.update(is_busy=True, is_waiting=True)
    assert (turns.may_measure, farm.is_held) == (False, True), "the job that runs ends, and no other begins"
    turns.update(is_busy=False, is_waiting=True)
    assert (turns.may_measure, farm.is_held) == (False, False)


def test_who_has_no_work_gives_the_turn_away(farm, clock, turns):
    farm.open_builds = 1
    turns.update(is_busy=False, is_waiting=False)
    clock.s = 50.0
    turns.update(is_busy=False, is_waiting=False)
    assert not farm.is_held
    turns.update(is_busy=False, is_waiting=True)
    assert farm.is_held
    turns.update(is_busy=False, is_waiting=False)
    assert not farm.is_held
    farm.open_builds = 0
    turns.update(is_busy=False, is_waiting=True)
    assert turns.may_measure


def test_builds_that_come_while_a_job_runs_wait_for_it(farm, clock, turns):
    turns.begin_builds(is_busy=True)
    farm.open_builds = 1
    assert farm.is_held
    clock.s = 6.0
    turns.update(is_busy=True, is_waiting=False)
    assert farm.is_held
    turns.update(is_busy=False, is_waiting=False)
    assert not farm.is_held
