"""The random numbers of `content_kernel.cu`, and what it makes of them, in plain loops."""

from __future__ import annotations

import math

import numpy as np
import torch

from flashinfer_bench.bench.evaluators.inputs.writer import NEGATED

MASK = 0xFFFFFFFF


def philox(counter, key):
    """Return four numbers of 32 bits: Philox4x32-10, of a counter and a key of 64 bits each."""
    a, b, c, d = counter & MASK, counter >> 32, 0, 0
    k, m = key & MASK, key >> 32
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (second >> 32) ^ b ^ k, second & MASK, (first >> 32) ^ d ^ m, first & MASK
        k, m = (k + 0x9E3779B9) & MASK, (m + 0xBB67AE85) & MASK
    return [a, b, c, d]


def draw_normal(key, count, deviation):
    """Return so many normal values: four of each counter, by Box and Muller, of 24 bits of each number."""
    drawn = []
    for group in range(-(-count // 4)):
        words = philox(group, key)
        for at in (0, 2):
            length = deviation * math.sqrt(-2 * math.log(((words[at] >> 8) + 1) * 2.0**-24))
            angle = math.pi * (words[at + 1] >> 8) * 2.0**-23
            drawn += [length * math.cos(angle), length * math.sin(angle)]
    return drawn[:count]


def mix(value, key):
    """Return a number of 32 bits that depends on a value and a key."""
    value = (value ^ key) * 0x9E3779B1 & MASK
    return (value ^ value >> 15) * 0x85EBCA77 & MASK


def to_factor(word):
    """Return the factor, within the root of 1.25, of 24 bits of a number."""
    return 1.25**-0.5 + (1.25**0.5 - 1.25**-0.5) * (word >> 8) * 2.0**-24


def shuffle(length, keys):
    """Return from which place each element of a row comes: a Feistel network of four rounds, walked until it fits."""
    high = math.isqrt(length - 1) + 1
    wide = -(-length // high)
    places = []
    for column in range(length):
        at = column
        while True:
            line, place = divmod(at, wide)
            line = (line + (mix(place, keys[0]) * high >> 32)) % high
            place = (place + (mix(line, keys[1]) * wide >> 32)) % wide
            line = (line + (mix(place, keys[2]) * high >> 32)) % high
            place = (place + (mix(line, keys[3]) * wide >> 32)) % wide
            at = line * wide + place
            if at < length:
                break
        places.append(at)
    return places


def vary(count, by, key, columns):
    """Return of each element of a varied tensor where it stood in the base, and its factor.

    Args:
        count: elements of the tensor.
        by: how many elements it is moved along.
        key: a number below 2**63.
        columns: elements of a row; the last row has what is left.
    """
    places, factors = [], []
    for begin in range(0, count, columns):
        keys = philox(begin // columns | 1 << 63, key)
        of_row = to_factor(mix(keys[0], keys[3]))
        for at, place in enumerate(shuffle(min(columns, count - begin), keys), start=begin):
            if not at % 4 or not factors:
                words = philox(at // 4, key)
            factors.append(of_row * to_factor(words[at % 4]))
            places.append((begin + place + by) % count)
    return places, factors


KEY = 2**62 + 12_345
PRECISE = {torch.float64: 1e-6, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def check_kernel(writer, device, dtype, count, columns, *, is_drawn):
    """Hold what a writer's kernel draws and shuffles against plain loops; it may write nothing else."""
    base = torch.randn(count, generator=torch.Generator().manual_seed(0)).to(dtype)
    held = torch.full((4, count + 4), 9.0, dtype=dtype, device=device)
    keys, by = np.array([KEY, KEY | NEGATED, 5], np.uint64), np.array([count // 3, 0, 0], np.uint64)
    source = base.to(device)  # it has to live until the kernel is launched
    writer.vary_rows(source, held[:, :count], range(3), by, keys, columns)
    if is_drawn:
        writer.draw_rows(held[:, :count], [3], keys[:1], 0.5)
    writer.finish()
    assert (held[:, count:] == 9).all()
    found = held[:, :count].cpu().double()
    for row, sign, key, moved in zip(found, (1, -1, 1), (KEY, KEY, 5), by.tolist(), strict=False):
        places, factors = vary(count, moved, key, columns)
        wanted = base.double()[places] * torch.tensor(factors, dtype=torch.float64) * sign
        torch.testing.assert_close(row, wanted, rtol=PRECISE[dtype], atol=1e-6)
    if is_drawn:
        wanted = torch.tensor(draw_normal(KEY, count, 0.5), dtype=torch.float64)
        torch.testing.assert_close(found[3], wanted, rtol=1e-2, atol=1e-5)
