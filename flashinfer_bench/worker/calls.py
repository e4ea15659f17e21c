"""The calls of a solution in its worker: each with a place of its own in the arena.

A place is a set of inputs and output slots. The session lays the places out, writes inputs into them, and reads what
lies in the output slots after the calls. A launch is what a clock times; what a value-returning solution gave back is
brought into the slots after the reading, and before the next call: honest code may return the same buffer each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch

from flashinfer_bench.base.named_call import NamedCall, find_call
from flashinfer_bench.timing.clocks import Launch
from flashinfer_bench.worker.arena import Slot
from flashinfer_bench.worker.gated_chain.kernels import WORD_BYTES

elements_of_tuple = tuple.__iter__
elements_of_list = list.__iter__
items_of = dict.items
copy_of_torch = torch.Tensor.copy_
detached = torch.Tensor.detach
is_contiguous = torch.Tensor.is_contiguous
is_negated = torch.Tensor.is_neg
is_conjugated = torch.Tensor.is_conj
data_of = torch.Tensor.data_ptr
storage_of = torch.Tensor.untyped_storage
"""Taken from the class before a solution is loaded: what a solution sets on a tensor of its own changes nothing."""

PLACEMENTS: Final = 8
MOST_KEPT_BYTES: Final = 512 << 20
FREE_SHARE: Final = 8
FEW_BYTES: Final = 32 << 20
"""Results that are kept alive: their number, their most bytes, the share of the free memory that they may take, and the
bytes up to which nobody looks at the free memory, which may wait for the driver."""
NOWHERE: Final = 1
"""An address where nothing lies. Results of who may return inputs are held against it, as those of others are against
that of the inputs: it takes half a microsecond, and a reference has to bear what a solution bears."""


class SolutionFunctions(NamedTuple):
    """What is called of a solution."""

    run: Callable[..., Any]
    setup: Callable[..., Any] | None
    most_for_setup: int | None = None
    """Arguments that `setup` takes by position; None where it takes any number, or nobody can tell."""
    call: NamedCall | None = None
    """How `run` takes its inputs by their names; None where that is not known yet."""


class LaidCall:
    """The call of one place.

    Args:
        function: the entry function, and the solution's `setup`.
        arguments: views of the inputs in the arena, and numbers.
        outputs: name → view of the output slot.
        style: "dps", "value", or "keyword": returns values, and takes its inputs by name.
        inputs_at: the address of the memory that inputs lie in, if no output may lie there, too; else 0.
    """

    def __init__(
        self,
        function: SolutionFunctions,
        arguments: Mapping[str, Any],
        outputs: Mapping[str, torch.Tensor],
        style: str,
        inputs_at: int = 0,
    ) -> None:
        self.outputs = list(outputs.values())
        self._names = list(outputs)
        self.inputs_at = inputs_at
        self.returns = style != "dps"
        inputs = list(arguments.values())
        given = inputs if self.returns else [*inputs, *self.outputs]
        self._only = self.outputs[0] if len(self.outputs) == 1 else None
        self._form = None if self._only is None else (self._only.shape, self._only.dtype)
        self._setup: Callable[[], Any] | None = None
        if function.setup is not None:
            takes_all = function.most_for_setup is None or function.most_for_setup >= len(given)
            self._setup = partial(function.setup, *(given if takes_all else inputs))
        if style == "keyword":
            self._function = (function.call or find_call(function.run, arguments)).bind(function.run, arguments)
        else:
            self._function = partial(function.run, *given)
        self.run = self._function
        self.result: Any = None
        self.is_strided = False
        """A result lay otherwise in memory than its slot: to copy it was a part of the work."""

    def prepare(self) -> None:
        """Call `setup`; its items become keyword arguments of the calls that follow."""
        assert self._setup is not None  # asked for only where the solution has one
        prepared = self._setup()
        if not isinstance(prepared, Mapping) or not all(isinstance(name, str) for name in prepared):
            raise TypeError(f"setup must return a dict with the names of run's keyword arguments, not {type(prepared)}")
        self.run = partial(self._function, **prepared)

    def values(self) -> list[Any]:
        """Return what the latest call returned as a list of values; a dict by output name in the outputs' order.

        No method of the solution's runs here, after the reading: elements and items are the built-in types' own.
        """
        result = self.result
        if isinstance(result, tuple):
            return list(elements_of_tuple(result))
        if isinstance(result, list):
            return list(elements_of_list(result))
        if isinstance(result, dict):
            named = {key: value for key, value in items_of(result) if type(key) is str}
            if set(named) == set(self._names):
                return [named[name] for name in self._names]
        return [result]

    def is_plain(self, value: Any, slot: torch.Tensor) -> bool:
        """Tell whether a result could be copied into its slot byte for byte, in words."""
        if type(value) is not torch.Tensor or value.shape != slot.shape or value.dtype != slot.dtype:
            return False
        if value.device != slot.device or not is_contiguous(value) or is_negated(value) or is_conjugated(value):
            return False
        return not data_of(value) % WORD_BYTES and not (self.inputs_at and address_of(value) == self.inputs_at)

    def store(self) -> None:
        """Bring what the latest call returned into its output slots: one plain tensor, as most give, without detours.

        In a burst this is done between calls, and who has taken the worker over may leave it out: it has to be short.
        """
        result = self.result
        if (
            self._only is not None
            and type(result) is torch.Tensor
            and (result.shape, result.dtype) == self._form
            and not result.requires_grad
            and not (self.inputs_at and address_of(result) == self.inputs_at)
        ):
            self.is_strided = self.is_strided or not is_contiguous(result)
            copy_of_torch(self._only, result)
        else:
            self.is_strided = store_all(self.values(), self.outputs, self.inputs_at) or self.is_strided


def count_placements(size: int, device: torch.device) -> int:
    """Return in how many places on a GPU the outputs of a call lie in turn, by their bytes."""
    if size * PLACEMENTS <= FEW_BYTES:
        return PLACEMENTS
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return max(1, min(PLACEMENTS, MOST_KEPT_BYTES // size, free_bytes // FREE_SHARE // size))


def held_bytes(result: Any) -> int | None:
    """Return the memory that a result keeps from being freed; None if that cannot be told."""
    values = list(result) if isinstance(result, (tuple, list)) else [result]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    others = [value for value in values if not isinstance(value, (torch.Tensor, int, float, type(None)))]
    if others or any(tensor.grad_fn is not None for tensor in tensors):
        return None
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}.values())


class Shelf:
    """Keeps the latest results alive, so that the outputs of the next call lie elsewhere in memory.

    Where an output lies changes the time of a short call by 1 to 5 % on a GPU. A result that holds more memory than its
    outputs need is not kept: a slice of a workspace, for example.

    Args:
        places: number of places in memory that outputs take in turn, the next call's among them.
        size: bytes of all outputs of one call.
    """

    def __init__(self, places: int, size: int) -> None:
        self.has_room = places > 1
        """It keeps any result at all: on a CPU it keeps none."""
        self._size = size
        self._results: deque[Any] = deque(maxlen=max(places - 1, 0))
        self._keeps: bool | None = None

    def keep(self, result: Any) -> None:
        """Keep one more result, and drop the oldest."""
        if self._keeps is None:
            held = held_bytes(result)
            self._keeps = held is not None and held <= self._size
        if self._keeps:
            self._results.append(result)


class CallLaunch:
    """The launch of one call, as a clock times it.

    Args:
        call: what is called.
        shelf: keeps its results for a while.
        part: "run", "setup", "both" (one behind the other) or "nothing".
    """

    def __init__(self, call: LaidCall, shelf: Shelf, part: str) -> None:
        self._call = call
        self._shelf = shelf
        self._part = part

    def __call__(self) -> None:
        """Call the solution."""
        if self._part == "setup":
            self._call.prepare()
            return
        if self._part == "both":
            self._call.prepare()
        self._call.result = self._call.run()

    def put_away(self) -> bool:
        """Bring what the call returned into its output slots; tell whether a result lay otherwise than its slot."""
        if self.puts_away:
            self._call.store()
            if self._shelf.has_room:
                self._shelf.keep(self._call.values())
        return self._call.is_strided

    @property
    def slots(self) -> list[torch.Tensor]:
        """The call's output slots."""
        return self._call.outputs

    def plain_results(self) -> list[torch.Tensor] | None:
        """Return what the latest call returned, where it lies as the slots do, and in words as they do."""
        values, slots = self._call.values() if self.puts_away else [], self.slots
        if len(values) != len(slots) or not all(map(self._call.is_plain, values, slots)):
            return None
        return values

    @property
    def result(self) -> Any:
        """What the latest call returned."""
        return self._call.result

    @result.setter
    def result(self, value: Any) -> None:
        self._call.result = value

    @property
    def puts_away(self) -> bool:
        """Whether `put_away` launches work on the device."""
        return self._part != "setup" and self._call.returns


