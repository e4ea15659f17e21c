"""The random numbers of `content_kernel.cu`, in plain loops."""

import math


def philox(counter, key):
    """Return four numbers of 32 bits: Philox4x32-10, of a counter and a key of 64 bits each."""
    a, b, c, d = counter & 0xFFFFFFFF, counter >> 32, 0, 0
    k, m = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (second >> 32) ^ b ^ k, second & 0xFFFFFFFF, (first >> 32) ^ d ^ m, first & 0xFFFFFFFF
        k, m = (k + 0x9E3779B9) & 0xFFFFFFFF, (m + 0xBB67AE85) & 0xFFFFFFFF
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
