"""The calls of a solution in its worker. Each call has its own buffer in the arena.

A buffer is a set of inputs and output slots. The session lays the buffers out, writes inputs into them, and reads the
output slots after the calls. A clock times the launch. Results of a value-returning solution are copied into the slots
after the sample. They are copied before the next call, since honest code may return the same memory each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch

from flashinfer_bench.base.named_call import NamedCall, find_call
from flashinfer_bench.timing.clocks import Launch
from flashinfer_bench.worker.arena import Slot
from flashinfer_bench.worker.gated_chain.kernels import WORD_BYTES
from flashinfer_bench.worker.load import LoadedEntry

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
"""Taken from the class before a solution is loaded, so that attributes set by a solution have no effect."""

TENSORS: Final = (torch.Tensor, torch.nn.Parameter)
PLACEMENTS: Final = 8
MOST_KEPT_BYTES: Final = 512 << 20
FREE_SHARE: Final = 8
FEW_BYTES: Final = 32 << 20
"""Limits of the results that are kept alive: maximum number, maximum bytes, and a divisor of the free memory. Up to
FEW_BYTES the free memory is not queried, because the query can wait for the driver."""
NOWHERE: Final = range(1, 2)
"""Unused addresses. If results may use the inputs' memory, they are compared with these addresses instead. So
references and solutions both spend the half microsecond of the comparison."""


class LaidCall:
    """The call in one buffer.

    Args:
        loaded: the entry function, and the solution's `setup`.
        arguments: views of the inputs in the arena, and scalars.
        outputs: name → view of the output slot.
        style: "dps", "value", or "keyword" (returns values, and takes its inputs by name).
        inputs_at: the addresses of the inputs' memory, if outputs may not use it; else empty.
        named: how the entry function takes its inputs by name; None if it is still unknown.
    """

    def __init__(
        self,
        loaded: LoadedEntry,
        arguments: Mapping[str, Any],
        outputs: Mapping[str, torch.Tensor],
        style: str,
        inputs_at: range = range(0),
        named: NamedCall | None = None,
    ) -> None:
        self.outputs = list(outputs.values())
        self._names = list(outputs)
        self.inputs_at = inputs_at
        self.returns = style != "dps"
        inputs = list(arguments.values())
        given = inputs if self.returns else [*inputs, *self.outputs]
        self._setup = loaded.bind_setup(inputs, given)
        if style == "keyword":
            self._function = (named or find_call(loaded.function, arguments)).bind(loaded.function, arguments)
        else:
            self._function = partial(loaded.function, *given)
        self.run = self._function
        self.result: Any = None
        self.is_strided = False
        """A result had another layout than its slot, so copying it was part of the work."""

    def prepare(self) -> None:
        """Call `setup`. Its items become keyword arguments of later calls."""
        prepared = self._setup()
        if not isinstance(prepared, Mapping) or not all(isinstance(name, str) for name in prepared):
            raise TypeError(f"setup must return a dict with the names of run's keyword arguments, not {type(prepared)}")
        self.run = partial(self._function, **prepared)

    def values(self) -> list[Any]:
        """Return the result of the latest call as a list of values. The values of a dict are in the order of the
        outputs.

        No method of the solution runs here, after the sample: only methods of the built-in types are used.
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

    def fits(self, value: Any, slot: torch.Tensor) -> bool:
        """Return whether a value has its slot's shape and dtype, and uses no forbidden memory."""
        return (
            type(value) in TENSORS
            and (value.shape, value.dtype) == (slot.shape, slot.dtype)
            and not (self.inputs_at and address_of(value) in self.inputs_at)
        )

    def is_plain(self, value: Any, slot: torch.Tensor) -> bool:
        """Return whether a value could be copied into its slot byte for byte, in whole words."""
        if not self.fits(value, slot) or value.device != slot.device or not is_contiguous(value):
            return False
        return not (is_negated(value) or is_conjugated(value) or data_of(value) % WORD_BYTES)

    def store(self) -> None:
        """Copy the result of the latest call into the output slots. The session judges values that do not fit."""
        for value, slot in zip(self.values(), self.outputs, strict=False):
            if self.fits(value, slot):
                self.is_strided = self.is_strided or not is_contiguous(value)
                copy_of_torch(slot, detached(value) if value.requires_grad else value)
            elif type(value) in (int, float, bool) and slot.ndim == 0:
                slot.fill_(value)


def address_of(value: torch.Tensor) -> int:
    """Return the address of a tensor's memory; 0 if it has no own memory, like a sparse tensor."""
    try:
        return storage_of(value).data_ptr()
    except RuntimeError:
        return 0


def addresses_of(block: torch.Tensor) -> range:
    """Return the addresses of a block of memory. A tensor in it may begin anywhere, as an alias by DLPack does."""
    return range(data_of(block), data_of(block) + block.nbytes)


