"""The inspector: a process that makes a call's inputs and runs programs around the call (`answer`).

Each program stands in a worker's place: in the sandbox of this solution, with a worker's limits, below a supervisor
that ends all that it starts. The first program only loads the solution, so that what it compiles at its import is
compiled outside of the tool.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import select
import socket
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from flashinfer_bench.base.bounded_log import BoundedLog
from flashinfer_bench.base.files.held_folders import hold_folder
from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.bench.evaluators.compare.packed import storage_shape
from flashinfer_bench.bench.evaluators.inputs.make import InputMaker
from flashinfer_bench.bench.runner.environments import PACKAGE
from flashinfer_bench.bench.runner.workers.artifacts import find_artifact, place_of
from flashinfer_bench.bench.runner.workers.pool import make_order
from flashinfer_bench.bench.runner.workers.process import WorkerProcess
from flashinfer_bench.bench.runner.workers.sandbox_policy import PolicyMaker
from flashinfer_bench.data import Definition, Workload
from flashinfer_bench.data.dtypes import torch_dtype
from flashinfer_bench.errors import FlashInferBenchError, WorkloadFault
from flashinfer_bench.examine.inspect.look import LOAD_LIMIT_S, WORK, Inspected, InspectOrder, StepDone, ToolStep
from flashinfer_bench.sandbox.namespaces import has_own_network
from flashinfer_bench.worker.fork_server import Preparation, start_fork_server

CALLER: Final = "flashinfer_bench.worker.one_call"
MOST_OUTCOME_BYTES: Final = 1 << 20
KEPT_BYTES: Final = 16 << 20
"""Bytes of output kept from each end."""
LOOK_S: Final = 1.0
NO_NETWORK: Final = (
    "the programs of the tool speak over a network of their own, and a process cannot have one here; with "
    "--sandbox off they use the machine's, and the solution has no walls"
)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Carry out an order (`base/isolated.py`)."""
    return inspect(InspectOrder.model_validate(request)).model_dump(mode="json")


def inspect(order: InspectOrder) -> Inspected:
    """Carry out an order; leaves no process and no file behind."""
    if order.hello.has_walls and not has_own_network():
        return Inspected(problem=NO_NETWORK)
    sys.dont_write_bytecode = True
    folder, _ = hold_folder("inspect")  # until this process and its forks have ended
    with start_fork_server(folder, Preparation(), not_for_it=()) as server:  # at its end it removes the folder
        try:
            return Inspector(order, server, folder).run()
        except FlashInferBenchError as error:
            return Inspected(problem=str(error))


class Inspector:
    """Runs the programs of one order.

    Args:
        order: the order.
        server: the socket of the fork server.
        folder: everything is written below it.
    """

    def __init__(self, order: InspectOrder, server: socket.socket, folder: Path) -> None:
        self._order = order
        self._server = server
        self._policies = PolicyMaker(order.hello, os.environ)
        self._policies.open_to_workers(folder)
        self._given = folder / "given"
        self._work = folder / "work"
        self._homes = (folder / f"home-{number}" for number in range(1 << 16))
        solution = order.solution
        artifact = Path(solution.directory) if solution.directory else None
        self._policy = self._policies.make_policy(solution.digest, artifact, self._given)
        self._given.mkdir(exist_ok=True)
        self._work.mkdir()
        if self._policy is not None and self._policy.user is not None:
            os.chown(self._work, self._policy.user, self._policy.user)
        self._call: dict[str, Any] = {}
        """What the process that calls the solution is told."""

    def run(self) -> Inspected:
        """Make the inputs, load the solution, and run the programs.

        Raises:
            FlashInferBenchError: inputs cannot be made, or the artifact was changed.
        """
        order = self._order
        solution = self._order.solution
        device = "cuda:0" if order.hello.device == "cuda" else "cpu"
        # A process of its own makes them: no context of ours stays on the GPU.
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
            try:
                pool.submit(write_inputs, order, device, self._given / "values.pt").result()
            except BrokenProcessPool:
                raise WorkloadFault("the inputs cannot be made: their process was killed") from None
        artifact = find_artifact(solution, lambda: Path(tempfile.mkdtemp(dir=self._given)))
        self._call = {
            **place_of(self._policies.hand_over(artifact, self._given)),
            "device": device,
            "values": str(self._given / "values.pt"),
            "outcome": str(self._work / "outcome.json"),
            "style": {True: "dps", False: "value", None: None}[solution.declared_style],
        }
        (self._given / "path").mkdir()
        (self._given / "path" / PACKAGE.name).symlink_to(PACKAGE)  # the folder around it need not be readable
        load = ToolStep(name="load", argv=[], calls=True, warm_up_calls=-1, limit_s=LOAD_LIMIT_S, environment={})
        loaded = self._run(load)
        if loaded.ended:
            return Inspected(problem=f"the solution cannot be imported: {loaded.error or loaded.ended}")
        done: list[StepDone] = []
        for step in order.steps:
            done.append(self._run(step))
            if done[-1].ended and not step.calls:
                break
        return Inspected(steps=tuple(done))

    def _run(self, step: ToolStep) -> StepDone:
        outcome = Path(self._call["outcome"])
        argv = [word.replace(WORK, str(self._work)) for word in step.argv]
        if step.calls:
            outcome.unlink(missing_ok=True)
            file = self._given / "call.json"
            file.write_text(json.dumps({**self._call, "warm_up_calls": step.warm_up_calls}), encoding="utf-8")
            argv += [sys.executable, "-m", CALLER, str(file)]
        home = next(self._homes)
        order = make_order(self._order.hello, home)
        order["environment"] |= {
            **self._policies.environment(self._order.solution.digest),
            "PYTHONPATH": os.pathsep.join([str(self._given / "path"), *filter(None, sys.path)]),
            "PYTHONSAFEPATH": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **step.environment,
        }
        if self._policy is not None:
            writable = (str(home), str(self._work), *self._policy.writable)
            readable = (*self._policy.readable, *self._order.readable)
            policy = replace(self._policy, readable=readable, writable=writable, for_tool=True)
            order |= {"sandbox": policy.to_json(), "shared_modules": str(self._policies.shared_modules)}
        done = run_program(self._server, step.name, {**order, "program": argv}, home, step.limit_s)
        return done.model_copy(update={"error": read_error(outcome) if step.calls else ""})


