"""The template of workers that precompile: nothing is ordered before it says that it is ready, and orders are small."""

import base64
import select
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from flashinfer_bench.bench.runner.workers.spawning import NewWorker, make_order

from flashinfer_bench.bench.runner.workers.pool import WorkerPool
from flashinfer_bench.worker.fork_server import READY
from tests.kit.workers import ROOT

pytestmark = pytest.mark.cpu
SCRIPT = """
import socket, sys, time
import torch
from flashinfer_bench.worker import template
template.prepare_stand_in = lambda: (time.sleep(0.5), print("prepared", flush=True))
preparation = template.Preparation(is_for_gpu=True, precompiles={precompiles})
template.run_fork_server(socket.socket(fileno=int(sys.argv[1])), None, preparation)
"""


@pytest.fixture
def pool():
    hello = SimpleNamespace(device="cuda", gpu_index=0, sessions=1, timing=SimpleNamespace(clock="auto"))
    return WorkerPool(None, None, hello, on_ready=lambda _: None)


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_it_is_ready_once_it_says_so(pool, ends):
    pool.precompiling, theirs = ends
    assert not pool.may_precompile()
    assert not pool.may_precompile()
    theirs.sendall(READY)
    assert pool.may_precompile()
    assert pool.may_precompile()


@pytest.mark.parametrize("sent", [b"", b"an order that nobody reads"])
def test_one_that_is_gone_before_it_is_ready_is_given_up(pool, ends, sent):
    pool.precompiling, theirs = ends
    pool.precompiling.sendall(sent)
    theirs.close()
    assert not pool.may_precompile()
    assert pool.precompiling is None


def test_where_there_is_none_nothing_is_precompiled(pool):
    assert not pool.may_precompile()


@pytest.mark.parametrize("precompiles", [True, False])
def test_a_template_says_it_where_its_workers_precompile(precompiles):
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    command = [sys.executable, "-c", SCRIPT.format(precompiles=precompiles), str(theirs.fileno())]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT, stdout=subprocess.PIPE) as process:
        theirs.close()
        if precompiles:
            assert ours.recv(8) == READY
            assert select.select([process.stdout], [], [], 0)[0]
            assert process.stdout.readline() == b"prepared\n"
        ours.shutdown(socket.SHUT_WR)
        assert ours.recv(8) == b""
        process.wait(60)
    ours.close()


@pytest.mark.parametrize("precompiles", [True, False])
def test_the_code_of_kernels_goes_to_workers_that_time(tmp_path, precompiles):
    hello = SimpleNamespace(
        timing=SimpleNamespace(l2_cache="cold", clock="auto"),
        cache_root=str(tmp_path),
        gpu_uuid="GPU-1",
        gpu_index=0,
        sessions=1,
        device="cuda",
        worker_memory_bytes=1 << 30,
    )
    precompiled = ("an artifact", {}) if precompiles else None
    new = NewWorker("key", None, tmp_path, tmp_path, timing_image=b"code", precompiled=precompiled)
    order = make_order(hello, new, None)
    assert base64.b64decode(order["timing"]["image"]) == (b"" if precompiles else b"code")
