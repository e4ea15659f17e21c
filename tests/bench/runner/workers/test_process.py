"""A worker that the session does not listen to."""

import select
import time

import pytest

from flashinfer_bench.bench.runner.workers.process import WorkerProcess
from tests.kit.workers import worker_order

pytestmark = pytest.mark.cpu


def test_a_worker_that_is_not_heard_can_send_nothing(template, tmp_path):
    with WorkerProcess(template, worker_order(), tmp_path / "home") as worker:
        worker.deafen()
        deadline = time.monotonic() + 60
        while not worker.has_ended and time.monotonic() < deadline:
            select.select([worker], [], [], 1.0)
        assert worker.has_ended  # it has no one to serve
