"""Tensors of one shape that lie at known addresses, a step apart: each is made when it is asked for.

A view takes the host 1 to 3 us, and a burst of short calls on a GPU has 640 places with some tensors each. What is
written there by our kernel needs their addresses only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray

Addresses = NDArray[np.uint64]


class Targets(Sequence[torch.Tensor]):
    """The tensors at some places.

    Args:
        make: makes the tensor at a place.
        first: address of the one at place 0, in bytes.
        step: bytes from one place to the next.
        places: whose tensors these are.
    """

    def __init__(self, make: Callable[[int], torch.Tensor], first: int, step: int, places: Sequence[int]) -> None:
        self._make = make
        self._first = first
        self._step = step
        self._places = places

    @property
    def addresses(self) -> Addresses:
        """Where they lie: [tensors]."""
        addresses: Addresses = np.asarray(self._places, np.uint64) * np.uint64(self._step) + np.uint64(self._first)
        return addresses

    def some(self, positions: Sequence[int]) -> Targets:
        """Return those at some positions of this sequence."""
        return Targets(self._make, self._first, self._step, [self._places[at] for at in positions])

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(self._make, self._places)

    @overload
    def __getitem__(self, at: int) -> torch.Tensor: ...

    @overload
    def __getitem__(self, at: slice) -> Targets: ...

    def __getitem__(self, at: int | slice) -> torch.Tensor | Targets:
        if isinstance(at, slice):
            return Targets(self._make, self._first, self._step, self._places[at])
        return self._make(self._places[at])


def pick(targets: Sequence[torch.Tensor], positions: Sequence[int]) -> Sequence[torch.Tensor]:
    """Return some of these tensors."""
    if isinstance(targets, Targets):
        return targets.some(positions)
    return [targets[at] for at in positions]


def addresses_of(targets: Sequence[torch.Tensor]) -> Addresses:
    """Return where tensors lie: [tensors]."""
    if isinstance(targets, Targets):
        return targets.addresses
    return np.array([one.data_ptr() for one in targets], np.uint64)
