"""A session that runs programs around a call instead of judging the call.

Each program runs like a worker: in the sandbox of the solution, with a worker's limits, below a supervisor that ends
all of its processes. The first program only imports the solution, so that code compiled at import is compiled without
the tool.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import torch

from flashinfer_bench.base.bounded_log import BoundedLog
from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.bench.evaluators.inputs.generate import InputMaker
from flashinfer_bench.bench.runner.environments import PACKAGE
from flashinfer_bench.bench.runner.protocol import JobFault, RequestedJob
from flashinfer_bench.bench.runner.session.device_session import DeviceSession
from flashinfer_bench.bench.runner.session.job import JobContext, RequestContext
from flashinfer_bench.bench.runner.workers.artifacts import find_artifact, location_of
from flashinfer_bench.bench.runner.workers.pool import SolutionFiles
from flashinfer_bench.bench.runner.workers.sandbox_policy import READ_BY_ALL, is_too_wide
from flashinfer_bench.bench.runner.workers.worker_handle import WorkerProcess
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.errors import FlashInferBenchError, WorkloadFault
from flashinfer_bench.examine.inspect.tool_runs import DONE, LINE_INFO, STEPS, WORK, StepDone, ToolStep
from flashinfer_bench.sandbox.namespaces import has_own_network

LOAD_LIMIT_S: Final = 300.0
"""Seconds that the import of the solution may take. The import may compile code."""
CALLER: Final = "flashinfer_bench.worker.one_call"
MOST_OUTCOME_BYTES: Final = 1 << 20
KEPT_BYTES: Final = 16 << 20
"""Bytes of output kept from each end."""
POLL_S: Final = 1.0
"""Seconds between two checks of whether a program has ended."""
NO_NETWORK: Final = (
    "the programs of the tool speak over a network of their own, and a process cannot have one here; with "
    "--sandbox off they use the machine's, and the solution has no sandbox"
)


class Session(DeviceSession):
    """Runs the steps of `run_tool` for each job. A job gets no verdict."""

    def expect(self, *_arguments: Any) -> None:
        """Start no worker ahead."""

    def lacks_baseline(self, *_arguments: Any) -> bool:
        """Return False: the reference is not needed."""
        return False

    def run_job(self, request: RequestContext, requested: RequestedJob) -> JobFault:
        """Run the steps."""
        job = request.open_job(requested)
        self._say(job, "inspect")
        problem = "inspected"
        assert self._session_config.tool is not None
        folder = Path(self._session_config.tool[1])
        try:
            found = self._inspect(job, folder)
            (folder / DONE).write_text(json.dumps([asdict(done) for done in found]), encoding="utf-8")
        except FlashInferBenchError as error:
            problem = str(error)
        return JobFault(job=requested.index, message=problem, retry=False)

    def _inspect(self, job: JobContext, folder: Path) -> list[StepDone]:
        """Make the inputs, load the solution, and run the programs.

        Raises:
            FlashInferBenchError: inputs cannot be made, the solution cannot be loaded, or the artifact was changed.
        """
        solution = job.solution
        if solution.build_error is not None:
            raise FlashInferBenchError(f"it cannot be built: {solution.build_error}")
        if self._session_config.is_sandboxed and not has_own_network():
            raise FlashInferBenchError(NO_NETWORK)
        steps = [ToolStep(**one) for one in json.loads((folder / STEPS).read_text(encoding="utf-8"))]
        policies = self._pool.policies
        policies.open_to_workers(folder)
        given = folder / "given"
        work = folder / "work"
        outcome = work / "outcome.json"
        # Code that the solution compiles at run time gets other flags here than in runs. So it is cached separately.
        digest = digest_of({"inspect": solution.digest})
        files = SolutionFiles(digest, Path(solution.directory) if solution.directory else None)
        request = self._pool.order_for(files, folder / "home")
        given.mkdir()
        given.chmod(READ_BY_ALL)
        work.mkdir()
        if (sandbox := request.get("sandbox")) is not None:
            program = steps[0].argv[0]
            tools = (str(Path(path).parent) for path in (program, os.path.realpath(program)))
            sandbox["readable"] = [*sandbox["readable"], str(given), *(tool for tool in tools if not is_too_wide(tool))]
            sandbox["writable"] = [*sandbox["writable"], str(work)]
            sandbox["for_tool"] = True
            if sandbox["user"] is not None:
                os.chown(work, sandbox["user"], sandbox["user"])
        self._write_inputs(job, given / "values.pt")
        artifact = find_artifact(solution, lambda: Path(tempfile.mkdtemp(dir=given)))
        call = {
            **location_of(policies.hand_over(artifact, given)),
            "device": "cuda:0" if self._is_gpu else "cpu",
            "values": str(given / "values.pt"),
            "outcome": str(outcome),
            "style": {True: "dps", False: "value", None: None}[solution.declared_style],
        }
        (given / "path").mkdir()
        (given / "path" / PACKAGE.name).symlink_to(PACKAGE)  # the process may have no access to the package's parent
        environment = {
            **request["environment"],
            "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
            "NVCC_APPEND_FLAGS": f"{os.environ.get('NVCC_APPEND_FLAGS', '')} {LINE_INFO}".strip(),
            "PYTHONPATH": os.pathsep.join([str(given / "path"), *filter(None, sys.path)]),
            "PYTHONSAFEPATH": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

        def run(step: ToolStep) -> StepDone:
            argv = [word.replace(WORK, str(work)) for word in step.argv]
            if step.calls:
                outcome.unlink(missing_ok=True)
                file = given / "call.json"
                file.write_text(json.dumps({**call, "warm_up_calls": step.warm_up_calls}), encoding="utf-8")
                argv += [sys.executable, "-m", CALLER, str(file)]
            own = {**request, "program": argv, "environment": environment | step.environment}
            done = run_program(self._pool.server, step.name, own, folder / "home", step.limit_s)
            return replace(done, error=read_error(outcome)) if step.calls else done

        loaded = run(ToolStep("load", [], calls=True, limit_s=LOAD_LIMIT_S, warm_up_calls=-1))
        if loaded.ended:
            raise FlashInferBenchError(f"the solution cannot be imported: {loaded.error or loaded.ended}")
        found: list[StepDone] = []
        for step in steps:
            found.append(run(step))
            if found[-1].ended and not step.calls:
                break
        return found

    def _write_inputs(self, job: JobContext, file: Path) -> None:
        """Make inputs as a run does. Write them to a file, with the shapes and dtypes of the outputs.

        Raises:
            WorkloadFault: inputs cannot be made, or shapes of outputs are unknown.
        """
        definition = job.request.definition
        maker = InputMaker(definition, job.workload, self._device, Path(job.requested.blob_root))
        try:
            made = maker.make(job.requested.seed)
        except Exception as error:  # the set may have its own code for inputs
            raise WorkloadFault(f"the inputs cannot be made: {error}") from None
        values = [one.detach().contiguous().cpu() if isinstance(one, torch.Tensor) else one for one in made]
        outputs = [torch.empty(one.shape, dtype=one.dtype, device="meta") for one in job.output_specs()]
        torch.save({"arguments": dict(zip(definition.inputs, values, strict=True)), "outputs": outputs}, file)
        file.chmod(0o644)


def run_program(server: socket.socket, name: str, request: dict[str, Any], home: Path, limit_s: float) -> StepDone:
    """Run the request's `program` instead of a worker. All of its processes have ended when this returns.

    Args:
        server: the socket of the fork server.
        name: the name of the step.
        request: the same fields as a worker's: environment, sandbox, memory limit.
        home: the program's private folder, made here and removed at the end.
        limit_s: seconds until the program is ended.
    """
    deadline = time.monotonic() + limit_s
    log = BoundedLog(head_bytes=KEPT_BYTES, tail_bytes=KEPT_BYTES)
    with WorkerProcess(server, request, home, log=log) as program:
        program.deafen()
        while not program.has_ended and (left_s := deadline - time.monotonic()) > 0:
            select.select([program], [], [], min(POLL_S, left_s))
        is_late = not program.has_ended
        ended = program.end()
    is_right = ended is not None and ended.code == 0
    words = f"it did not end within {limit_s:g} s" if is_late else "" if is_right else str(ended)
    return StepDone(name, log.take(), words)


def read_error(file: Path) -> str:
    """Return the solution's exception, as its process wrote it. The content of the file is not trusted."""
    try:
        outcome = json.loads(read_whole(file, MOST_OUTCOME_BYTES))
    except (OSError, ValueError, RecursionError):
        return ""
    return str(outcome.get("error", "")) if isinstance(outcome, dict) else ""
