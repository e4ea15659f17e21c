"""One seed becomes many: a seed for each name, so that no random value depends on how many were drawn before it."""

from __future__ import annotations

import hashlib

import torch


def derive_seed(seed: int, *names: str | int) -> int:
    """Give the seed that belongs to a path of names: the first 63 bits of a sha256."""
    text = "\x1f".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def make_generator(seed: int, *names: str | int, device: torch.device) -> torch.Generator:
    """Give a generator of the device for a path of names."""
    return torch.Generator(device=device).manual_seed(derive_seed(seed, *names))
