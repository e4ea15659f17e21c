"""The process of a device session, from where its templates are forked (`opening.py`) to its end.

The kernel ends this process when the host ends; then the template ends every worker.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from importlib import metadata
from typing import Final

import pynvml
import torch

from flashinfer_bench import __version__
from flashinfer_bench.base.stamp import utc_now
from flashinfer_bench.base.wire import WireClosed, send_frame
from flashinfer_bench.bench.evaluators.compare.kernel_cache import build_helpers
from flashinfer_bench.bench.evaluators.registry import register
from flashinfer_bench.bench.runner.protocol import BlockJob, JobFault, JobVerdict, SessionReady
from flashinfer_bench.bench.runner.session.device_session import DeviceSession
from flashinfer_bench.bench.runner.session.job import BlockContext
from flashinfer_bench.bench.runner.session.opening import OpenedSession, Orders
from flashinfer_bench.bench.runner.session.outcome import NotPlain, make_evaluation
from flashinfer_bench.bench.runner.session.reference_timing import KeptTimes
from flashinfer_bench.bench.runner.workers.arena import SharedArena
from flashinfer_bench.bench.runner.workers.kernel_task import SessionTools
from flashinfer_bench.data import Environment
from flashinfer_bench.errors import WorkloadFault
from flashinfer_bench.timing.clocks import capture_first, import_cupti, make_clock
from flashinfer_bench.timing.flush import kernel_image

REPORTED_PACKAGES: Final = ("triton", "flashinfer-python", "cupti-python", "numpy", "apache-tvm-ffi")
FIRST_PORTION_S: Final = 0.5
"""Seconds after which the first portion of a session takes no further baseline. It has one at least, so that the first
verdict waits for one workload's baseline and little else."""
LATER_PORTION_S: Final = 4.0
"""The same for the first portion of each later block, since nobody waits for a first verdict then."""
PORTION_GROWTH: Final = 4
"""Each further portion of a block may last this many times as long as the one before. A portion costs two workers, the
solution's and the reference's, so there have to be few of them."""


def serve(opened: OpenedSession) -> None:
    """Serve the host until it closes its end."""
    hello, host, pool, readout = opened.hello, opened.host, opened.pool, opened.readout
    sys.dont_write_bytecode = True  # of plug-ins, wherever they lie
    register(hello.plug_ins)
    device = torch.device("cuda", 0) if opened.context is not None else torch.device("cpu")
    if opened.context is not None:
        import_cupti()  # while the driver makes the context
        if hello.needs_triton:
            with contextlib.suppress(ImportError):  # comparisons will do without
                importlib.import_module("triton.runtime.driver")
        opened.context.join()
        torch.zeros(1, device=device)
        pool.timing_image = kernel_image()
    clock = make_clock(device, l2_cache=hello.timing.l2_cache, clock=hello.timing.clock)
    pool.sees_streams = clock.sees_operations
    readout.add_launch_gap(clock.launch_gap_ns())
    readout.least_span_ns = clock.least_span_ns()
    pool.see_context(clock.chain_gap_ns())
    capture_first(device)
    if hello.needs_triton and opened.context is not None:
        build_helpers()
    libs = library_versions()
    send_frame(host, {"ready": SessionReady(pid=os.getpid(), libs=libs).model_dump()})
    tools = SessionTools(SharedArena(device), readout, pool.quiesce, pool.is_slowed, pool.is_starting)
    kept = KeptTimes.open(hello, libs, os.environ)
    make_session = DeviceSession if hello.tool is None else importlib.import_module(hello.tool[0]).Session
    session = make_session(hello, pool, tools, lambda phase: send_frame(host, {"phase": phase.model_dump()}), kept)
    environment, portion_s = Environment(hardware=hello.hardware, libs=libs), FIRST_PORTION_S
    try:
        while True:
            run_block(host, session, opened.orders, environment, portion_s)
            portion_s = LATER_PORTION_S
            send_frame(host, {"done": True})
    except (WireClosed, BrokenPipeError):
        return  # the host is gone
    finally:
        session.close()


def run_block(
    host: socket.socket, session: DeviceSession, orders: Orders, environment: Environment, portion_s: float
) -> None:
    """Wait for the next block, judge its jobs in order, and send each result.

    Baselines are made in portions, while no worker holds a solution: those that did are gone with all that they
    started. The first portion takes no further baseline after `portion_s` seconds.
    """
    order = orders.next_block()
    try:
        block = session.open_block(order)
    except WorkloadFault as fault:
        for job in order.jobs:
            send_fault(host, job, str(fault))
        return

    def expect(at: int) -> None:
        orders.poll()
        session.expect(block, order.jobs[at:], orders.ahead, orders.announced)

    for at, job in enumerate(order.jobs):
        expect(at)
        if session.lacks_baseline(block, job):
            session.end_workers()
            expect(at)  # the first one's worker starts beside the reference
            deadline = time.monotonic() + portion_s
            for one in order.jobs[at:]:
                if one is not job and time.monotonic() > deadline:
                    break
                if session.lacks_baseline(block, one):
                    with held_against(host, one):
                        session.prepare(block, one)
            portion_s *= PORTION_GROWTH
        with held_against(host, job):
            judge(host, session, block, job, environment)


@contextlib.contextmanager
def held_against(host: socket.socket, job: BlockJob) -> Iterator[None]:
    """Tell the host on which job an error that we do not know has ended the session."""
    try:
        yield
    except (WireClosed, BrokenPipeError):
        raise
    except Exception:
        # Round one device: an error we do not know leaves a state we do not know. The host starts another.
        send_fault(host, job, f"the session failed on this job:\n{traceback.format_exc(limit=-12)}", retry=True)
        raise


def send_fault(host: socket.socket, job: BlockJob, message: str, *, retry: bool = False) -> None:
    """Tell the host that a job has no verdict."""
    send_frame(host, {"fault": JobFault(job=job.index, message=message, retry=retry).model_dump()})


def judge(
    host: socket.socket, session: DeviceSession, block: BlockContext, job: BlockJob, environment: Environment
) -> None:
    """Judge one job, make its evaluation, and send it."""
    start = time.monotonic()
    result = session.run_job(block, job)
    if isinstance(result, JobFault):
        send_frame(host, {"fault": result.model_dump()})
        return
    try:
        evaluation = make_evaluation(
            result.outcome, printed=result.printed, timestamp=utc_now(), environment=environment, extra=result.extra
        )
    except NotPlain as error:
        send_fault(host, job, f"evaluator {block.evaluator.__name__} left a value that no trace can hold: {error}")
        return
    verdict = JobVerdict(
        job=job.index,
        evaluation=evaluation.model_dump(mode="json"),
        seconds=time.monotonic() - start,
        ran_out=result.ran_out,
    )
    send_frame(host, {"verdict": verdict.model_dump()})


def library_versions() -> dict[str, str]:
    """Return name → version of what the numbers depend on."""
    libs = {"flashinfer_bench": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda and torch.cuda.is_available():
        libs |= {"cuda": str(torch.version.cuda), "driver": "unknown"}
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            libs["driver"] = str(pynvml.nvmlSystemGetDriverVersion())
    for package in REPORTED_PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            libs[package.removesuffix("-python")] = metadata.version(package)
    return libs