def run_program(server: socket.socket, name: str, order: dict[str, Any], home: Path, limit_s: float) -> StepDone:
    """Run the order's `program` in a worker's place; nothing of it is left when this returns.

    Args:
        server: the socket of the fork server.
        name: of the step.
        order: as a worker's: environment, sandbox, memory limit.
        home: a folder of the program's own, made here and removed at the end.
        limit_s: seconds until the program is ended.
    """
    deadline = time.monotonic() + limit_s
    log = BoundedLog(head_bytes=KEPT_BYTES, tail_bytes=KEPT_BYTES)
    with WorkerProcess(server, order, home, log=log) as program:
        program.deafen()
        while not program.has_ended and (left_s := deadline - time.monotonic()) > 0:
            select.select([program], [], [], min(LOOK_S, left_s))
        is_late = not program.has_ended
        ended = program.end()
    code = ended.code if ended is not None else None
    words = f"it did not end within {limit_s:g} s" if is_late else "" if code == 0 else str(ended)
    return StepDone(name=name, text=log.take(), code=code, ended=words)


def read_error(file: Path) -> str:
    """Return the solution's exception, as its process wrote it; that may have written anything."""
    try:
        told = json.loads(read_whole(file, MOST_OUTCOME_BYTES))
    except (OSError, ValueError, RecursionError):
        return ""
    return str(told.get("error", "")) if isinstance(told, dict) else ""


def write_inputs(order: InspectOrder, device: str, file: Path) -> None:
    """Make inputs as a run does, and write them to a file, with outputs that have shapes and types alone.

    Raises:
        WorkloadFault: inputs cannot be made, or shapes of outputs are unknown.
    """
    definition = Definition.model_validate(order.definition)
    workload = Workload.model_validate(order.workload)
    maker = InputMaker(definition, workload, torch.device(device), Path(order.blob_root))
    try:
        made = maker.make(order.seed)
        shapes = definition.get_output_shapes(workload.axes)
    except Exception as error:  # code of the set's own may make them
        raise WorkloadFault(f"the inputs cannot be made: {error}") from None
    values = [one.detach().contiguous().cpu() if isinstance(one, torch.Tensor) else one for one in made]
    outputs = [
        torch.empty(storage_shape(tuple(shape or ()), spec.dtype), dtype=torch_dtype(spec.dtype), device="meta")
        for spec, shape in zip(definition.outputs.values(), shapes, strict=True)
    ]
    torch.save({"arguments": dict(zip(definition.inputs, values, strict=True)), "outputs": outputs}, file)
    file.chmod(0o644)