class OutputCache:
    """Keeps the latest results alive, so that the outputs of the next call cannot get the same memory.

    The address of an output changes the time of a short call by some percent on a GPU. A result that holds more memory
    than its outputs need is not kept, for example a slice of a workspace.

    Args:
        size: bytes of all outputs of one call.
        buffers: number of memory blocks that outputs rotate through, including the next call's block.
    """

    def __init__(self, size: int, buffers: int = 1) -> None:
        self.has_room = buffers > 1
        """Whether results are kept; False on a CPU."""
        self._size = size
        self._results: deque[Any] = deque(maxlen=max(buffers - 1, 0))
        self._keeps: bool | None = None

    @classmethod
    def for_gpu(cls, size: int, device: torch.device) -> OutputCache:
        """Return a cache for the memory of a GPU."""
        if size * PLACEMENTS <= FEW_BYTES:
            return cls(size, PLACEMENTS)
        free_bytes, _ = torch.cuda.mem_get_info(device)
        return cls(size, max(1, min(PLACEMENTS, MOST_KEPT_BYTES // size, free_bytes // FREE_SHARE // size)))

    def keep(self, values: Sequence[Any]) -> None:
        """Keep the values of one more result, and drop the oldest."""
        if self._keeps is None:
            tensors = [value for value in values if type(value) in TENSORS and value.grad_fn is None]
            held = {address_of(one): storage_of(one).nbytes() for one in tensors}
            self._keeps = len(tensors) == len(values) and sum(held.values()) <= self._size
        if self._keeps:
            self._results.append(values)


class CallLaunch:
    """The launch of one call, as a clock times it.

    Args:
        part: "run", "setup", "both" (setup, then run) or "nothing".
    """

    def __init__(self, call: LaidCall, output_cache: OutputCache, part: str) -> None:
        self.call = call
        self._output_cache = output_cache
        self._part = part
        self.slots = call.outputs
        self.puts_away = part != "setup" and call.returns
        """Whether `put_away` launches work on the device."""

    def __call__(self) -> None:
        """Call the solution."""
        if self._part in ("setup", "both"):
            self.call.prepare()
        if self._part != "setup":
            self.call.result = self.call.run()

    def put_away(self) -> bool:
        """Copy the result into its output slots; return whether a result had another layout than its slot."""
        if self.puts_away:
            self.call.store()
            if self._output_cache.has_room:
                self._output_cache.keep(self.call.values())
        return self.call.is_strided

    def plain_results(self) -> list[torch.Tensor] | None:
        """Return the values of the latest call if they have the layout and alignment of their slots; else None."""
        values = self.call.values() if self.puts_away else []
        if len(values) != len(self.slots) or not all(map(self.call.is_plain, values, self.slots)):
            return None
        return values

    def forget(self) -> None:
        """Drop the result of the latest call."""
        self.call.result = None


class GraphLaunch:
    """The launch of several calls as one CUDA graph, just captured. Results have the addresses of the capture."""

    def __init__(self, launches: Sequence[CallLaunch], replay: Launch) -> None:
        self._launches = list(launches)
        self._replay = replay
        self._results = [launch.call.result for launch in launches]
        self.is_replay = bool(getattr(replay, "is_replay", False))
        self.puts_away = any(launch.puts_away for launch in launches)

    def __call__(self) -> None:
        """Replay the calls."""
        self._replay()
        for launch, result in zip(self._launches, self._results, strict=True):
            launch.call.result = result

    def put_away(self) -> bool:
        """Copy the results into their output slots; return whether a result had another layout."""
        strided = [launch.put_away() for launch in self._launches]
        return any(strided)


def lay_out_calls(loaded: LoadedEntry, block: torch.Tensor, request: Mapping[str, Any]) -> list[LaidCall]:
    """Make the calls of a `lay_out` request.

    Args:
        block: the arena.
    """
    count, stride, style = int(request["count"]), int(request["stride"]), request["style"]

    def views(argument: dict[str, Any]) -> Sequence[Any] | torch.Tensor:
        """Return the argument of each call."""
        if "scalar" in argument:
            return [argument["scalar"]] * count
        return Slot.from_json(argument).rows(block, count, stride)

    arguments = {name: views(argument) for name, argument in request["arguments"].items()}
    outputs = dict(zip(request["outputs"], map(views, request["slots"]), strict=True))
    inputs_at = NOWHERE if request["may_return_inputs"] else addresses_of(block)
    named = find_call(loaded.function, arguments) if style == "keyword" else None
    laid = []
    for at in range(count):
        own, slots = ({name: of_each[at] for name, of_each in of_all.items()} for of_all in (arguments, outputs))
        laid.append(LaidCall(loaded, own, slots, style, inputs_at, named))
    return laid


def share_memory(calls: Sequence[LaidCall], block: torch.Tensor | None = None) -> bool:
    """Return whether the latest results of several calls use the same memory, such as one reused buffer, or whether a
    result lies in a block of memory."""
    owners: dict[int, int] = {}
    held = range(0) if block is None else addresses_of(block)
    for number, call in enumerate(calls):
        for value in call.values() if call.returns else ():
            if type(value) in TENSORS and value.numel():
                at = address_of(value)
                if at in held or owners.setdefault(at, number) != number:
                    return True
    return False
