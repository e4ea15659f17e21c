"""The board of a relay: two counts that two processes see."""

import os
import time

import pytest

from flashinfer_bench.bench.runner.workers.timed.handover import open_board
from flashinfer_bench.worker import relay_board as board

pytestmark = pytest.mark.cpu


def answer_calls(fds, calls):
    """Do in a process of its own what a worker does; return its number."""
    pid = os.fork()
    if pid == 0:
        try:
            theirs = board.RelayBoard(*fds)
            for count in range(1, calls + 1):
                theirs.await_given(count)
                theirs.tell_done(count)
        finally:
            os._exit(0)
    return pid


@pytest.mark.parametrize("waits", [False, True])
def test_what_one_side_tells_the_other_sees(waits):
    with open_board() as (ours, fds):
        assert not ours.is_done(1)
        if waits:
            ours.listen()
        pid = answer_calls(fds, 3)
        for count in range(1, 4):
            ours.give(count)
            end = time.monotonic() + 60
            while not ours.is_done(count, 1) and time.monotonic() < end:
                if waits:
                    ours.await_bell()
            assert ours.is_done(count)
        assert not ours.is_done(4)
        os.waitpid(pid, 0)


def test_a_worker_rings_only_where_the_session_listens():
    with open_board() as (ours, fds):
        theirs = board.RelayBoard(*fds)
        theirs.tell_done(1)
        assert not ours._rung.poll(0)
        ours.listen()
        assert not ours._rung.poll(0)
        theirs.tell_done(2)
        theirs.tell_done(3)
        assert ours._rung.poll(0)
        ours.await_bell()
        assert not ours._rung.poll(0)
        ours.await_bell()  # it comes back though nobody rings


def test_a_worker_may_take_back_what_it_rang():
    with open_board() as (ours, (memory, ring)):
        theirs = board.RelayBoard(memory, ring)
        ours.listen()
        back = os.open(f"/proc/self/fd/{ring}", os.O_RDONLY | os.O_NONBLOCK)
        theirs.tell_done(1)
        poll = ours._rung.poll

        class Robbed:
            def poll(self, wait_ms):
                return poll(wait_ms), os.read(back, 100)

        ours._rung = Robbed()
        ours.await_bell()
        os.close(back)


def test_a_worker_cannot_keep_a_session_reading():
    """It makes its end one that waits: the session's end is not his."""
    with open_board() as (ours, (_, ring)):
        ours.listen()
        os.set_blocking(ring, True)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.read(ring, 1)
        os.write(ring, bytes(1 << 15))
        started = time.monotonic()
        ours.await_bell()
        ours.await_bell()
        assert time.monotonic() - started < 10


def test_a_new_board_has_counted_nothing():
    with open_board() as (ours, _):
        ours.await_given(0)
        assert ours.is_done(0)
        assert not ours.is_done(1)


@pytest.mark.parametrize(("machine", "has_order"), [("x86_64", True), ("AMD64", True), ("aarch64", False)])
def test_a_board_needs_a_machine_that_shows_writes_in_order(monkeypatch, machine, has_order):
    monkeypatch.setattr(board.platform, "machine", lambda: machine)
    assert board.has_order() is has_order
