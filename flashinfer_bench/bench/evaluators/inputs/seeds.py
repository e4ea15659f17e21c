"""Derives a seed for each name from one seed, so that a random value does not depend on the number of earlier
values."""

from __future__ import annotations

import torch

from flashinfer_bench.data.digest import seed_of


def derive_seed(seed: int, *names: str | int) -> int:
    """Return the seed of a path of names."""
    return seed_of("\x1f".join(map(str, (seed, *names))))


def make_generator(seed: int, *names: str | int, device: torch.device) -> torch.Generator:
    """Return a generator on the device, seeded for a path of names."""
    return torch.Generator(device=device).manual_seed(derive_seed(seed, *names))
