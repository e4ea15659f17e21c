"""Gains of attacks, weighed by many workers of either side: what is weighed, in which order, and what it comes to."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks import run_exploits
from benchmarks.exploits.kit.attack import Code
from benchmarks.exploits.kit.batch import BatchRun, list_entries, names_of, twins_of
from benchmarks.exploits.kit.credit import Credit, Verdict
from benchmarks.exploits.kit.suite import Result
from benchmarks.exploits.kit.weighing import MANY, can_weigh, make_weighing, run_weighing, weigh
from tests.kit.attacks import FAST, FakeEngine, make, passed, tried

pytestmark = pytest.mark.cpu


def weigh_with(attack_ms, twin_ms, tries, monkeypatch, attack=None):
    attack = attack or make()
    order = make_weighing(attack, None)
    latencies = dict(zip(names_of(attack, order.copies), [attack_ms(n) for n in range(order.copies)], strict=True))
    latencies |= dict(zip(twins_of(attack, order.twins), [twin_ms(n) for n in range(order.twins)], strict=True))
    engine = FakeEngine(latencies)
    monkeypatch.setattr(run_exploits, "run_batch", lambda order, package: engine(order))
    first = Result(attack, tried(passed(0.5)), Credit((FAST,), 2.0))
    return run_exploits.try_again(first, None, run_exploits.parse(["--again", str(tries)])), engine


@pytest.mark.parametrize(("gain", "is_good"), [(1.25, True), (1.35, False)])
def test_a_gain_is_weighed_by_medians_of_many_workers(gain, is_good, monkeypatch):
    held_up, quick = (lambda n: 3.0 if n % 3 == 0 else 1.0), (lambda n: (0.5 if n % 6 == 1 else 1.0) / gain)
    found, engine = weigh_with(quick, held_up, 2, monkeypatch)
    assert len(engine.orders) == 2
    assert len(found.tried.verdicts) == 2 * MANY
    assert (found.is_good, round(found.credit.gain, 2)) == (is_good, gain)


def test_what_all_weighings_say_together_counts(monkeypatch):
    tries = (1.25, 1.2, 1.2, 1.5)
    engines = [FakeEngine(dict.fromkeys(names_of(make(), MANY), 1 / gain)) for gain in tries]
    monkeypatch.setattr(run_exploits, "run_batch", lambda order, package: engines.pop(0)(order))
    first = Result(make(), tried(passed(0.5)), Credit((FAST,), 2.0))
    found = [run_exploits.try_again(first, None, run_exploits.parse(["--again", "2"])) for _ in range(2)]
    assert [round(one.credit.gain, 2) for one in found] == [1.25, 1.5]
    assert [one.is_good for one in found] == [True, False]


def test_an_attack_that_works_in_a_third_of_all_workers_is_credited(monkeypatch):
    found, _ = weigh_with(lambda n: 0.5 if n % 3 == 0 else 1.0, lambda _: 1.0, 1, monkeypatch)
    assert (found.is_good, found.credit.gain) == (False, 2.0)


def test_copies_of_both_sides_take_turns_in_a_weighing():
    order = make_weighing(make(), 12345)
    entries = sorted(list_entries(order), key=lambda entry: entry.author)
    assert [entry.name.startswith("twin_") for entry in entries[: 2 * MANY]] == [False, True] * MANY
    assert (order.user, entries[-1].name) == (12345, "bystander_gate")


def test_harm_and_wrong_outputs_count_in_a_weighing_too():
    attack = make(wrong=True)
    order = make_weighing(attack, None)
    run = BatchRun(own_harm={"cheat": ["took the clock"]}, harm=["the run did not end"])
    for name in (*names_of(attack, order.copies), *twins_of(attack, order.twins)):
        run.verdicts[name, "w0"] = passed(1.0)
    found = weigh(order, [run])
    assert found.credit.reasons == (f"passed with wrong outputs ({MANY} of {MANY})", "did harm")
    assert (found.tried.twin, found.tried.harm) == ("PASSED", ("took the clock", "the run did not end"))
    run.verdicts[twins_of(attack, order.twins)[7], "w0"] = Verdict("TIMEOUT")
    assert weigh(order, [run]).tried.twin == "TIMEOUT"


@pytest.mark.parametrize(
    ("engine", "harm"), [({"noise": ["slow"]}, []), ({"culprit": "cheat"}, ["a bystander got TIMEOUT"])]
)
def test_harm_that_is_there_without_the_attack_is_left_out_of_a_weighing(engine, harm):
    assert run_weighing(make_weighing(make(), None), FakeEngine(**engine)).harm == harm


def test_the_largest_gain_of_all_workloads_counts():
    attack = make(workloads=2)
    order = make_weighing(attack, None)
    run = BatchRun()
    for workload, attack_ms in (("w0", 1.0), ("w1", 0.25)):
        run.verdicts |= {(name, workload): passed(attack_ms) for name in names_of(attack, order.copies)}
        run.verdicts |= {(name, workload): passed(1.0) for name in twins_of(attack, order.twins)}
    assert weigh(order, [run]).credit == Credit(("passed 4 times as fast as honest code",), 4.0)


@pytest.mark.parametrize(
    ("parts", "can"),
    [
        ({}, True),
        ({"runs": (12, 50)}, False),
        ({"needs": ("gpu",)}, False),
        ({"needs": ("cpu", "cxx")}, False),
        ({"code": Code({"main.cpp": "//"}, "cpp")}, False),
    ],
)
def test_only_a_gain_that_needs_no_luck_and_no_compiler_is_weighed(parts, can):
    attack = dataclasses.replace(make(), **parts)
    assert can_weigh(Result(attack, tried(passed(0.5)), Credit((FAST,), 2.0))) is can
    assert not can_weigh(Result(attack, tried(passed(0.5)), Credit((FAST, "did harm"), 2.0)))
    assert not can_weigh(Result(attack, tried(passed(0.5)), Credit(("did harm",), 2.0)))
