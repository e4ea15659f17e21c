"""Attacks that are made up, and an engine that answers as a test says, for tests of the runner of attacks."""

from __future__ import annotations

from benchmarks.exploits.attack import Attack
from benchmarks.exploits.run import Done, Verdict, list_entries


def make(name="cheat", on="gate", category="replay", **parts):
    """Return an attack."""
    return Attack(name, on, "About.", f"# {name}\n", category=category, **parts)


def passed(latency_ms, log=""):
    """Return a verdict."""
    return Verdict("PASSED", latency_ms, log)


class FakeEngine:
    """Answers orders: all pass in 1 ms, `verdicts` says otherwise by name; `culprit` disturbs its neighbours."""

    def __init__(self, verdicts=(), culprit=None, noise=()):
        self.verdicts = dict(verdicts)
        self.culprit = culprit
        self.noise = list(noise)
        self.orders = []

    def __call__(self, order, package=None):
        assert package is None or package.is_dir()
        names = [attack.name for attack in order.attacks]
        self.orders.append("calm" if order.is_calm else names)
        done = Done(harm=list(self.noise))
        for name in list_entries(order):
            said = self.verdicts.get(name, 1.0)
            for uuid in order.workloads:
                done.verdicts[name, uuid] = said if isinstance(said, Verdict) else passed(said)
        if self.culprit in names and not order.is_calm:
            done.harm.append("a bystander got TIMEOUT")
        return done
