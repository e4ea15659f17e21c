"""A session begins what the host tells it to begin, and forgets what the host takes back."""

import socket

import pytest

from flashinfer_bench.base.wire import FrameReader, WireClosed, send_frame
from flashinfer_bench.bench.runner.session.orders import Orders

pytestmark = pytest.mark.cpu
SOLUTION = {
    "name": "s",
    "language": "python",
    "declared_style": None,
    "digest": "d",
    "directory": None,
    "entry": "main.py",
    "symbol": "run",
    "kind": "python",
    "build_error": None,
}
BEGIN, DROP, CLOSE = {"begin": True}, {"drop": True}, {"close": True}


def block(name, announced=()):
    told = [{"solution": SOLUTION, "definition": {"name": one}, "workloads": []} for one in announced]
    return {"block": {"definition": {"name": name}, "config": {}, "solutions": {}, "jobs": [], "announced": told}}


@pytest.fixture
def told():
    """Return orders from a host that has sent these frames."""
    opened = []

    def told(*frames):
        host, session = socket.socketpair()
        opened.extend([host, session])
        for frame in frames:
            send_frame(host, frame)
        return Orders(session, FrameReader(session)), host

    yield told
    for one in opened:
        one.close()


def name_of(order):
    return order and order.definition["name"]


def test_a_block_waits_until_it_is_begun_and_the_next_one_is_known_meanwhile(told):
    orders, _ = told(block("a"), BEGIN, block("b"))
    assert name_of(orders.next_block()) == "a"
    orders.look()
    assert name_of(orders.ahead) == "b"


def test_what_is_taken_back_is_never_begun(told):
    orders, host = told(block("a"), DROP, block("b"), BEGIN, block("c"))
    orders.look()
    assert name_of(orders.next_block()) == "b"
    orders.look()
    send_frame(host, DROP)
    orders.look()
    assert orders.ahead is None
    for frame in (block("d"), BEGIN):
        send_frame(host, frame)
    assert name_of(orders.next_block()) == "d"


def test_what_is_announced_with_a_block_stays_known_when_the_block_is_taken_back(told):
    orders, _ = told(block("a", ["x", "y"]), DROP, block("b", ["z"]), BEGIN)
    orders.next_block()
    assert [one.definition["name"] for one in orders.announced] == ["x", "y", "z"]


@pytest.mark.parametrize("how", ["a frame", "the end of the channel"])
def test_a_session_notices_between_two_jobs_that_its_host_is_done(told, how):
    orders, host = told(block("a"), BEGIN)
    orders.next_block()
    orders.look()
    send_frame(host, CLOSE) if how == "a frame" else host.close()
    with pytest.raises(WireClosed):
        orders.look()
