"""The solution as the judge calls it: a callable whose code runs in another process. `measuring.py` times it.

A call writes the inputs into buffers of the arena, fills the output slots with a sentinel, and has the worker make the
call. The call then checks the reported outputs against the definition, and returns copies of the output slots. Each
error in the worker becomes a SolutionFailure with its status.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Any, Final, TypeVar

import torch

from flashinfer_bench.base.wire import WireError
from flashinfer_bench.bench.evaluators.inputs.fills import WORD
from flashinfer_bench.bench.evaluators.inputs.writer import open_writer
from flashinfer_bench.bench.runner.workers.arena import as_bytes, copy_of
from flashinfer_bench.bench.runner.workers.artifacts import location_of
from flashinfer_bench.bench.runner.workers.calling_style import FORMAT_DEFAULT, CallingStyle, find_style
from flashinfer_bench.bench.runner.workers.claims import check_memory, check_returned
from flashinfer_bench.bench.runner.workers.hang import CallWatch
from flashinfer_bench.bench.runner.workers.kernel_task import KernelMetadata, KernelTask, SessionTools
from flashinfer_bench.bench.runner.workers.measuring import Measuring
from flashinfer_bench.bench.runner.workers.timed.call_buffers import CallBuffers, describe_inputs
from flashinfer_bench.bench.runner.workers.timed.stress_calls import StressCall
from flashinfer_bench.bench.runner.workers.timed.timed_calls import Inspected, ReadCall
from flashinfer_bench.bench.runner.workers.worker_handle import (
    Meanwhile,
    WorkerExit,
    WorkerGone,
    WorkerLate,
    WorkerProcess,
)
from flashinfer_bench.compile import Artifact
from flashinfer_bench.compile.diagnostics import put_error_first
from flashinfer_bench.errors import RanOut, SolutionFailure
from flashinfer_bench.timing.measurement import Measured
from flashinfer_bench.worker.protocol import (
    Called,
    Claim,
    Failed,
    Loaded,
    Returned,
    Signature,
    Style,
    WorkerError,
)

CALLING: Final = ("calls", "burst", "relay")
"""Requests that run the solution. A worker whose solution raises an exception here can still serve the next job."""
REASON_CHARS: Final = 200
"""Maximum characters of an exception's message in the first line of an error. Tables do not show a longer line."""
NATIVE_FRAME: Final = "/tvm_ffi/"
"""Part of a frame of tvm-ffi in a traceback. An error in compiled code has a line only if the solution raises it by
tvm-ffi's macro."""
NATIVE_LOCATION: Final = "in compiled code (TVM_FFI_THROW names the line)"
TIMES_REFERENCE, TIMES_FIRST, TIMES_SLOWEST = 50, 3, 10
"""A call's limit is at least these multiples of the time of the reference, the first call, and the slowest later call.
The first call may have compiled, so its multiple is the smallest."""
QUICK_REQUEST_S: Final = 0.1
"""After a request that took less time than this, the next request may have twice as many calls."""

Answer = TypeVar("Answer", bound=Claim)


class WorkerKilled(SolutionFailure):
    """A signal, possibly from outside, ended the solution's worker. The job is tried once more in another worker.

    Attributes:
        what: what the worker was doing.
        ended: how the worker ended.
    """

    def __init__(self, what: str, ended: WorkerExit) -> None:
        super().__init__("RUNTIME_ERROR", f"the process ended during {what}: {ended}")
        self.what: Final = what
        self.ended: Final = ended


