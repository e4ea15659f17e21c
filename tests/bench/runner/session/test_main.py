"""A session's mailbox, and the portions in which it makes the baselines of a block."""

import itertools
import socket
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from flashinfer_bench.base.wire import FrameReader, WireClosed, send_frame
from flashinfer_bench.bench.runner.protocol import BlockJob, BlockOrder
from flashinfer_bench.bench.runner.session import main
from flashinfer_bench.bench.runner.session.opening import Orders

pytestmark = pytest.mark.cpu


def block(name):
    return {"block": BlockOrder(definition={"name": name}, config={}, solutions={}, jobs=[]).model_dump()}


BEGIN, DROP, CLOSE = {"begin": True}, {"drop": True}, {"close": True}


@pytest.mark.parametrize(
    ("frames", "begun", "ahead"),
    [
        ([block("a"), BEGIN, block("b")], ["a"], "b"),
        ([block("a"), DROP, block("b"), BEGIN], ["b"], None),
        ([block("a"), BEGIN, block("b"), DROP], ["a"], None),
        ([block("a"), BEGIN, block("b"), BEGIN], ["a", "b"], None),
        ([block("a"), CLOSE], [], "a"),
    ],
)
def test_a_block_is_run_once_it_is_begun_and_may_be_taken_back_until_then(frames, begun, ahead):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        orders = Orders(ours, FrameReader(ours))
        for frame in frames:
            send_frame(theirs, frame)
        found = [orders.next_block().definition["name"] for _ in begun]
        with pytest.raises(WireClosed) if CLOSE in frames else nullcontext():
            orders.look()
        assert (found, orders.ahead and orders.ahead.definition["name"]) == (begun, ahead)
        theirs.close()
        with pytest.raises(WireClosed):
            orders.next_block()


class FakeSession:
    """Notes in order what is asked of it. A baseline takes `baseline_s` on a clock that stands still otherwise."""

    def __init__(self, baseline_s, known):
        self.baseline_s, self.known, self.now, self.log = baseline_s, set(known), 0.0, []

    def open_block(self, order):
        return order

    def expect(self, *_):
        pass

    def lacks_baseline(self, _block, order):
        return order.workload["uuid"] not in self.known

    def end_workers(self):
        self.log.append("end")

    def prepare(self, _block, order):
        self.known.add(order.workload["uuid"])
        self.now += self.baseline_s
        self.log.append("baseline")


@pytest.mark.parametrize(
    ("baseline_s", "workloads", "solutions", "known", "portion_s", "expected"),
    [
        (0.65, 47, 1, (), main.FIRST_PORTION_S, [(1, 1), (4, 4), (13, 13), (29, 29)]),
        (0.05, 8, 1, (), main.FIRST_PORTION_S, [(8, 8)]),
        (0.3, 4, 3, (), main.FIRST_PORTION_S, [(2, 2), (2, 10)]),
        (1.0, 2, 2, ("w0", "w1"), main.FIRST_PORTION_S, []),
    ],
    ids=["a slow one, and portions grow", "quick ones", "once for all solutions", "all are known"],
)
def test_baselines_are_made_in_portions_without_workers_and_the_first_verdict_waits_for_one(
    monkeypatch, baseline_s, workloads, solutions, known, portion_s, expected
):
    session = FakeSession(baseline_s, known)
    jobs = [
        BlockJob(index=at, solution="s", workload={"uuid": f"w{at % workloads}"}, blob_root="/", seed=1)
        for at in range(workloads * solutions)
    ]
    monkeypatch.setattr(main, "time", SimpleNamespace(monotonic=lambda: session.now))
    monkeypatch.setattr(main, "judge", lambda *_: session.log.append("job"))
    order = BlockOrder(definition={}, config={}, solutions={}, jobs=jobs)
    orders = SimpleNamespace(next_block=lambda: order, look=lambda: None, ahead=None, announced=[])
    main.run_block(None, session, orders, None, portion_s)
    runs = [(word, len(list(group))) for word, group in itertools.groupby(session.log)]
    assert runs[0::3] == [("end", 1)] * len(expected) or not expected
    assert [(made, judged) for (_, made), (_, judged) in zip(runs[1::3], runs[2::3], strict=True)] == expected
    assert sum(count for word, count in runs if word == "job") == len(jobs)
