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
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from typing import Any, Final

import pynvml
import torch

from flashinfer_bench import __version__
from flashinfer_bench.base.stamp import utc_now
from flashinfer_bench.base.wire import WireClosed, send_frame
from flashinfer_bench.bench.evaluators.compare.kernel_cache import build_helpers
from flashinfer_bench.bench.evaluators.registry import register
from flashinfer_bench.bench.runner.protocol import (
    BlockJob,
    Hello,
    JobFault,
    JobVerdict,
    Phase,
    SessionReady,
)
from flashinfer_bench.bench.runner.session.device_session import DeviceSession
from flashinfer_bench.bench.runner.session.job import BlockContext
from flashinfer_bench.bench.runner.session.kept_baselines import open_kept_baselines
from flashinfer_bench.bench.runner.session.opening import OpenedSession
from flashinfer_bench.bench.runner.session.orders import Orders
from flashinfer_bench.bench.runner.session.outcome import NotPlain, make_evaluation
from flashinfer_bench.bench.runner.workers.arena import SharedArena
from flashinfer_bench.bench.runner.workers.kernel_task import SessionTools
from flashinfer_bench.data import Environment
from flashinfer_bench.errors import WorkloadFault
from flashinfer_bench.timing.clocks import capture_first, import_cupti, make_clock
from flashinfer_bench.timing.driver import set_connections
from flashinfer_bench.timing.gpu_queue import kernel_image

REPORTED_PACKAGES: Final = ("triton", "flashinfer-python", "cupti-python", "numpy", "apache-tvm-ffi")
FIRST_PORTION_S: Final = 0.5
"""Seconds after which the first portion of a session takes no further baseline. It has one at least, so that the first
verdict waits for one workload's baseline and little else."""
LATER_PORTION_S: Final = 4.0
"""The same for the first portion of each later block, since nobody waits for a first verdict then."""
PORTION_GROWTH: Final = 4
"""Each further portion of a block may last this many times as long as the one before. A portion costs two workers, the
solution's and the reference's, so there have to be few of them."""


def serve(opened: OpenedSession, make_session: Callable[..., DeviceSession] = DeviceSession) -> None:
    """Serve the host until it closes its end."""
    hello, host, pool = opened.hello, opened.host, opened.pool
    sys.dont_write_bytecode = True  # of plug-ins, wherever they lie
    register(hello.plug_ins)
    device = torch.device("cuda", 0) if hello.device == "cuda" else torch.device("cpu")
    if opened.context is not None:
        import_tools(hello)  # while the driver makes the context
        opened.context.join()
        set_connections(None)
        torch.zeros(1, device=device)
        pool.timing_image = kernel_image()
    clock = make_clock(device, l2_cache=hello.timing.l2_cache, clock=hello.timing.clock)
    opened.readout.add_launch_gap(clock.launch_gap_ns())
    opened.readout.least_span_ns = clock.least_span_ns()
    pool.see_context(clock.chain_gap_ns())
    capture_first(device)
    if hello.needs_triton and device.type == "cuda":
        build_helpers()
    libs = library_versions()
    send_frame(host, {"ready": SessionReady(pid=os.getpid(), libs=libs).model_dump()})
    environment = Environment(hardware=hello.hardware, libs=libs)
    tools = SessionTools(SharedArena(device), opened.readout, pool.quiesce, excess_of=pool.excess_of)
    kept = open_kept_baselines(hello, libs, os.environ)
    session = make_session(hello, pool, tools, lambda phase: send_phase(host, phase), kept)
    try:
        portion_s = FIRST_PORTION_S
        while True:
            run_block(host, session, opened.orders, environment, portion_s)
            portion_s = LATER_PORTION_S
            send_frame(host, {"done": True})
    except (WireClosed, BrokenPipeError):
        return  # the host is gone
    finally:
        session.close()


def import_tools(hello: Hello) -> None:
    """Import what is used on a GPU, in 0.1 s and 0.2 s."""
    import_cupti()
    if hello.needs_triton:
        with contextlib.suppress(ImportError):  # comparisons will do without
            importlib.import_module("triton.runtime.driver")


