"""Attacks that are made up, and an engine that answers what a test says, for tests of the runner of attacks."""

from __future__ import annotations

from benchmarks.exploits.kit.attack import Attack, Code
from benchmarks.exploits.kit.batch import BatchRun, list_entries
from benchmarks.exploits.kit.credit import Tried, Verdict
from benchmarks.exploits.kit.works import WORKS

GATE = WORKS["gate"]
FAST = "passed 2 times as fast as honest code"


def make(name="cheat", **parts):
    twin = Code({"main.py": GATE.solution})
    return Attack("replay", name, GATE, Code({"main.py": f"# {name}\n"}), twin, "About.", **parts)


def passed(latency_ms, log=""):
    return Verdict("PASSED", latency_ms, log)


def tried(*verdicts, honest=1.0, harm=()):
    return Tried(verdicts, [honest] * len(verdicts), harm=harm)


class FakeEngine:
    """Answers orders: everything passes in 1 ms but what `latencies` says; `culprit` disturbs its neighbours."""

    def __init__(self, latencies=(), culprit=None, noise=()):
        self.latencies = dict(latencies)
        self.culprit = culprit
        self.noise = list(noise)
        self.orders = []

    def __call__(self, order):
        self.orders.append([attack.name for attack in order.attacks] if not order.without_attacks else "calm")
        run = BatchRun(seconds=1.0, harm=list(self.noise))
        for entry in list_entries(order):
            said = self.latencies.get(entry.name, 1.0)
            latency = said.pop(0) if isinstance(said, list) else said
            run.verdicts[entry.name, "w0"] = passed(latency)
        if self.culprit in {attack.name for attack in order.attacks} and not order.without_attacks:
            run.harm.append("a bystander got TIMEOUT")
        return run
