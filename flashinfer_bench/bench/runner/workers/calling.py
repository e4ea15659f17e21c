"""The solution as a callable whose code runs in another process; `kernel.py` times it, too.

A call writes the inputs into a place of the arena, poisons its output slots, has the worker make the call, checks what
it claims to have returned against the definition, and hands back what lies in the slots, which the session owns.
Whatever goes wrong on the other side becomes a SolutionFailure that carries its status.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import torch

from flashinfer_bench.base.wire import WireError
from flashinfer_bench.bench.runner.workers.arena import as_bytes, copy_of
from flashinfer_bench.bench.runner.workers.artifacts import place_of
from flashinfer_bench.bench.runner.workers.calling_style import FORMAT_DEFAULT, CallingStyle, settled_by
from flashinfer_bench.bench.runner.workers.claims import check_memory, check_returned
from flashinfer_bench.bench.runner.workers.kernel_task import KernelMetadata, KernelTask, SessionTools
from flashinfer_bench.bench.runner.workers.process import WorkerExit, WorkerGone, WorkerLate, WorkerProcess
from flashinfer_bench.bench.runner.workers.timed.along import Along, Meanwhile
from flashinfer_bench.bench.runner.workers.timed.call_places import CallPlaces, describe_inputs
from flashinfer_bench.bench.runner.workers.timed.reader import Inspected
from flashinfer_bench.bench.runner.workers.timed.rows import find_differing
from flashinfer_bench.compile import Artifact
from flashinfer_bench.compile.diagnostics import lead_with_error
from flashinfer_bench.errors import RanOut, SolutionFailure
from flashinfer_bench.worker.protocol import (
    Bound,
    Called,
    Claim,
    Failed,
    LaidOut,
    Loaded,
    Returned,
    Signature,
    Style,
    WorkerError,
)

CALLING: Final = ("calls", "burst", "relay")
"""Requests that run the solution: where one raises, its worker may do the solution's next job."""
REASON_CHARS: Final = 300
"""Characters of the first line of what was raised. Tables show no longer line."""
LEAST_REASON: Final = 80
"""Characters of its message that are kept, however long its location is."""
QUICK_REQUEST_S: Final = 0.1
"""Where a request of some calls takes less, the next one may have twice as many."""

Answer = TypeVar("Answer", bound=Claim)


class WorkerKilled(SolutionFailure):
    """A signal ended the solution's worker that may have come from outside; another worker may tell.

    Attributes:
        what: what the worker was asked for.
        ended: how the worker ended.
    """

    def __init__(self, what: str, ended: WorkerExit) -> None:
        super().__init__("RUNTIME_ERROR", f"the process ended during {what}: {ended}")
        self.what: Final = what
        self.ended: Final = ended