def send_phase(host: socket.socket, phase: Phase) -> None:
    """Tell the host what the session does now."""
    send_frame(host, {"phase": phase.model_dump()})


def run_block(
    host: socket.socket, session: DeviceSession, orders: Orders, environment: Environment, portion_s: float
) -> None:
    """Wait for the next block, judge its jobs in order, and send what each came to.

    The first portion of its baselines takes no further one after so many seconds.
    """
    block = orders.next_block()
    try:
        shared = session.open_block(block)
    except WorkloadFault as fault:
        for job in block.jobs:
            send_answer(host, JobFault(job=job.index, message=str(fault), retry=False))
        return
    for at, job in enumerate(block.jobs):
        orders.look()
        session.take_announced(orders.announced)
        session.expect(shared, block.jobs[at:], orders.ahead)
        if session.lacks_baseline(shared, job):
            session.end_workers()
            session.expect(shared, block.jobs[at:], orders.ahead)  # the first one's worker starts beside the reference
            prepare_portion(host, session, shared, block.jobs[at:], portion_s)
            portion_s *= PORTION_GROWTH
        session.on_loaded = partial(look_ahead, session, orders, shared, block.jobs[at:])
        with held_against(host, job):
            send_answer(host, judge(session, shared, job, environment))


def look_ahead(session: DeviceSession, orders: Orders, shared: BlockContext, jobs: list[BlockJob]) -> None:
    """Take what the host has sent since a job began; the workers of the next block start beside it."""
    orders.look()
    session.expect(shared, jobs, orders.ahead)


def prepare_portion(
    host: socket.socket, session: DeviceSession, shared: BlockContext, jobs: list[BlockJob], portion_s: float
) -> None:
    """Prepare the baseline of the first job, and of later jobs until so many seconds are over.

    No worker holds a solution meanwhile: those that did are gone with all that they started.
    """
    deadline = time.monotonic() + portion_s
    for at, job in enumerate(jobs):
        if at > 0 and time.monotonic() > deadline:
            return
        if session.lacks_baseline(shared, job):
            with held_against(host, job):
                session.prepare(shared, job)


@contextlib.contextmanager
def held_against(host: socket.socket, job: BlockJob) -> Iterator[None]:
    """Tell the host on which job an error that we do not know has ended the session."""
    try:
        yield
    except (WireClosed, BrokenPipeError):
        raise
    except Exception:
        # Round one device: an error we do not know leaves a state we do not know. The host starts another.
        message = f"the session failed on this job:\n{traceback.format_exc(limit=-12)}"
        send_answer(host, JobFault(job=job.index, message=message, retry=True))
        raise


def judge(
    session: DeviceSession, shared: BlockContext, job: BlockJob, environment: Environment
) -> JobVerdict | JobFault:
    """Judge one job."""
    start = time.monotonic()
    result = session.run_job(shared, job)
    if isinstance(result, JobFault):
        return result
    try:
        evaluation = make_evaluation(
            result.outcome,
            printed=result.printed,
            timestamp=utc_now(),
            environment=environment,
            extra=result.extra,
        )
    except NotPlain as error:
        message = f"evaluator {shared.evaluator.__name__} left a value that no trace can hold: {error}"
        return JobFault(job=job.index, message=message, retry=False)
    return JobVerdict(
        job=job.index,
        evaluation=evaluation.model_dump(mode="json"),
        seconds=time.monotonic() - start,
        ran_out=result.ran_out,
    )


def send_answer(host: socket.socket, answer: JobVerdict | JobFault) -> None:
    """Tell the host what a job came to."""
    kind = "fault" if isinstance(answer, JobFault) else "verdict"
    send_frame(host, {kind: answer.model_dump()})


def library_versions() -> dict[str, str]:
    """Return name → version of what the numbers depend on."""
    libs: dict[str, Any] = {
        "flashinfer_bench": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if torch.version.cuda and torch.cuda.is_available():
        libs["cuda"] = torch.version.cuda
        libs["driver"] = driver_version()
    for package in REPORTED_PACKAGES:
        try:
            libs[package.removesuffix("-python")] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {name: str(version) for name, version in libs.items()}


def driver_version() -> str:
    """Return the NVIDIA driver's version, or "unknown"."""
    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return "unknown"
