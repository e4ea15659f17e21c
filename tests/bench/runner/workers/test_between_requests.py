"""What a worker takes of the processors while nothing is asked of it."""

import pytest

from flashinfer_bench.bench.runner.workers import cpu_time
from flashinfer_bench.bench.runner.workers.cpu_time import STOPPING_NS, BetweenRequests

pytestmark = pytest.mark.cpu


def test_what_is_computed_between_two_requests_counts_but_for_what_stopping_takes(monkeypatch):
    spent = iter([0, 0, 4_000, 4_000 + 3 * STOPPING_NS, 10**7, 10**7 + STOPPING_NS])
    monkeypatch.setattr(cpu_time, "tree_cpu_time_ns", lambda pid: next(spent))
    between = BetweenRequests(1)
    assert between.end() == (0, 0)
    between.begin()
    assert between.end() == (4_000 + 3 * STOPPING_NS, 2 * STOPPING_NS)
    between.begin()
    assert between.end()[1] == 0  # to come to rest takes this long


def test_where_nobody_tells_the_time_of_processors_nothing_counts():
    assert BetweenRequests(None).end() == (None, 0)
