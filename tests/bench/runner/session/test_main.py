"""A session's start, its mailbox, and the portions in which it makes the baselines of a block."""

import itertools
import json
import os
import socket
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.base.wire import FrameReader, WireClosed, send_frame
from flashinfer_bench.bench.evaluators.inputs import threads
from flashinfer_bench.bench.runner.protocol import BlockJob, BlockOrder
from flashinfer_bench.bench.runner.session import main, opening, start
from flashinfer_bench.bench.runner.session.opening import Orders
from flashinfer_bench.bench.runner.session.start import Starter

pytestmark = pytest.mark.cpu
LOADED = """
import importlib, json, sys
from flashinfer_bench.bench.runner.session import start
light = sorted(sys.modules)
opening = importlib.import_module(start.OPENING)
print(json.dumps([light, sorted(sys.modules)]))
"""
JUDGE = "flashinfer_bench.bench.runner.session.device_session"


def test_nothing_slow_is_imported_before_a_starter_is_tied_to_its_host_and_no_judge_before_workers_start():
    said = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True).stdout
    light, opened = (set(names) for names in json.loads(said))
    assert not {"torch", "pydantic", JUDGE} & light
    assert {"torch", "flashinfer_bench.bench.runner.workers.pool"} <= opened
    assert JUDGE not in opened


def test_sessions_that_somebody_waits_for_are_forked_at_once_and_later_ones_find_the_judge_imported(monkeypatch):
    told = []
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(start, "is_unwanted", lambda _control: False)
    monkeypatch.setattr(start, "fork", lambda: told.append("fork") or len(told))
    monkeypatch.setattr(start, "send_frame", lambda *_: None)
    starter = Starter(theirs, lambda _fd: None, lambda: told.append("import"))
    take_fds = lambda: [one.detach() for one in (*socket.socketpair(), *socket.socketpair())]  # noqa: E731
    with ours, theirs:
        for orders in ([{}, {}], [{}]):
            starter._reader = SimpleNamespace(pop=partial(next, iter(orders), None), take_fds=take_fds)
            starter._take_orders()
    for control in starter._sessions.values():
        control.close()
    os.close(starter._woken)
    os.close(starter._wake)
    assert told == ["fork", "fork", "import", "fork"]


def test_a_session_beside_a_gpu_computes_in_one_thread_from_its_start(monkeypatch, tmp_path):
    before, made = torch.get_num_threads(), []
    monkeypatch.setattr(threads, "_usual", [])
    monkeypatch.setattr(opening, "set_connections", made.append)
    monkeypatch.setattr(opening, "make_context", lambda: made.append("context"))
    monkeypatch.setenv("CUDA_CACHE_PATH", "")
    torch.set_num_threads(2)
    try:
        assert opening.start_context(SimpleNamespace(device="cpu", cache_root=tmp_path)) is None
        assert torch.get_num_threads() == 2
        opening.start_context(SimpleNamespace(device="cuda", cache_root=tmp_path)).join()
        assert (torch.get_num_threads(), made) == (1, [1, "context"])
        with threads.usual_threads():
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def block(name):
    return {"block": BlockOrder(definition={"name": name}, config={}, solutions={}, jobs=[]).model_dump()}


BEGIN, DROP, CLOSE = {"begin": True}, {"drop": True}, {"close": True}


@pytest.mark.parametrize(
    ("frames", "begun", "ahead"),
    [
        ([block("a"), BEGIN], ["a"], None),
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
        (1.2, 3, 1, (), main.LATER_PORTION_S, [(3, 3)]),
        (0.05, 8, 1, (), main.FIRST_PORTION_S, [(8, 8)]),
        (0.3, 4, 3, (), main.FIRST_PORTION_S, [(2, 2), (2, 10)]),
        (1.0, 2, 2, ("w0", "w1"), main.FIRST_PORTION_S, []),
    ],
    ids=["a slow one, and portions grow", "a later block", "quick ones", "once for all solutions", "all are known"],
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
    monkeypatch.setattr(main, "send_answer", lambda *_: None)
    order = BlockOrder(definition={}, config={}, solutions={}, jobs=jobs)
    orders = SimpleNamespace(next_block=lambda: order, look=lambda: None, ahead=None, announced=[])
    main.run_block(None, session, orders, None, portion_s)
    runs = [(word, len(list(group))) for word, group in itertools.groupby(session.log)]
    assert runs[0::3] == [("end", 1)] * len(expected) or not expected
    assert [(made, judged) for (_, made), (_, judged) in zip(runs[1::3], runs[2::3], strict=True)] == expected
    assert sum(count for word, count in runs if word == "job") == len(jobs)
