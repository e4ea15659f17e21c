"""The inspector: `answer` carries out an order (`order.py`) in a process of its own (`base/isolated.py`).

It does what a device session does before a call: forks the template, makes the inputs,
has a worker load the solution to find out how it is called. Then it runs the steps of the tool, each in the walls of a
worker for this solution.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from flashinfer_bench.base.files.held_folders import hold_folder
from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.base.wire import WireError
from flashinfer_bench.bench.evaluators.inputs.make import InputMaker
from flashinfer_bench.bench.runner.environments import PACKAGE
from flashinfer_bench.bench.runner.workers.artifacts import find_artifact
from flashinfer_bench.bench.runner.workers.calling_style import CallingStyle, choose_style
from flashinfer_bench.bench.runner.workers.pool import make_order
from flashinfer_bench.bench.runner.workers.process import WorkerGone, WorkerLate, WorkerProcess
from flashinfer_bench.bench.runner.workers.sandbox_policy import PolicyMaker
from flashinfer_bench.compile import Artifact
from flashinfer_bench.data import Definition, Workload
from flashinfer_bench.errors import FlashInferBenchError, SolutionFailure
from flashinfer_bench.examine.inspect.enclosed import run_enclosed
from flashinfer_bench.examine.inspect.inputs import write_inputs
from flashinfer_bench.examine.inspect.order import WORK, Inspected, InspectOrder, StepDone, ToolStep
from flashinfer_bench.sandbox.namespaces import has_own_network
from flashinfer_bench.sandbox.process_tree import fork
from flashinfer_bench.worker.fork_server import Preparation, let_prepare, start_fork_server
from flashinfer_bench.worker.protocol import Failed, Loaded

CALLER: Final = "flashinfer_bench.worker.one_call"
CALL_FILE, OUTCOME_FILE = "call.json", "outcome.json"
MOST_OUTCOME_BYTES: Final = 1 << 20
NO_NETWORK: Final = (
    "the programs of the tool speak over a network of their own, and a process cannot have one here; with "
    "--sandbox off they use the machine's, and the solution has no walls"
)


class Inspector:
    """Looks at one solution.

    Args:
        order: what to look at.
        template: where programs are forked.
        run_directory: everything is written below it.
    """

    def __init__(self, order: InspectOrder, template: socket.socket, run_directory: Path) -> None:
        self._order = order
        self._template = template
        self._policies = PolicyMaker(order.hello, os.environ)
        self._policies.open_to_workers(run_directory)
        self._given, self._work = run_directory / "given", run_directory / "work"
        self._homes = (run_directory / f"home-{number}" for number in range(1 << 16))
        self._device = "cuda:0" if order.hello.device == "cuda" else "cpu"
        directory = order.solution.directory
        self._policy = self._policies.make_policy(
            order.solution.digest, Path(directory) if directory else None, self._given
        )
        self._given.mkdir(exist_ok=True)
        self._work.mkdir()
        if self._policy is not None and self._policy.user is not None:
            os.chown(self._work, self._policy.user, self._policy.user)

    def look(self) -> tuple[StepDone, ...]:
        """Run all steps.

        Raises:
            FlashInferBenchError: there is nothing to look at.
        """
        call = in_a_child(self._make_inputs, self._given / "inputs.json")
        artifact = find_artifact(self._order.solution, lambda: Path(tempfile.mkdtemp(dir=self._given)))
        artifact = self._policies.hand_over(artifact, self._given)
        style = self._load(artifact)
        call |= {"style": style.style, "style_is_settled": style.is_settled}
        call |= {"device": self._device, "outcome": str(self._work / OUTCOME_FILE)}
        call |= {"directory": str(artifact.directory), "entry": artifact.entry}
        call |= {"symbol": artifact.symbol, "kind": artifact.kind}
        import_path = self._given / "path"
        import_path.mkdir()
        (import_path / PACKAGE.name).symlink_to(PACKAGE)  # the folder around the package need not be readable
        done: list[StepDone] = []
        for step in self._order.steps:
            done.append(self._run(step, call, import_path))
            if done[-1].ended and not step.calls:
                break
        return tuple(done)

    def _make_inputs(self) -> dict[str, Any]:
        order, device = self._order, torch.device(self._device)
        definition, workload = Definition.model_validate(order.definition), Workload.model_validate(order.workload)
        maker = InputMaker(definition, workload, device, Path(order.blob_root))
        return write_inputs(maker, order.seed, self._given / "inputs")

    def _load(self, artifact: Artifact) -> CallingStyle:
        """Have a worker import the solution; return how it is called.

        Raises:
            SolutionFailure: it cannot be loaded, or called.
        """
        order, home = self._order, next(self._homes)
        place: dict[str, Any] = {"directory": str(artifact.directory), "entry": artifact.entry}
        place |= {"symbol": artifact.symbol, "kind": artifact.kind, "environment": self._solution_environment()}
        limit_s = order.hello.timeout_seconds
        try:
            with WorkerProcess(self._template, self._worker_order(home), home) as worker:
                worker.wait_ready()
                answer = worker.ask("load", Loaded, limit_s, **place)
        except (WorkerGone, WorkerLate, WireError) as error:
            why = f"not within {limit_s:g} s" if isinstance(error, WorkerLate) else str(error)
            raise SolutionFailure("COMPILE_ERROR", f"the solution cannot be imported: {why}") from None
        if isinstance(answer, Failed):
            raise SolutionFailure("COMPILE_ERROR", answer.error.traceback or answer.error.message)
        definition = Definition.model_validate(order.definition)
        return choose_style(
            answer.signature,
            inputs=list(definition.inputs),
            outputs=list(definition.outputs),
            declared=order.solution.declared_style,
            is_python=artifact.kind == "python",
        )

    def _run(self, step: ToolStep, call: dict[str, Any], import_path: Path) -> StepDone:
        home, outcome = next(self._homes), self._work / OUTCOME_FILE
        argv = [word.replace(WORK, str(self._work)) for word in step.argv]
        if step.calls:
            outcome.unlink(missing_ok=True)
            file = self._given / CALL_FILE
            file.write_text(json.dumps({**call, "warm_up_calls": step.warm_up_calls}), encoding="utf-8")
            argv += [sys.executable, "-m", CALLER, str(file)]
        order = self._worker_order(home, for_tool=True)
        order["environment"] |= {
            **self._solution_environment(),
            "PYTHONPATH": os.pathsep.join([str(import_path), *filter(None, sys.path)]),
            "PYTHONSAFEPATH": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **step.environment,
        }
        ended = run_enclosed(self._template, {**order, "program": argv}, home, step.limit_s)
        words = ended.describe(step.limit_s)
        error = read_error(outcome) if step.calls else ""
        return StepDone(name=step.name, text=ended.text, code=ended.code, ended=words, error=error)

    def _solution_environment(self) -> dict[str, str]:
        return self._policies.environment(self._order.solution.digest)

    def _worker_order(self, home: Path, for_tool: bool = False) -> dict[str, Any]:
        """Return the order for a worker, or for a program in its place."""
        order = make_order(self._order.hello, home)
        order["timing"]["clock"] = "cuda_events"
        if self._policy is not None:
            order["environment"] |= self._policies.environment(self._order.solution.digest)
            own = [str(home), str(self._work), *self._policy.writable]
            readable = (*self._policy.readable, *self._order.readable)
            policy = replace(self._policy, readable=readable, writable=tuple(own), for_tool=for_tool)
            order |= {"sandbox": policy.to_json(), "shared_modules": str(self._policies.shared_modules)}
        return order


def in_a_child(make: Callable[[], dict[str, Any]], file: Path) -> dict[str, Any]:
    """Call a function in a child, which alone makes a context on the device; return what it returned.

    Raises:
        FlashInferBenchError: as the function raised.
    """
    pid = fork()
    if pid == 0:
        told: dict[str, Any] = {"problem": "the process that makes the inputs failed"}
        with suppress(BaseException):
            try:
                told = {"made": make()}
            except Exception as error:
                told = {"problem": str(error) if isinstance(error, FlashInferBenchError) else repr(error)}
            file.write_text(json.dumps(told), encoding="utf-8")
        os._exit(0)
    os.waitpid(pid, 0)
    told = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"problem": "the inputs take too much"}
    if "problem" in told:
        raise FlashInferBenchError(f"the inputs cannot be made: {told['problem']}")
    made: dict[str, Any] = told["made"]
    return made


def read_error(file: Path) -> str:
    """Return what the solution raised, as the process that called it wrote it; it may have written anything."""
    try:
        told = json.loads(read_whole(file, MOST_OUTCOME_BYTES))
    except (OSError, ValueError, RecursionError):
        return ""
    return str(told.get("error", "")) if isinstance(told, dict) else ""


def inspect(order: InspectOrder) -> Inspected:
    """Carry out an order; leaves no process and no file behind."""
    if order.hello.has_walls and order.steps and not has_own_network():
        return Inspected(problem=NO_NETWORK)
    sys.dont_write_bytecode = True
    run_directory, _ = hold_folder("inspect")  # until this process and its forks have ended
    ours, theirs = socket.socketpair()
    with ExitStack() as stack:
        stack.callback(theirs.close)
        preparation = Preparation(with_triton=order.hello.needs_triton)
        template = start_fork_server(run_directory, preparation, not_for_it=[ours])
        let_prepare(template)
        stack.callback(template.close)  # then the template ends what is left, and removes the folder
        stack.callback(ours.close)
        try:
            return Inspected(steps=Inspector(order, template, run_directory).look())
        except SolutionFailure as failure:
            return Inspected(problem=failure.message)
        except FlashInferBenchError as error:
            return Inspected(problem=str(error))


def answer(order: dict[str, Any]) -> dict[str, Any]:
    """Carry out an order (`base/isolated.py`)."""
    return inspect(InspectOrder.model_validate(order)).model_dump(mode="json")