class ReplayLaunch:
    """The launch of one call as the replay of a CUDA graph, just captured.

    What the graph's call returned is put away each time, also where the same call was made without the graph since.
    """

    def __init__(self, eager: CallLaunch, replay: Launch) -> None:
        self._eager = eager
        self._replay = replay
        self._result = eager.result
        self.is_replay = bool(getattr(replay, "is_replay", False))
        self.puts_away = eager.puts_away

    def __call__(self) -> None:
        """Replay the call."""
        self._replay()

    def put_away(self) -> bool:
        """Bring what the graph's call returned into its output slots; tell whether a result lay otherwise."""
        self._eager.result = self._result
        return self._eager.put_away()


class JoinedLaunch:
    """The launch of several calls as one CUDA graph, just captured."""

    def __init__(self, eager: Sequence[CallLaunch], replay: Launch) -> None:
        self._eager = list(eager)
        self._replay = replay
        self._results = [launch.result for launch in eager]

    def __call__(self) -> None:
        """Replay the calls; what they returned is where it was when they were captured."""
        self._replay()
        for launch, result in zip(self._eager, self._results, strict=True):
            launch.result = result


def lay_out_calls(function: SolutionFunctions, block: torch.Tensor, request: Mapping[str, Any]) -> list[LaidCall]:
    """Make the calls of a `lay_out` request.

    Args:
        function: what is called.
        block: the arena.
        request: the request's fields.
    """
    count, stride = int(request["count"]), int(request["stride"])

    def views(argument: Mapping[str, Any]) -> list[Any]:
        if "scalar" in argument:
            return [argument["scalar"]] * count
        return list(Slot.from_json(dict(argument)).views(block, count, stride))

    arguments = {name: views(argument) for name, argument in request["arguments"].items()}
    outputs = [views(slot) for slot in request["slots"]]
    inputs_at = NOWHERE if request["may_return_inputs"] else address_of(block)
    if request["style"] == "keyword":
        function = function._replace(call=find_call(function.run, arguments))
    return [
        LaidCall(
            function,
            {name: held[at] for name, held in arguments.items()},
            {name: held[at] for name, held in zip(request["outputs"], outputs, strict=True)},
            request["style"],
            inputs_at,
        )
        for at in range(count)
    ]


