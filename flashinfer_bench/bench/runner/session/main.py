"""The process of a device session, after `opening.py` has forked its fork servers.

The kernel ends this process when the host ends. Then the fork server ends every worker.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import socket
import sys
import threading
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
from flashinfer_bench.bench.runner.protocol import JobFault, JobVerdict, RequestedJob, SessionConfig, SessionReady
from flashinfer_bench.bench.runner.run_metadata import RunMetadata
from flashinfer_bench.bench.runner.session.device_session import DeviceSession
from flashinfer_bench.bench.runner.session.job import RequestContext
from flashinfer_bench.bench.runner.session.opening import Requests
from flashinfer_bench.bench.runner.session.outcome import NotPlain, make_evaluation
from flashinfer_bench.bench.runner.session.reference_timing import KeptTimes
from flashinfer_bench.bench.runner.workers.arena import SharedArena
from flashinfer_bench.bench.runner.workers.kernel_task import SessionTools
from flashinfer_bench.bench.runner.workers.pool import WorkerPool
from flashinfer_bench.data import Environment
from flashinfer_bench.errors import WorkloadFault
from flashinfer_bench.timing.clocks import capture_first, import_cupti, make_clock
from flashinfer_bench.timing.flush import kernel_image

REPORTED_PACKAGES: Final = ("triton", "flashinfer-python", "cupti-python", "numpy", "apache-tvm-ffi")
FIRST_BATCH_S: Final = 0.5
"""Seconds after which the first batch of baselines takes no further baseline. The limit is low, so that the first
verdict comes soon."""
LATER_BATCH_S: Final = 4.0
"""Like FIRST_BATCH_S, but for later requests, whose first verdict is not urgent."""
BATCH_GROWTH: Final = 4
"""Each batch of a request may last this many times as long as the previous batch. A batch costs two workers, so batches
must be few."""


def serve(
    session_config: SessionConfig,
    host: socket.socket,
    requests: Requests,
    pool: WorkerPool,
    run_metadata: RunMetadata,
    context: threading.Thread | None,
) -> None:
    """Serve the host until it closes its end. The first workers are starting.

    Args:
        context: the thread that makes the context on a GPU; None on a CPU.
    """
    sys.dont_write_bytecode = True  # plug-ins can lie in any folder
    register(session_config.plug_ins)
    device = torch.device("cpu" if context is None else "cuda:0")
    if context is not None:
        import_cupti()  # while the driver makes the context
        if session_config.needs_triton:
            with contextlib.suppress(ImportError):  # comparisons do not need Triton's driver
                importlib.import_module("triton.runtime.driver")
        context.join()
        torch.zeros(1, device=device)
        pool.timing_image = kernel_image()
    clock = make_clock(device, l2_cache=session_config.timing.l2_cache, clock=session_config.timing.clock)
    pool.sees_streams = clock.sees_operations
    run_metadata.add_launch_gap(clock.launch_gap_ns())
    run_metadata.least_span_ns = clock.least_span_ns()
    pool.see_context(clock.chain_gap_ns())
    capture_first(device)
    if session_config.needs_triton and context is not None:
        build_helpers()
    libs = library_versions()
    send_frame(host, {"ready": SessionReady(libs=libs).model_dump()})
    tools = SessionTools(SharedArena(device), run_metadata, pool)
    kept = KeptTimes.open(session_config, libs, os.environ)
    make_session = (
        DeviceSession if session_config.tool is None else importlib.import_module(session_config.tool[0]).Session
    )
    session = make_session(session_config, tools, lambda phase: send_frame(host, {"phase": phase.model_dump()}), kept)
    environment, batch_s = Environment(hardware=session_config.hardware, libs=libs), FIRST_BATCH_S
    try:
        while True:
            run_request(host, session, requests, environment, batch_s)
            batch_s = LATER_BATCH_S
            send_frame(host, {"done": True})
    except (WireClosed, BrokenPipeError):
        return  # the host has ended
    finally:
        session.close()


def run_request(
    host: socket.socket, session: DeviceSession, requests: Requests, environment: Environment, batch_s: float
) -> None:
    """Wait for the next request, judge its jobs in order, and send each result.

    Baselines are made in batches while no worker holds a solution. Earlier workers and their processes have ended by
    then. The first batch takes no further baseline after `batch_s` seconds.
    """
    sent = requests.next_request()
    try:
        request = session.open_request(sent)
    except WorkloadFault as fault:
        for job in sent.jobs:
            send_fault(host, job, str(fault))
        return

    def expect(at: int) -> None:
        requests.poll()
        session.expect(request, sent.jobs[at:], requests.ahead, requests.announced)

    for at, job in enumerate(sent.jobs):
        expect(at)
        if session.lacks_baseline(request, job):
            session.end_workers()
            expect(at)  # the first job's worker starts while the reference runs
            deadline = time.monotonic() + batch_s
            for one in sent.jobs[at:]:
                if one is not job and time.monotonic() > deadline:
                    break
                if session.lacks_baseline(request, one):
                    with held_against(host, one):
                        session.prepare(request, one)
            batch_s *= BATCH_GROWTH
        with held_against(host, job):
            judge(host, session, request, job, environment)


@contextlib.contextmanager
def held_against(host: socket.socket, job: RequestedJob) -> Iterator[None]:
    """If an unknown error ends the session, report to the host the job that was running."""
    try:
        yield
    except (WireClosed, BrokenPipeError):
        raise
    except Exception:
        # After an unknown error the state is unknown, too. The host starts another session.
        send_fault(host, job, f"the session failed on this job:\n{traceback.format_exc(limit=-12)}", retry=True)
        raise


def send_fault(host: socket.socket, job: RequestedJob, message: str, *, retry: bool = False) -> None:
    """Report to the host that a job has no verdict."""
    send_frame(host, {"fault": JobFault(job=job.index, message=message, retry=retry).model_dump()})


def judge(
    host: socket.socket, session: DeviceSession, request: RequestContext, job: RequestedJob, environment: Environment
) -> None:
    """Judge one job, make its evaluation, and send it."""
    start = time.monotonic()
    result = session.run_job(request, job)
    if isinstance(result, JobFault):
        send_frame(host, {"fault": result.model_dump()})
        return
    try:
        evaluation = make_evaluation(
            result.outcome, printed=result.printed, timestamp=utc_now(), environment=environment, extra=result.extra
        )
    except NotPlain as error:
        send_fault(host, job, f"evaluator {request.evaluator.__name__} left a value that no trace can hold: {error}")
        return
    verdict = JobVerdict(
        job=job.index,
        evaluation=evaluation.model_dump(mode="json"),
        seconds=time.monotonic() - start,
        ran_out=result.ran_out,
    )
    send_frame(host, {"verdict": verdict.model_dump()})


def library_versions() -> dict[str, str]:
    """Return name → version of all packages that affect the times."""
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