class RemoteKernel:
    """One solution in one worker, for one workload.

    Args:
        worker: a worker that is ready.
        metadata: the solution's names. `load` sets the calling style in it.
    """

    def __init__(self, worker: WorkerProcess, tools: SessionTools, task: KernelTask, metadata: KernelMetadata) -> None:
        self.metadata = metadata
        self.worker = worker
        self.tools = tools
        self.task = task
        self.left_s = task.timeout_seconds
        """Remaining seconds of the solution's time."""
        self.reads: list[list[ReadCall]] = []
        """The timed calls to compare: a list for each trial."""
        self.stress_calls: list[StressCall] = []
        """Calls on inputs of stress cases."""
        self._style = CallingStyle("dps" if metadata.destination_passing_style else "value", FORMAT_DEFAULT)
        self._arena = tools.arena
        self._has_called = False
        """Whether a call of this job has ended. Only the first call may compile."""
        self._first_s = self._slowest_s = 0.0
        """Seconds of the first call without compilation, and of the slowest later call."""
        self._watch = CallWatch(worker, task.call_timeout_seconds or inf)
        self._buffers: CallBuffers | None = None
        self._measuring: Measuring | None = None
        self._laid_out = False
        """Whether the worker knows the buffers."""

    @property
    def calling_style(self) -> CallingStyle:
        """How the solution is called, and how this was found."""
        return self._style

    @calling_style.setter
    def calling_style(self, style: CallingStyle) -> None:
        self._style, self._laid_out = style, False
        self.metadata = replace(self.metadata, destination_passing_style=style.is_dps)

    @property
    def style(self) -> Style:
        """The calling style, as a word of the protocol."""
        return "keyword" if self.task.is_reference else self._style.style

    @property
    def is_meaningful(self) -> bool:
        """Whether its times have a meaning."""
        return self.task.plan.metadata is None

    def load(self, artifact: Artifact) -> Signature | None:
        """Have the worker import the solution; return its entry function's signature.

        Raises:
            SolutionFailure: COMPILE_ERROR if the import fails, TIMEOUT if it does not end.
            WorkerKilled: a signal, possibly from outside, ended the worker.
        """
        self.worker.solution_folder, self.worker.solution_entry = artifact.directory, artifact.symbol
        try:
            loaded = self.ask("load", Loaded, "the import", **location_of(artifact))
        except WorkerKilled:
            raise
        except SolutionFailure as failure:
            if failure.status == "RUNTIME_ERROR":
                raise SolutionFailure("COMPILE_ERROR", failure.message) from None
            raise
        self.worker.has_setup = loaded.has_setup
        return loaded.signature

    def settle_style(self, inputs: Sequence[Any]) -> None:
        """Find out how the solution is called, if it is still unknown: call it with its inputs alone.

        If that call raises, call it with outputs as well.

        Raises:
            SolutionFailure: both calls failed, or the first call failed without an exception.
        """
        if self._style.is_known:
            return
        try:
            _, (returned,) = self._make_calls(inputs)
            self.calling_style = find_style(returned, [output.name for output in self.task.outputs])
        except SolutionFailure as failure:
            if not failure.is_answer:
                raise
            undecided, self.calling_style = self._style, CallingStyle("dps", "a call with its inputs alone failed")
            try:
                self._make_calls(inputs)
            except WorkerKilled:
                raise
            except SolutionFailure:
                self.calling_style = undecided
                raise failure from None

    def __call__(self, *args: Any) -> list[torch.Tensor]:
        """Call the solution once on copies of the inputs.

        Args:
            *args: the definition's inputs in order; outputs to fill can follow.

        Returns:
            One tensor per output of the definition, in its order.

        Raises:
            SolutionFailure: it failed, or its outputs have the wrong count, shape or dtype.
        """
        count = len(self.task.input_names)
        inputs, given = list(args[:count]), list(args[count:])
        if len(inputs) != count or len(given) not in (0, len(self.task.outputs)):
            raise TypeError(
                f"a solution takes {count} inputs, or those and {len(self.task.outputs)} outputs; got {len(args)}"
            )
        results = self.call_once(inputs)
        for target, result in zip(given, results, strict=False):
            target.copy_(result)
        return results

    def call_once(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Make one call, on copies of the inputs; return the outputs."""
        return self._take_calls(inputs, 1)[0]

    def call_repeatedly(self, inputs: Sequence[Any], count: int) -> Iterator[list[torch.Tensor]]:
        """Make `count` calls, each on a copy of the same inputs, and yield the outputs of each.

        The first call is made alone, so that a fault shows at once. Later quick calls share a request, since a request
        takes a millisecond.
        """
        at_once = 1
        while count > 0:
            start = time.monotonic()
            made = self._take_calls(inputs, min(at_once, count))
            at_once = 2 * len(made) if time.monotonic() - start < QUICK_REQUEST_S else 1
            count -= len(made)
            yield from made
            if at_once > 1 and count and self._arena.is_aside:  # the separate memory has room for one call
                self.tools.pool.await_quiet()
                self._arena.come_back()

    def _make_calls(self, inputs: Sequence[Any], count: int = 1) -> tuple[CallBuffers, list[list[Returned]]]:
        """Make calls on copies of the same inputs, at most one in each buffer; return the buffers and the reports."""
        measuring = self._measuring if self._arena.device.type == "cuda" else None
        ahead = None if measuring is None else measuring.make_ahead
        buffers = self.lay_out(inputs, 1 if self._arena.is_aside else None, ahead)
        indices, writer = list(range(min(count, len(buffers)))), open_writer(self._arena.device)
        for index in indices:
            for value, slot in zip(inputs, buffers.inputs(index), strict=True):
                if slot is not None:
                    as_bytes(slot).copy_(as_bytes(value))
        buffers.fill_outputs(indices, writer)
        writer.finish()
        buffers.synchronize()
        fields: dict[str, Any] = {"indices": indices, "lead": None, "replay": False}
        if self.worker.has_setup:
            self.ask("calls", Called, "setup", part="setup", **fields)
        reported = self.ask("calls", Called, "the call", part="run", meanwhile=ahead, **fields).returned or []
        return buffers, reported if len(reported) == len(indices) else [[] for _ in indices]

    def _take_calls(self, inputs: Sequence[Any], count: int) -> list[list[torch.Tensor]]:
        """Make calls on copies of the same inputs in one request; check the reports, and return the outputs."""
        buffers, reported = self._make_calls(inputs, count)
        outputs = [[copy_of(output) for output in buffers.outputs(index)] for index in range(len(reported))]
        if self.style == "value" and self.task.outputs:
            for returned in reported:
                try:
                    check_returned(returned, self.task.outputs, self._arena.device.type)
                except SolutionFailure as failure:
                    raise SolutionFailure(failure.status, failure.message, is_answer=True) from None
        self.check_inputs([(inputs, buffers.inputs(index)) for index in range(len(reported))])
        for returned in reported:
            check_memory(returned, self.task.outputs)
        return outputs

    def check_inputs(self, calls: Sequence[Inspected]) -> None:
        """Raise SolutionFailure if one of several calls has changed its inputs. Wait for the device once for all
        calls."""
        if self.task.is_reference:
            return
        checked = [
            (name, as_bytes(value), as_bytes(slot))
            for given, now in calls
            for name, value, slot in zip(self.task.input_names, given, now, strict=True)
            if name not in self.task.in_out_inputs and slot is not None
        ]
        if not checked:
            return
        differing = torch.stack([do_differ(value, slot) for _, value, slot in checked]).tolist()
        for (name, *_), differs in zip(checked, differing, strict=True):
            if differs:
                raise SolutionFailure(
                    "INCORRECT_NUMERICAL",
                    f"input {name!r} was changed by the call; a solution may write to its outputs only "
                    "(clone what the kernel works on in place)",
                )

    def lay_out(
        self, inputs: Sequence[Any], most: int | None = None, meanwhile: Meanwhile | None = None
    ) -> CallBuffers:
        """Return the buffers for calls with inputs of these shapes, after the worker has mapped them.

        Args:
            most: largest number of buffers; None for the number of buffers of timed calls.
            meanwhile: called while the worker maps them.
        """
        buffers, arena = self._buffers, self._arena
        if buffers is None or (buffers.signature, buffers.generation) != (
            (most, *describe_inputs(inputs)),
            arena.generation,
        ):
            buffers = self._buffers = CallBuffers(arena, inputs, self.task.outputs, most)
            self._laid_out = False
        memory = arena, arena.generation
        if self.worker.mapped != memory:
            description, fds = arena.describe()
            self.ask("bind", Claim, "mapping its memory", fds=fds, arena=description)
            arena.drop_retired()
            self.worker.mapped, self._laid_out = memory, False
        if not self._laid_out:
            where = buffers.describe(self.task.input_names, inputs)
            names = [output.name for output in self.task.outputs]
            fields = {"style": self.style, "may_return_inputs": self.task.may_return_inputs, "outputs": names, **where}
            self.ask("lay_out", Claim, "mapping its memory", meanwhile=meanwhile, **fields)
            self._laid_out = True
        return buffers

    def forget_buffers(self) -> None:
        """Have the buffers laid out again before the next call. With the new layout the worker drops the control block
        of a chain."""
        self._laid_out = False

    def measure(self, input_sets: list[list[Any]]) -> Measured:
        """Time the solution, one trial per set of inputs. Each call gets its own content.

        Trials end before the first set whose shapes or scalars differ from those of the earlier sets.

        Raises:
            SolutionFailure: it failed, or the session's own clock contradicts the samples of its worker.
        """
        self.tools.pool.await_quiet()
        self._arena.come_back()
        measuring, self._measuring = self._measuring, None
        if measuring is None or measuring.input_sets is not input_sets:
            measuring = Measuring(self, input_sets)
        return measuring.run()

    def expect(self, input_sets: list[list[Any]]) -> None:
        """Prepare the measurement on these inputs, while earlier calls run. Only stress cases are made ahead."""
        if self.planned_stress():
            self._measuring = Measuring(self, input_sets)

    def planned_stress(self) -> list[str]:
        """Return the stress cases that the job has if its calls and the reference are quick."""
        stress = self.task.stress
        return stress.names if stress is not None and self.is_meaningful else []

    def ask(self, method: str, expected: type[Answer], what: str, **fields: Any) -> Answer:
        """Ask the worker within the remaining time of the solution; turn errors into solution failures."""
        count = fields.get("first", len(fields.get("indices", ())))
        limit_s, is_first, start = self._limit_s(method, count), not self._has_called, time.monotonic()
        compiled_s = self._watch.compiling_s
        if is_first and self.task.call_timeout_seconds is not None and method in (*CALLING, "load"):
            self._watch.begin()
            fields["is_stuck"] = self._watch.is_stuck
        try:
            answer = self.worker.ask(method, expected, limit_s, **fields)
        except WorkerLate:
            raise self._describe_hang(method, what, count, time.monotonic() - start, limit_s) from None
        except WorkerGone as gone:
            if gone.ended is not None and self.worker.was_killed(gone.ended):
                raise WorkerKilled(what, gone.ended) from None
            raise SolutionFailure("RUNTIME_ERROR", f"the process ended during {what}: {gone}") from None
        except WireError as error:
            message = f"the process answered out of protocol during {what}: {error}"
            raise SolutionFailure("RUNTIME_ERROR", message) from None
        finally:
            self.left_s -= time.monotonic() - start
        if isinstance(answer, Failed):
            said = answer.error
            message = put_error_first(f"{_describe(said, what)}\n{said.traceback}".rstrip())
            raise SolutionFailure("RUNTIME_ERROR", message, is_answer=method in CALLING)
        if method in CALLING and fields.get("part") != "setup":
            took_s = (time.monotonic() - start) / max(1, count)
            if is_first:
                self._first_s = max(0.0, took_s - (self._watch.compiling_s - compiled_s))
            else:
                self._slowest_s = max(self._slowest_s, took_s)
            self._has_called = True
        return answer

    def _limit_s(self, method: str, count: int) -> float:
        """Return the limit in seconds of a request with this many calls."""
        left_s, limit_s = max(0.0, self.left_s), self.task.call_timeout_seconds
        if limit_s is None or method not in CALLING or not self._has_called:
            return left_s
        times = (TIMES_REFERENCE, self.task.reference_s), (TIMES_FIRST, self._first_s), (TIMES_SLOWEST, self._slowest_s)
        call_s = max(factor * seconds for factor, seconds in times)
        return min(left_s, max(limit_s, count * call_s))

    def _describe_hang(self, method: str, what: str, count: int, took_s: float, limit_s: float) -> SolutionFailure:
        """Return the failure of a request that ran out of time, with its limit and the solution's stack."""
        is_stuck, is_total = took_s < limit_s, limit_s >= self.left_s
        limit_s = self._watch.quiet_s if is_stuck else self.task.timeout_seconds if is_total else limit_s
        part = "later call" if self._has_called else "import" if method == "load" else "first call"
        stack, compiling_s = self._watch.find_stack(), round(self._watch.compiling_s, 1)
        if not stack and part != "import":  # compiled code has no Python frames
            stack = [f"in {self.worker.solution_entry} (its line is unknown)"]
        reason = f"{what} was still running after {limit_s:g} s"
        if is_stuck:
            reason += " in which nothing was compiled"
        elif compiling_s:
            reason += f" ({compiling_s:g} s of compiling)"
        lines = [", ".join([reason, *stack[:1]]), *(f"  {frame}" for frame in stack[1:])]
        is_one = count <= 1 or not is_total  # a request of many calls can run out of time without an endless call
        is_own = is_stuck or not is_total or took_s >= limit_s / 2
        ran_out: RanOut = "call" if is_stuck or (self._has_called and is_one) else "first call"
        found: dict[str, Any] = {"part": part, "limit_s": limit_s, "stack": stack}
        if self.task.call_timeout_seconds is not None:  # else nothing has watched for compilers
            found["compiling_s"] = compiling_s
        return SolutionFailure("TIMEOUT", "\n".join(lines), ran_out=ran_out if is_own else None, timeout=found)


def do_differ(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return whether bytes differ, without waiting for the device. Aligned bytes are compared as words."""
    if not any(number % WORD for value in (one, other) for number in (value.numel(), value.storage_offset())):
        one, other = one.view(torch.int64), other.view(torch.int64)
    return (one != other).any()


def _describe(said: WorkerError, what: str) -> str:
    """Return the exception's message. Its first line also has the location, and is short enough for tables."""
    first, _, rest = said.message.strip().partition("\n")
    if len(first) > REASON_CHARS:
        first, rest = f"{first[:REASON_CHARS]}…", said.message
    location = said.location or (NATIVE_LOCATION if NATIVE_FRAME in said.traceback else "")
    reason = ", ".join(filter(None, (first, location)))
    return f"{said.type} in {what}{': ' if reason else ''}{reason}\n{rest}".rstrip()
