"""Draws which rows and columns of an output fail, as a small map in text."""

from __future__ import annotations

from typing import Final

import torch

from flashinfer_bench.bench.evaluators.compare.outputs import find_failing
from flashinfer_bench.bench.evaluators.compare.pattern import describe_places
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance

MOST_LINES: Final = 24
MOST_SIGNS: Final = 64
"""A map has so many lines and signs a line at most; each sign stands for a block of elements."""
LEGEND: Final = ". right, - few, + many, # all wrong"
SIGNS: Final = ((0.0, "."), (0.1, "-"), (0.9, "+"))
"""The share of a block that fails at most → its sign. Above it is `#`."""


def draw_map(name: str, expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> str:
    """Return the map of an output, with a line that says what it shows."""
    failing = find_failing(expected, got, tolerance)
    count = int(failing.sum())
    rows = failing.reshape(-1, failing.shape[-1] if failing.ndim else 1)
    head = f"{name} {list(expected.shape)}: {count} of {failing.numel()} elements fail"
    if not count:
        return f"{head}\n"
    hit = int(rows.any(dim=1).sum()), int(rows.any(dim=0).sum())
    lines = [f"{head}, in {hit[0]} of {rows.shape[0]} rows and {hit[1]} of {rows.shape[1]} columns"]
    places = describe_places(failing)
    lines += [places] if places is not None else []
    if rows.shape[0] == 1:
        return "\n".join([*lines, *_draw_row(rows[0].float()), ""])
    tall, wide = -(-rows.shape[0] // MOST_LINES), -(-rows.shape[1] // MOST_SIGNS)
    lines.append(f"each sign is {tall} x {wide} elements: {LEGEND}")
    for first in range(0, rows.shape[0], tall):
        block = rows[first : first + tall].float()
        shares = [float(block[:, at : at + wide].mean()) for at in range(0, rows.shape[1], wide)]
        lines.append(f"{first:>8} {''.join(map(_sign, shares))}")
    return "\n".join([*lines, ""])


def _draw_row(row: torch.Tensor) -> list[str]:
    """Return the lines of a single row, one stretch of it below the other."""
    wide = -(-row.numel() // (MOST_LINES * MOST_SIGNS))
    lines = [f"each sign is {wide} of the row's elements, each line begins at the one told: {LEGEND}"]
    for first in range(0, row.numel(), wide * MOST_SIGNS):
        stretch = row[first : first + wide * MOST_SIGNS]
        lines.append(f"{first:>8} {''.join(_sign(float(block.mean())) for block in torch.split(stretch, wide))}")
    return lines


def _sign(share: float) -> str:
    return next((sign for most, sign in SIGNS if share <= most), "#")
