"""What a worker has done by the time it says that it is ready."""

import socket

import pytest
import torch

from flashinfer_bench.base.wire import FrameReader
from flashinfer_bench.timing.clocks import make_clock
from flashinfer_bench.worker import errors, main, protocol
from flashinfer_bench.worker.calls import LaidCall
from flashinfer_bench.worker.load import LoadedEntry
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


def test_an_error_and_the_type_of_a_result_are_told_whatever_characters_they_have():
    error = errors.describe_error(ValueError("\ud800 is half" + "\udc00" * protocol.MAX_TEXT))
    assert check_answer({"id": 1, "error": error}, 1, Called).error.message.startswith("\\ud800 is half\\udc00")
    value = main.describe_value(type("T", (), {"__module__": "\ud800"})())
    answer = {"id": 1, "readings": None, "returned": [[value]]}
    assert check_answer(answer, 1, Called).returned[0][0].type.startswith("\\ud800")


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
        worker._laid = [LaidCall(LoadedEntry(lambda: 1), {}, {"y": torch.zeros(())}, "value")] * 4
        worker.collect({"part": "run", "indices": [0, 1], "together": True})
        captured.clear()
        for part, sizes in (("nothing", (1, 65) * 3), ("run", (2, 2, 4, 2))):
            for calls in sizes:
                worker.burst({"part": part, "indices": [*range(calls)], "together": True, "operations": 0})
        assert len(captured) == 2 + 3
        assert sorted(key[1] for key in worker._graphs) == ["nothing", "nothing", "run"]
