"""A timer of bursts whose worker is a script in the test, and what its bursts take."""

import math

import pytest

from flashinfer_bench.bench.runner.workers.timed import bursts
from flashinfer_bench.bench.runner.workers.timed.bursts import BurstTimer
from flashinfer_bench.bench.runner.workers.timed.empty_bursts import BurstOverhead
from tests.kit.trials import ScriptedWorker, make_trial

OVERHEAD = BurstOverhead(request=100_000.0, call=0.0, noise=1_000.0)
CALL_NS = 400_000


@pytest.fixture
def open_timer(arena, monkeypatch):
    """Return a timer of bursts, whose clock is the scripted worker's, and the worker; copies take no time."""
    monkeypatch.setattr(bursts.OutputCopies, "time", lambda copies, outputs, calls: 0.0)

    def opened(*, worker=None, operations=0, most_ns=math.inf, **trial):
        made = make_trial(arena, **trial)
        scripted = ScriptedWorker(made, **{"call_ns": CALL_NS, "request_ns": 50_000, **(worker or {})})
        return BurstTimer(scripted, made, operations=operations, most_ns=most_ns, now_ns=scripted.now_ns), scripted

    return opened
