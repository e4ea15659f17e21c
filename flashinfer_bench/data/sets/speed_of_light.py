"""The speed-of-light score of a latency: the position between a baseline and the floor of the roofline.

    score = 1 / (1 + (kernel - floor) / (baseline - floor))

The baseline scores 0.5, the floor 1, and an endless call 0. `data/sets/results.py` has the score of each result. The
score of a set is the arithmetic mean over workloads, then over definitions; failed and missing results count 0.
"""

from __future__ import annotations


def sol_score(kernel_ms: float, baseline_ms: float, floor_ms: float) -> float:
    """Return the score of a latency, from 0 to 1.

    A latency below the floor counts as the floor. If the baseline equals the floor, the floor scores 1, and a latency
    above the floor scores 0.

    Args:
        kernel_ms: the latency of the solution.
        baseline_ms: the latency of the baseline.
        floor_ms: the shortest time that the device's peak rates allow.
    """
    excess_ms, room_ms = max(kernel_ms - floor_ms, 0.0), baseline_ms - floor_ms
    if room_ms <= 0:
        return float(excess_ms == 0)
    return 1 / (1 + excess_ms / room_ms)
