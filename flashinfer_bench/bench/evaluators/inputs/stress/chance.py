"""What chance decides where an input is changed: single numbers on the host, many of them on the input's device.

A number that is drawn on a GPU has to be waited for, which takes 20 to 60 us; a change wants up to four of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cached_property
from typing import Final

import torch

HALF: Final = 0.5


class Chance:
    """One source of chance; its seed decides all that it gives.

    Args:
        seed: a number of 63 bits, or gives it: most changes draw from one of the sources that they have.
        device: where `many` draws.
    """

    def __init__(self, seed: int | Callable[[], int], device: torch.device) -> None:
        self._seed = seed
        self.device = device

    @cached_property
    def seed(self) -> int:
        """Return the seed."""
        return self._seed if isinstance(self._seed, int) else self._seed()

    @cached_property
    def _numbers(self) -> random.Random:
        return random.Random(self.seed)

    @cached_property
    def many(self) -> torch.Generator:
        """Return what tensors on the device are drawn by; nobody waits for these."""
        return torch.Generator(device=self.device).manual_seed(self.seed)

    def between(self, bounds: tuple[float, float]) -> float:
        """Return a number between two others."""
        return self._numbers.uniform(*bounds)

    def below(self, count: int) -> int:
        """Return one of the numbers from 0 on that are below another, which is positive."""
        return self._numbers.randrange(count)

    def is_so(self, share: float = HALF) -> bool:
        """Return True in such a share of all cases."""
        return self._numbers.random() < share

    def sign(self) -> float:
        """Return 1 or -1."""
        return 1.0 if self.is_so() else -1.0

    def places(self, of: int, count: int) -> torch.Tensor:
        """Return so many numbers from 0 on that are below another, some perhaps twice: int64 [count], on the device."""
        return torch.randint(of, (count,), generator=self.many, device=self.device)

    def some(self, count: int, of: int) -> torch.Tensor:
        """Return so many numbers from 0 on that are below another, each of them once: int64, on the device."""
        return torch.randperm(of, generator=self.many, device=self.device)[:count]
