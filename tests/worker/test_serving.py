"""What a worker has done by the time it says that it is ready."""

import socket
import subprocess
import sys

import pytest
import torch

from flashinfer_bench.base.wire import FrameReader
from flashinfer_bench.timing.clocks import make_clock
from flashinfer_bench.worker import main, protocol
from flashinfer_bench.worker.calls import LaidCall, SolutionFunctions
from flashinfer_bench.worker.protocol import Called, check_answer

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


def test_graphs_of_a_batch_replace_those_of_the_one_before_and_empty_batches_keep_theirs(monkeypatch):
    captured = []

    def capture(launch):
        launch()
        captured.append(launch)
        return launch

    monkeypatch.setattr(main, "capture", capture)
    monkeypatch.setattr(main, "see_operations", lambda least: None)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = main.Worker(theirs, CPU, make_clock(CPU))
        for _ in range(3):
            for calls in (1, 65):
                worker.burst({"part": "nothing", "indices": [*range(calls)], "together": True, "operations": 0})
        assert len(captured) == 2
        worker._laid = [LaidCall(SolutionFunctions(lambda: 1, None), {}, {"y": torch.zeros(())}, "value")] * 4
        worker.collect({"part": "run", "indices": [0, 1], "together": True})
        captured.clear()
        for calls in (2, 2, 4, 2):
            worker.burst({"part": "run", "indices": [*range(calls)], "together": True, "operations": 0})
        assert len(captured) == 3
        assert sorted(key[0] for key in worker._joins) == ["nothing", "nothing", "run"]


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
