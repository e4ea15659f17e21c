"""The host's side: has a job judged once more by a session that keeps the call, and writes the files beside it."""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.exits import describe_exit
from flashinfer_bench.base.wire import FrameReader, WireClosed, send_frame
from flashinfer_bench.bench import evaluators
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.context import list_hidden_folders
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.device_lock import lock_device
from flashinfer_bench.bench.runner.environments import session_environment
from flashinfer_bench.bench.runner.orders import describe_solution
from flashinfer_bench.bench.runner.protocol import BlockJob, BlockOrder, Hello, JobFault, JobVerdict
from flashinfer_bench.bench.runner.sandbox import find_sandbox
from flashinfer_bench.compile import BuildFarm, BuildTarget, find_toolchain
from flashinfer_bench.data import Evaluation, TraceSet
from flashinfer_bench.data.solution import check_source_path
from flashinfer_bench.env import cache_root
from flashinfer_bench.errors import DeviceFault, Fault

MODULE: Final = "flashinfer_bench.examine.repro.session"
SCRIPT: Final = "repro.py"
RULE: Final = ("bounds_of", "find_beyond", "match_bits")
"""Functions of `compare/rule.py` that the script has a copy of."""
RULE_IMPORT: Final = "from flashinfer_bench.bench.evaluators.compare.rule import find_beyond, match_bits\n"
BUDGET_S: Final = 1.0
"""Seconds that the measurement may take: some failures show in timed calls alone."""
GIB: Final = 1 << 30


@dataclass(frozen=True)
class ReproOrder:
    """What is judged once more, and where."""

    job: Job
    seed: int
    device: Device
    config: BenchmarkConfig
    trace_set: TraceSet
    folder: Path
    """What is found is written here."""


def reproduce(order: ReproOrder, replay: str, tell: Callable[[str], object] = lambda _: None) -> Evaluation:
    """Judge the job, and write what decided to the folder; return the verdict.

    Raises:
        Fault: the job cannot be judged.
    """
    job, cache = order.job, cache_root(os.environ).resolve()
    hello = _hello(order, cache)
    with ExitStack() as stack:
        for line in lock_device(order.device, stack):
            tell(line)
        target = BuildTarget.of([order.device.capability] if order.device.capability is not None else [])
        with BuildFarm(cache, target=target, toolchain=find_toolchain()) as farm:
            built = next(iter(farm.build_all([job.solution])))
            block = BlockOrder(
                definition=job.definition.model_dump(mode="json"),
                config=job.config.to_order(),
                solutions={job.solution.name: describe_solution(built)},
                jobs=[_block_job(order)],
            )
            evaluation = _ask(hello, block, order)
    _write_script(order, evaluation, replay)
    return evaluation


def _block_job(order: ReproOrder) -> BlockJob:
    job = order.job
    root = order.trace_set.blob_root(job.definition.name, job.workload.uuid) or Path.cwd()
    workload = job.workload.model_dump(mode="json")
    return BlockJob(index=0, solution=job.solution.name, workload=workload, blob_root=str(root), seed=order.seed)


def _hello(order: ReproOrder, cache: Path) -> Hello:
    config, sandbox = order.config, find_sandbox(order.config.sandbox, cache)
    return Hello(
        device=order.device.kind,
        hardware=order.device.name,
        isolated=config.use_isolated_runner,
        timeout_seconds=config.timeout_seconds,
        profile_baseline=False,
        time_budget_s=BUDGET_S,
        baseline_budget_s=BUDGET_S,
        gpu_uuid=order.device.uuid if order.device.kind == "cuda" else None,
        worker_memory_bytes=int(config.worker_memory_gb * GIB) if config.worker_memory_gb else None,
        needs_triton=order.job.solution.spec.language.value == "triton",
        cache_root=str(cache),
        has_walls=sandbox.has_walls,
        sandbox_user=sandbox.user,
        hidden=list_hidden_folders(order.trace_set, cache),
    )


def _ask(hello: Hello, block: BlockOrder, order: ReproOrder) -> Evaluation:
    environment = session_environment(os.environ, order.device, interpret_triton=order.device.kind == "cpu")
    ours, theirs = socket.socketpair()
    with ours:
        argv = [sys.executable, "-m", MODULE, str(theirs.fileno()), str(order.folder.absolute())]
        process = subprocess.Popen(argv, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        try:
            for frame in ({"hello": hello.model_dump()}, {"block": block.model_dump()}, {"begin": True}):
                send_frame(ours, frame)
            return _listen(FrameReader(ours, max_bytes=1 << 28))
        except (WireClosed, BrokenPipeError):
            raise DeviceFault(f"the session {describe_exit(process.wait())}, without a verdict") from None
        finally:
            ours.close()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _listen(reader: FrameReader) -> Evaluation:
    while True:
        frame = reader.read()
        if "fault" in frame:
            raise Fault(JobFault.model_validate(frame["fault"]).message)
        if "verdict" in frame:
            return Evaluation.model_validate(JobVerdict.model_validate(frame["verdict"]).evaluation)


def _write_script(order: ReproOrder, evaluation: Evaluation, replay: str) -> None:
    """Write the sources and the script, and complete the facts of the call."""
    job, file = order.job, order.folder / "call.json"
    facts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    facts |= {
        "definition": job.definition.name,
        "solution": job.solution.name,
        "workload": job.workload.uuid,
        "seed": order.seed,
        "status": evaluation.status.value,
        "message": evaluation.log.strip(),
        "entry": job.solution.spec.entry_point,
        "is_python": not job.solution.spec.language.record.is_compiled,
        "replay": replay,
    }
    file.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    for source in job.solution.sources:
        path = order.folder / "solution" / check_source_path(source.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.content, encoding="utf-8")
    for name, model in (("definition", job.definition), ("solution", job.solution)):
        (order.folder / f"{name}.json").write_text(model.model_dump_json(indent=2) + "\n", encoding="utf-8")
    (order.folder / "reference.py").write_text(job.definition.reference, encoding="utf-8")
    (order.folder / SCRIPT).write_text(make_script(), encoding="utf-8")


def make_script() -> str:
    """Return the script, with the source of the rule of tolerances in place of its import."""
    rule = Path(evaluators.__file__).with_name("compare").joinpath("rule.py").read_text(encoding="utf-8")
    functions = [node for node in ast.parse(rule).body if isinstance(node, ast.FunctionDef) and node.name in RULE]
    source = "\n\n\n".join(ast.get_source_segment(rule, node) or "" for node in functions)
    return Path(__file__).with_name("standalone.py").read_text(encoding="utf-8").replace(RULE_IMPORT, f"{source}\n")
