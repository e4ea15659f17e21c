"""One seed gives a seed for each name. So a random value does not depend on how many values were made before it."""

from __future__ import annotations

import hashlib

import torch


def derive_seed(seed: int, *names: str | int) -> int:
    """Give the seed of a path of names: the first 63 bits of a sha256 of the seed and the names."""
    text = "\x1f".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def make_generator(seed: int, *names: str | int, device: torch.device) -> torch.Generator:
    """Give a generator on the device, seeded for a path of names."""
    return torch.Generator(device=device).manual_seed(derive_seed(seed, *names))