class CallableKernel:
    """One solution in one worker, for one workload.

    Args:
        worker: a worker that is ready.
        tools: what the session gives every kernel.
        task: what the solution has to do.
        metadata: the solution's names; its style is set when it is loaded.
    """

    def __init__(self, worker: WorkerProcess, tools: SessionTools, task: KernelTask, metadata: KernelMetadata) -> None:
        self._metadata = metadata
        self._style = CallingStyle("dps" if metadata.destination_passing_style else "value", FORMAT_DEFAULT)
        self.worker = worker
        self.task = task
        self.meanwhile: Callable[[], object] | None = None
        """Done once, beside the next call that is no measurement."""
        self.ahead: Meanwhile | None = None
        """Done a part at a time, while places are laid out and beside calls that are no measurement."""
        self._tools = tools
        self._arena = tools.arena
        self._left_s = task.timeout_seconds
        self._has_called = False
        """Whether a call of this job has ended: the first one may compile."""
        self._now = time.monotonic
        self._places: CallPlaces | None = None
        self._laid_out: tuple[Any, ...] | None = None
        self._at_once = 1
        """Calls of a request of `call_repeatedly`, as far as calls were quick."""

    @property
    def metadata(self) -> KernelMetadata:
        """What an evaluator may know of the solution."""
        return self._metadata

    @property
    def calling_style(self) -> CallingStyle:
        """How the solution is called, and how that was found out."""
        return self._style

    @calling_style.setter
    def calling_style(self, style: CallingStyle) -> None:
        self._style, self._laid_out = style, None
        self._metadata = replace(self._metadata, destination_passing_style=style.is_dps)

    @property
    def style(self) -> Style:
        """The calling style, as a word of the protocol."""
        return "keyword" if self.task.by_keyword else self._style.style

    def __call__(self, *args: Any) -> list[torch.Tensor]:
        """Call the solution once on copies of the inputs.

        Args:
            *args: the definition's inputs in order; outputs to be filled may follow.

        Returns:
            One tensor per output of the definition, in its order.

        Raises:
            SolutionFailure: it failed, or what it returned has the wrong count, shape or dtype.
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

    def settle_style(self, inputs: Sequence[Any]) -> None:
        """Find out how the solution is called, where nothing has told it yet: by a call with its inputs alone.

        Where that call raises, outputs are passed in, too.

        Raises:
            SolutionFailure: both calls failed, or the first one did otherwise than by raising.
        """
        if self._style.is_settled:
            return
        try:
            _, (returned,) = self._make_calls(inputs)
            self.calling_style = settled_by(returned, [output.name for output in self.task.outputs])
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

    def _make_calls(self, inputs: Sequence[Any], count: int = 1) -> tuple[CallPlaces, list[list[Returned]]]:
        """Make calls on copies of the same inputs, as many as there are places for at the most.

        Returns:
            Where their outputs lie, and for each what it claims to have returned.
        """
        places = self._lay_out(inputs, 1 if self._arena.is_aside else None)
        indices = list(range(min(count, len(places))))
        for index in indices:
            for value, slot in zip(inputs, places.inputs(index), strict=True):
                if slot is not None:
                    as_bytes(slot).copy_(as_bytes(value))
        places.poison(indices)
        places.synchronize()
        if self.worker.has_setup:
            self._ask("calls", Called, "setup", indices=indices, part="setup", lead=None, replay=False)
        step, self.meanwhile = self.meanwhile, None
        along = Along(meanwhile=self.ahead if step is None else lambda _is_over: step())
        called = self._ask(
            "calls", Called, "the call", along=along, indices=indices, part="run", lead=None, replay=False
        )
        told = called.returned or []
        return places, told if len(told) == len(indices) else [[] for _ in indices]

    def call_once(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Make one call, on copies of the inputs; return the outputs."""
        return self._take_calls(inputs, 1)[0]

    def call_repeatedly(self, inputs: Sequence[Any], count: int) -> Iterator[list[torch.Tensor]]:
        """Make so many calls, each on a copy of the same inputs, and yield the outputs of each.

        The first one is made alone: what is wrong shows at once. Quick ones share a request then, since a request takes
        a millisecond.
        """
        at_once = 1
        while count > 0:
            start = self._now()
            made = self._take_calls(inputs, min(at_once, count))
            is_quick = self._now() - start < QUICK_REQUEST_S
            count -= len(made)
            yield from made
            self._at_once = max(2 * len(made), self._at_once) if is_quick else 1
            at_once = self._at_once
            if is_quick and count and self._arena.is_aside:  # there is room for one call only
                self._tools.quiesce()
                self._arena.come_back()

    def _take_calls(self, inputs: Sequence[Any], count: int) -> list[list[torch.Tensor]]:
        """Make calls on copies of the same inputs in one request; check what they left, and return their outputs."""
        places, told = self._make_calls(inputs, count)
        outputs = [[copy_of(output) for output in places.outputs(index)] for index in range(len(told))]
        held = places.input_bytes(len(told))
        slots = places.input_slots
        rows = [None if slot is None else held[:, slot.offset : slot.offset + slot.nbytes] for slot in slots]
        changed = self._find_changed(inputs, rows, len(told))
        for returned, name in zip(told, changed, strict=True):
            # The session knows that what a reference returns fits.
            if self.style == "value" and self.task.outputs and not self.task.may_write_inputs:
                try:
                    check_returned(returned, self.task.outputs, self._arena.device.type)
                except SolutionFailure as failure:
                    raise SolutionFailure(failure.status, failure.message, is_answer=True) from None
            _check_unchanged(name)
            check_memory(returned, self.task.outputs)
        return outputs

    def allow_again(self) -> None:
        """Give the solution its whole time once more: what follows is not its fault."""
        self._left_s = self.task.timeout_seconds

    def _lay_out(self, inputs: Sequence[Any], most: int | None = None) -> CallPlaces:
        """Return the places of calls with inputs of these shapes; the worker knows them.

        Args:
            inputs: those of a call.
            most: places at the most; None for as many as timed calls take.
        """
        signature = (most, *describe_inputs(inputs))
        places = self._places
        if places is None or places.signature != signature or places.generation != self._arena.generation:
            places = CallPlaces(self._arena, inputs, self.task.outputs, most)
            self._places, self._laid_out = places, None
        memory = self._arena, self._arena.generation
        if self.worker.mapped != memory:
            description, fds = self._arena.describe()
            self._ask("bind", Bound, "mapping its memory", along=Along(fds), arena=description)
            self._arena.drop_retired()
            self.worker.mapped, self._laid_out = memory, None
        if self._laid_out is None:
            where = places.describe(self.task.input_names, inputs)
            may_return = self.task.may_return_inputs or self.task.may_write_inputs
            names = [output.name for output in self.task.outputs]
            fields = {"style": self.style, "may_return_inputs": may_return, "outputs": names, **where}
            self._ask("lay_out", LaidOut, "mapping its memory", along=Along(meanwhile=self.ahead), **fields)
            self._laid_out = signature
        return places

    def _check_inputs_intact(self, calls: Sequence[Inspected]) -> None:
        """Raise where one of some calls has changed its inputs; all are compared with one wait."""
        if self.task.may_write_inputs:
            return
        checked = [
            (name, (as_bytes(slot)[None], as_bytes(value)[None]))
            for given, now in calls
            for name, value, slot in zip(self.task.input_names, given, now, strict=True)
            if name not in self.task.in_out_inputs and slot is not None
        ]
        differing = find_differing([pair for _, pair in checked])
        _check_unchanged(
            next((name for (name, _), (differs,) in zip(checked, differing, strict=True) if differs), None)
        )

    def _find_changed(self, inputs: Sequence[Any], rows: Sequence[torch.Tensor | None], count: int) -> list[str | None]:
        """Return the first input that each of some calls has changed, or None; all are compared with one wait.

        Args:
            inputs: what each call was given.
            rows: of each input its bytes after each call, a row for each; None for what is no tensor.
            count: how many calls there are.
        """
        if self.task.may_write_inputs:
            return [None] * count
        checked = {
            name: (held, as_bytes(value)[None])
            for name, value, held in zip(self.task.input_names, inputs, rows, strict=True)
            if name not in self.task.in_out_inputs and held is not None
        }
        differing = find_differing(checked.values())
        return [
            next((name for name, differs in zip(checked, differing, strict=True) if differs[call]), None)
            for call in range(count)
        ]

    def load(self, artifact: Artifact, environment: Mapping[str, str]) -> Signature | None:
        """Have the worker import the solution; return its entry function's signature.

        Args:
            artifact: what the build left.
            environment: variables that the worker sets first.

        Raises:
            SolutionFailure: COMPILE_ERROR where the import fails, TIMEOUT where it does not end.
            WorkerKilled: a signal ended the worker that may have come from outside.
        """
        try:
            loaded = self._ask("load", Loaded, "the import", **place_of(artifact), environment=dict(environment))
        except WorkerKilled:
            raise
        except SolutionFailure as failure:
            if failure.status == "RUNTIME_ERROR":
                raise SolutionFailure("COMPILE_ERROR", failure.message) from None
            raise
        self.worker.has_setup = loaded.has_setup
        return loaded.signature

    def _ask(self, verb: str, expected: type[Answer], what: str, **fields: Any) -> Answer:
        """Ask the worker within what is left of the solution's time; translate what goes wrong."""
        start = self._now()
        try:
            answer = self.worker.ask(verb, expected, max(0.0, self._left_s), **fields)
        except WorkerLate:
            message = f"{what} was still running after {self.task.timeout_seconds:g} s"
            is_one = len(fields.get("indices", ())) <= 1  # of many calls none may be endless
            ran_out: RanOut | None = "call" if self._has_called and is_one else "first call"
            if verb == "load" or self._now() - start < self.task.timeout_seconds / 2:  # others took most of the time
                ran_out = None
            raise SolutionFailure("TIMEOUT", message, ran_out=ran_out) from None
        except WorkerGone as gone:
            if gone.ended is not None and self.worker.was_killed(gone.ended):
                raise WorkerKilled(what, gone.ended) from None
            raise SolutionFailure("RUNTIME_ERROR", f"the process ended during {what}: {gone}") from None
        except WireError as error:
            raise SolutionFailure(
                "RUNTIME_ERROR", f"the process answered out of protocol during {what}: {error}"
            ) from None
        finally:
            self._left_s -= self._now() - start
        if isinstance(answer, Failed):
            said = answer.error
            message = lead_with_error(f"{_describe(said, what)}\n{said.traceback}".rstrip())
            raise SolutionFailure("RUNTIME_ERROR", message, is_answer=verb in CALLING)
        self._has_called = self._has_called or (verb in CALLING and fields.get("part") != "setup")
        return answer


def _describe(said: WorkerError, what: str) -> str:
    """Return what was raised: the first line has the location, too, and is short enough to be shown whole."""
    first, _, rest = said.message.strip().partition("\n")
    location = f", {said.location}" if said.location else ""
    room = max(LEAST_REASON, REASON_CHARS - len(f"{said.type} in {what}: {location}"))
    if len(first) > room:
        first, rest = f"{first[: room - 1]}…", said.message
    return f"{said.type} in {what}{': ' if first else ''}{first}{location}\n{rest}".rstrip()


def _check_unchanged(name: str | None) -> None:
    """Raise where an input has this name that a call has changed."""
    if name is not None:
        raise SolutionFailure(
            "INCORRECT_NUMERICAL",
            f"input {name!r} was changed by the call; a solution may write to its outputs only "
            "(clone what the kernel works on in place)",
        )