def share_memory(calls: Sequence[LaidCall]) -> bool:
    """Tell whether the latest results of several calls lie in the same memory: a buffer that is returned each time."""
    held: list[tuple[int, int, int]] = []
    for number, call in enumerate(calls):
        for value in call.values() if call.returns else ():
            if (type(value) is torch.Tensor or type(value) is torch.nn.Parameter) and value.numel():
                memory = storage_of(value)
                held.append((memory.data_ptr(), memory.data_ptr() + memory.nbytes(), number))
    furthest, owner = 0, -1
    for begin, end, number in sorted(held):
        if begin < furthest and number != owner:
            return True
        if end > furthest:
            furthest, owner = end, number
    return False


def address_of(value: torch.Tensor) -> int:
    """Return where a tensor's memory begins; 0 for one that has none of its own, such as a sparse one."""
    try:
        return storage_of(value).data_ptr()
    except RuntimeError:
        return 0


def store_all(values: Sequence[Any], outputs: Sequence[torch.Tensor], inputs_at: int = 0) -> bool:
    """Bring returned values into their slots; say whether any lay otherwise in memory than its slot.

    One that does not fit is left out, for the session to judge.

    Left out is also what lies in the memory at `inputs_at`: a view of an input would leave the work to its reader.
    """
    plain: list[torch.Tensor] = []
    slots: list[torch.Tensor] = []
    for value, slot in zip(values, outputs, strict=False):
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            is_ours = inputs_at and address_of(value) == inputs_at
            if value.shape == slot.shape and value.dtype == slot.dtype and not is_ours:
                plain.append(detached(value) if value.requires_grad else value)
                slots.append(slot)
        elif kind in (int, float, bool) and slot.ndim == 0:
            slot.fill_(value)
    strided = not all(is_contiguous(value) for value in plain)
    for slot, value in zip(slots, plain, strict=True):
        copy_of_torch(slot, value)
    return strided
