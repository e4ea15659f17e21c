"""What a worker has done by the time it says that it is ready."""

import socket
import subprocess
import sys

import pytest
import torch

from flashinfer_bench.timing.clocks import make_clock
from flashinfer_bench.worker import main, protocol
from flashinfer_bench.worker.protocol import Called, check_answer
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


def test_an_error_is_told_whatever_is_in_its_message():
    told = main.describe_error(ValueError("\ud800 is half" + "\udc00" * protocol.MAX_TEXT))
    assert told["message"].startswith("\\ud800 is half\\udc00")
    assert check_answer({"id": 1, "error": told}, 1, Called).error.message == told["message"]


def test_what_a_solution_returned_is_told_whatever_its_type_is_called():
    told = main.describe_value(type("T", (), {"__module__": "\ud800"})())
    assert told["type"].startswith("\\ud800")
    answer = {"id": 1, "readings": None, "returned": [[told]]}
    assert check_answer(answer, 1, Called).returned[0][0].type == told["type"]


PLACES_OF_FORKS = """
import os, torch
from flashinfer_bench.worker.main import shift_heap
for _ in range(8):
    if os.fork() == 0:
        held = shift_heap()
        os.write(1, b"%d\\n" % (torch.empty(2048).data_ptr() % 4096))
        os._exit(0)
    os.wait()
"""


def test_workers_of_one_template_allocate_at_other_places():
    """Forks of a process that did nothing before, as a template is: the heap of a process that ran tests has holes."""
    told = subprocess.run([sys.executable, "-c", PLACES_OF_FORKS], capture_output=True, text=True, check=True)
    assert len(told.stdout.split()) == 8
    assert len(set(told.stdout.split())) > 3
