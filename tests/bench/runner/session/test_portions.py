"""In which portions a session makes the baselines of a block: the first verdict waits for one."""

from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.runner.protocol import BlockJob, BlockOrder
from flashinfer_bench.bench.runner.session import main

pytestmark = pytest.mark.cpu


class FakeSession:
    """Notes in order what is asked of it. A baseline takes `baseline_s` on a clock that stands still otherwise."""

    def __init__(self, baseline_s, known=()):
        self.baseline_s = baseline_s
        self.known = set(known)
        self.now = 0.0
        self.log = []

    def open_block(self, block):
        return block

    def take_announced(self, announced):
        pass

    def expect(self, shared, orders, ahead):
        pass

    def lacks_baseline(self, shared, order):
        return order.workload["uuid"] not in self.known

    def end_workers(self):
        self.log.append("end")

    def prepare(self, shared, order):
        self.known.add(order.workload["uuid"])
        self.now += self.baseline_s
        self.log.append("baseline")

    def judged(self):
        self.log.append("job")


def run_block(monkeypatch, session, workloads, solutions=1, portion_s=main.FIRST_PORTION_S):
    """Run a block and return what happened as (what, how often in a row)."""
    jobs = [
        BlockJob(index=index, solution="s", workload={"uuid": f"w{index % workloads}"}, blob_root="/", seed=1)
        for index in range(workloads * solutions)
    ]
    monkeypatch.setattr(main, "time", SimpleNamespace(monotonic=lambda: session.now))
    monkeypatch.setattr(main, "judge", lambda session, *_rest: session.judged())
    monkeypatch.setattr(main, "send_answer", lambda host, answer: None)
    block = BlockOrder(definition={}, config={}, solutions={}, jobs=jobs)
    orders = SimpleNamespace(next_block=lambda: block, look=lambda: None, ahead=None, announced=[])
    main.run_block(None, session, orders, None, portion_s)
    runs = []
    for word in session.log:
        if runs and runs[-1][0] == word:
            runs[-1][1] += 1
        else:
            runs.append([word, 1])
    return [tuple(run) for run in runs]


def test_the_first_verdict_needs_one_slow_baseline_and_later_portions_grow(monkeypatch):
    happened = run_block(monkeypatch, FakeSession(0.65), 47)
    assert happened[:3] == [("end", 1), ("baseline", 1), ("job", 1)]
    assert [count for word, count in happened if word == "baseline"] == [1, 4, 13, 29]
    assert [count for word, count in happened if word == "job"] == [1, 4, 13, 29]
    assert happened[::3] == [("end", 1)] * 4  # no worker holds a solution while a portion is made


def test_a_later_block_makes_its_few_baselines_at_once(monkeypatch):
    happened = run_block(monkeypatch, FakeSession(1.2), 3, portion_s=main.LATER_PORTION_S)
    assert happened == [("end", 1), ("baseline", 3), ("job", 3)]


def test_quick_baselines_of_a_small_block_are_one_portion(monkeypatch):
    assert run_block(monkeypatch, FakeSession(0.05), 8) == [("end", 1), ("baseline", 8), ("job", 8)]


def test_each_baseline_is_made_once_for_all_solutions(monkeypatch):
    happened = run_block(monkeypatch, FakeSession(0.3), 4, solutions=3)
    assert sum(count for word, count in happened if word == "baseline") == 4
    assert sum(count for word, count in happened if word == "job") == 12


def test_no_worker_is_ended_for_baselines_that_are_known(monkeypatch):
    assert run_block(monkeypatch, FakeSession(1.0, known=("w0", "w1")), 2, solutions=2) == [("job", 4)]
