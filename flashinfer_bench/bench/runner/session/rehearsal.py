"""Does what a job will want while a worker starts, or makes its first call: no verdict waits then until a GPU has its
code.

The driver loads the code of an operation at its first use, which takes 10 to 40 ms each on an H100; comparing outputs
takes some ten operations, and so does writing the inputs of calls. A worker's first call takes as long for the same
reason, and the session would only wait.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

import torch

from flashinfer_bench.bench.evaluators.evaluator import JudgeContext, JudgedCall
from flashinfer_bench.bench.evaluators.inputs.contents import Contents
from flashinfer_bench.bench.evaluators.inputs.custom import list_custom
from flashinfer_bench.bench.evaluators.inputs.memory import bytes_of
from flashinfer_bench.bench.evaluators.inputs.writer import open_writer
from flashinfer_bench.bench.runner.session.job import JobContext
from flashinfer_bench.bench.runner.session.stress import plan_stress
from flashinfer_bench.bench.runner.session.variation import vary_secretly
from flashinfer_bench.bench.runner.workers.claims import OutputSpec
from flashinfer_bench.bench.runner.workers.timed.chain import open_chain_tools
from flashinfer_bench.bench.runner.workers.timed.rows import copy_rows, find_changed, find_differing
from flashinfer_bench.worker.arena import ALIGNMENT, Slot

Step: TypeAlias = Callable[[list[Any], list[torch.Tensor]], object]
"""Is taken with the inputs and outputs of a call of the reference."""
OURS: Final = __package__.split(".")[0]
CALLS: Final = 8
"""Calls whose inputs are written in a rehearsal: some of them want an input's sign changed."""
MOST_BYTES: Final = 256 << 20
"""Of a call's inputs and outputs: nothing is done beside a larger call, which would take memory and time of its own."""


def is_small(inputs: Sequence[Any], outputs: Sequence[OutputSpec]) -> bool:
    """Tell whether anything may be done beside a call on these inputs."""
    return bytes_of(list(inputs)) + sum(math.prod(one.shape) * one.dtype.itemsize for one in outputs) <= MOST_BYTES


class Rehearsals:
    """Knows which judging was rehearsed in this session: once for each evaluator and kind of outputs."""

    def __init__(self) -> None:
        self._done: set[tuple[object, ...]] = set()

    def find(self, job: JobContext, context: JudgeContext) -> tuple[Step, ...]:
        """Return the steps that are to be taken once while a worker starts or makes its first call.

        Args:
            job: the job whose definition is judged.
            context: the evaluator's.
        """
        block = job.block
        key = (block.evaluator, *(spec.dtype for spec in block.definition.outputs.values()))
        is_ours = block.evaluator.__module__.split(".")[0] == OURS  # others may count their calls
        if key in self._done or not is_ours:
            return ()
        self._done.add(key)
        calls = CallsRehearsed(job)
        parts = calls.open_writer, calls.make, calls.change, calls.look, calls.open_chain_tools
        return partial(rehearse_judging, job, replace(context, notes={})), *(partial(_try, part) for part in parts)


def rehearse_judging(job: JobContext, context: JudgeContext, inputs: list[Any], outputs: list[torch.Tensor]) -> None:
    """Judge what the reference gave for some inputs, and forget the verdict."""
    block = job.block
    with contextlib.suppress(Exception):  # it will come again where it counts
        block.evaluator.rehearse(block.definition, JudgedCall(inputs, outputs, outputs), job.config, context)


def _try(part: Callable[[list[Any]], object], inputs: list[Any], outputs: list[torch.Tensor]) -> None:
    del outputs
    with contextlib.suppress(Exception):  # it will come again where it counts
        part(inputs)


class CallsRehearsed:
    """Makes inputs of calls by another secret than the job's, and those of stress cases, and looks at rows of bytes.

    It does so in parts: between two of them somebody looks after workers that start, and replaces slow ones.
    """

    def __init__(self, job: JobContext) -> None:
        self._job = job
        self._contents: Contents | None = None
        self._made: list[Any] = []

    def open_writer(self, inputs: list[Any]) -> None:
        """Load what writes inputs, and try it."""
        open_writer(_device_of(inputs))

    def open_chain_tools(self, inputs: list[Any]) -> None:
        """Load what masks inputs and tells digests of outputs."""
        device = _device_of(inputs)
        if device.type == "cuda":
            open_chain_tools(device)

    def make(self, inputs: list[Any]) -> None:
        """Make inputs of calls; nothing where others may count the calls of their functions, or they are large."""
        if list_custom(self._job.workload) or CALLS * bytes_of(inputs) > MOST_BYTES:
            return
        self._contents = vary_secretly(self._job)(0, inputs)
        self._made = self._contents.make_all(range(CALLS))[0]

    def change(self, inputs: list[Any]) -> None:
        """Make inputs of stress cases of those."""
        del inputs
        stress = plan_stress(self._job) if self._contents is not None and self._contents.differs else None
        if stress is None:
            return
        for name in stress.names:
            stress.change(name, 0, [value if isinstance(value, torch.Tensor) else None for value in self._made])

    def look(self, inputs: list[Any]) -> None:
        """Copy and compare rows of bytes."""
        rows = torch.zeros((CALLS, ALIGNMENT), dtype=torch.uint8, device=_device_of(inputs))
        copies = copy_rows(rows, range(CALLS))
        find_changed(list(copy_rows(rows, [0])), rows, [Slot(0, (ALIGNMENT,), torch.uint8)], CALLS)
        find_differing([(rows, copies)])


def _device_of(inputs: list[Any]) -> torch.device:
    return next((value.device for value in inputs if isinstance(value, torch.Tensor)), torch.device("cpu"))
