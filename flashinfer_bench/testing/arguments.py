"""The tensors among a call's arguments: finding them, and copying them with their strides and what they share.

Tensors that overlap in memory overlap in the copy, too. Only the bytes that the tensors span are copied: the copy of a
slice of a large buffer is as large as the slice.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

OF_MODULES: Final = frozenset({"_parameters", "_buffers", "_modules"})
"""Attributes of a module that are not searched: `named_parameters` and `named_buffers` give what they hold."""
ALIGNMENT: Final = 512
"""torch's allocator gives addresses that are multiples of this. A copy keeps the remainder of its original."""


class NotCopyable(Exception):
    """A tensor is of a kind that is not copied byte by byte; the reason is its text."""


@dataclass(frozen=True)
class Region:
    """Bytes of one storage that some tensors span."""

    source: torch.UntypedStorage
    begin: int
    end: int

    @property
    def padding(self) -> int:
        """Bytes before the copy, so that it lies as its original does."""
        return (self.source.data_ptr() + self.begin) % ALIGNMENT


def find_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value, and in the lists, tuples and dicts of it."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from find_tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from find_tensors(item)


def replace_tensors(value: Any, replacements: Mapping[int, torch.Tensor]) -> Any:
    """Return a value with other tensors in place of its own, by the identity of those."""
    if isinstance(value, torch.Tensor):
        return replacements.get(id(value), value)
    if isinstance(value, Mapping):
        return {key: replace_tensors(item, replacements) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [replace_tensors(item, replacements) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def find_regions(tensors: Sequence[torch.Tensor]) -> list[Region]:
    """Return the bytes that tensors span, those that overlap as one region.

    Raises:
        NotCopyable: one of them is no plain strided tensor.
    """
    spans: dict[int, list[Region]] = {}
    for tensor in tensors:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            raise NotCopyable(f"an argument is a {type(tensor).__name__} of layout {tensor.layout}")
        if tensor.is_conj() or tensor.is_neg():
            raise NotCopyable("an argument is a lazily conjugated or negated view")
        if tensor.numel():
            storage = tensor.untyped_storage()
            spans.setdefault(storage.data_ptr(), []).append(Region(storage, *_span(tensor)))
    return [region for found in spans.values() for region in _merge(found)]


def copy_tensors(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return copies with the same values, strides and overlaps.

    Raises:
        NotCopyable: one of them is no plain strided tensor.
    """
    copies = [(region, _copy_region(region)) for region in find_regions(tensors)]
    return [_view_in(tensor, copies) for tensor in tensors]


def bytes_of(tensors: Sequence[torch.Tensor]) -> int:
    """Return the bytes that a copy of the tensors takes; what overlaps counts once."""
    return sum(region.end - region.begin for region in find_regions(tensors))


def name_outside_tensors(function: Callable[..., Any], device_type: str) -> list[str]:
    """Return the names of a device's tensors that a function uses without being given them.

    They are closed over or global, or belong to the object whose method it is, or which is called.
    """

    def holds(value: Any) -> bool:
        return any(tensor.device.type == device_type for tensor in _find_held(value))

    if isinstance(function, partial):
        bound = [f"argument {index} of a partial" for index, value in enumerate(function.args) if holds(value)]
        bound += [name for name, value in function.keywords.items() if holds(value)]
        return bound + name_outside_tensors(function.func, device_type)
    if isinstance(function, types.MethodType):
        own = [name for name, value in _attributes(function.__self__) if holds(value)]
        return sorted({*own, *name_outside_tensors(function.__func__, device_type)})
    if isinstance(function, types.BuiltinMethodType):
        return ["the tensor whose method it is"] if holds(function.__self__) else []
    if not isinstance(function, types.FunctionType):
        return sorted(name for name, value in _attributes(function) if holds(value))
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    used = {name: _content(cell) for name, cell in cells}
    used |= {name: function.__globals__.get(name) for name in function.__code__.co_names}
    return sorted(name for name, value in used.items() if holds(value))


def _find_held(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value, or those of a module."""
    if isinstance(value, torch.nn.Module):
        yield from (tensor for _, tensor in _attributes(value))
    else:
        yield from find_tensors(value)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield an object's attributes with their names; of a module its parameters and buffers, and its parts'."""
    if isinstance(value, torch.nn.Module):
        yield from value.named_parameters()
        yield from value.named_buffers()
    own = getattr(value, "__dict__", {})
    yield from ((name, item) for name, item in own.items() if name not in OF_MODULES)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte of a tensor in its storage, and the one after its last."""
    extent = 1 + sum(int((size - 1) * stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = int(tensor.storage_offset()) * tensor.element_size()
    return begin, begin + extent * tensor.element_size()


def _merge(spans: list[Region]) -> list[Region]:
    merged: list[Region] = []
    for region in sorted(spans, key=lambda item: item.begin):
        if merged and region.begin < merged[-1].end:
            last = merged.pop()
            region = Region(last.source, last.begin, max(last.end, region.end))
        merged.append(region)
    return merged


def _copy_region(region: Region) -> torch.UntypedStorage:
    size = region.end - region.begin
    device = region.source.device
    source = torch.empty(0, dtype=torch.uint8, device=device).set_(region.source, region.begin, (size,), (1,))
    copy = torch.empty(region.padding + size, dtype=torch.uint8, device=device)
    copy[region.padding :].copy_(source)
    return copy.untyped_storage()


def _view_in(tensor: torch.Tensor, copies: Sequence[tuple[Region, torch.UntypedStorage]]) -> torch.Tensor:
    """Return the view of a copied region that stands where the tensor stands in its own."""
    if not tensor.numel():
        return tensor.detach().clone()
    begin, _ = _span(tensor)
    address = tensor.untyped_storage().data_ptr()
    region, storage = next(
        (region, storage)
        for region, storage in copies
        if region.source.data_ptr() == address and region.begin <= begin < region.end
    )
    offset = (begin - region.begin + region.padding) // tensor.element_size()
    view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    view.set_(storage, offset, tuple(tensor.shape), tuple(tensor.stride()))
    return view.requires_grad_(tensor.requires_grad)
