"""What a worker has done by the time it says that it is ready."""

import socket

import pytest
import torch

from flashinfer_bench.timing.clocks import make_clock
from flashinfer_bench.worker import main
from flashinfer_bench.worker.wire import FrameReader

pytestmark = pytest.mark.cpu
CPU = torch.device("cpu")


def test_a_worker_makes_its_captures_before_it_can_be_given_code(monkeypatch):
    heard_before = []

    def capture_first(device):
        with pytest.raises(BlockingIOError):
            ours.recv(1)
        heard_before.append(device)

    monkeypatch.setattr(main, "capture_first", capture_first)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        ours.shutdown(socket.SHUT_WR)
        main.Worker(theirs, CPU, make_clock(CPU)).serve()
        ours.setblocking(True)
        assert heard_before == [CPU]
        assert FrameReader(ours).read()["ready"] is True
