"""How many calls a burst has, so that they can be told from its noise, and how many of them are compared. Pure."""

from __future__ import annotations

import math
from typing import Final

from flashinfer_bench.bench.runner.workers.timed.call_places import MOST_BURST_PLACES
from flashinfer_bench.bench.runner.workers.timed.empty_bursts import BurstOverhead

RESOLVED: Final = 4.0
"""A burst resolves its calls when they take this many times what empty bursts differ by."""
LEAST_NOISE_NS: Final = {"cpu": 5_000.0, "cuda": 40_000.0}
"""Bursts on a kind of device differ by this at the least, however alike the empty ones were."""
BURST_NS: Final = {"cpu": 3_000_000, "cuda": 4_000_000}
"""A burst on a kind of device has as many calls as take this long by the claim, as far as there are places: a GPU that
changes from one process to another has a start-up that a short burst would be made of. On a CPU a worker that goes on
finds caches cold: 0.2 to 0.3 ms of a burst are none of its calls', and of them only what an empty burst takes at the
least, 0.03 ms, is taken off. A burst of 1 ms raised nine in ten latencies of calls of 76 us, by 13 % with a spread of
9 %; with 2 to 6 ms half of them rise, by 1 to 2 % with a spread of 3 %. On a GPU who answers a burst early and computes
while results are fetched saves up to 0.4 ms of it, a third of a burst of 1 ms."""
BURST_BYTES: Final = {"cpu": 8 << 20, "cuda": 8 << 30}
"""Bytes of the places of all calls that a burst has for the sake of BURST_NS, at the most, by the kind of device. Calls
of a burst that leaves a CPU's caches take longer than those that were timed. On a GPU what is taken off a burst as a
whole is shared by its calls: with 4 GB it was 7.8 us of a call of 60 us that moves 128 MB."""
USUAL_CALLS: Final = 128
LEAST_BURST_NS: Final = 1_500_000
"""A burst on a GPU has more calls than the first of these only to take this long by the claim. 0.25 ms are taken off a
burst, and bursts of the same calls differ by 0.3 ms: of 128 calls of 3 us who forges readings was told as 1.4 times too
fast, of 6 us as 1.6 times; with so many calls 1.3 times at the most (H100)."""
SHORT_BURST_NS: Final = 1_000_000
MOST_OPERATIONS: Final = 640
"""Beyond this time a burst on a GPU has no more operations than this: in a graph of 1,500 operations each begins 0.5 us
later than in one of 600 (H100)."""
REQUEST_SHARE: Final = {"cpu": 0.04, "cuda": 1.0}
"""A burst has so many calls that its request takes no more than this share of it, by the kind of device: the request is
taken off, and who has taken the worker over may answer sooner. On a GPU BURST_NS alone decides."""
TWICE: Final = 2
"""A burst has as many calls as take this many times what bursts resolve."""
FEWEST_CALLS: Final = 8
"""A burst has this many calls at the least: the first call after a pause is slower, for threads sleep and caches are
cold."""
LONGEST_NS: Final = 50_000_000
"""Calls beyond this time are not made for the sake of FEWEST_CALLS: slow calls hardly notice a pause."""
READ_CALLS: Final = {"cpu": 24, "cuda": 16}
"""Calls that are compared of the burst that counts, which is the best of all, by the kind of device. On a CPU who
leaves out a seventh of them passes once in 40 times; with 6 calls he passed twice in five, and his latency was 1.3
times too low. On a GPU who leaves out a fifth passes once in 35 times."""
FEW_READ_CALLS: Final = 6
"""The same where calls are large."""
READ_BYTES: Final = 1 << 28
"""Where the inputs and outputs of READ_CALLS calls take more bytes than this, calls are large: they are kept until they
are compared."""


def noise_ns(overhead: BurstOverhead, device_type: str) -> float:
    """Return by how much bursts on a kind of device differ."""
    noises = [one.noise for one in (overhead, overhead.processors) if one is not None]
    return max(min(noises), LEAST_NOISE_NS[device_type])


def count_burst_calls(
    claimed_ns: float, device_type: str, overhead: BurstOverhead, size: int, operations: int = 1
) -> int:
    """Return how many calls a burst has, as far as memory allows.

    Args:
        claimed_ns: latency of one call.
        device_type: cpu or cuda.
        overhead: what bursts take of themselves.
        size: bytes of the inputs and outputs of one call.
        operations: that one call launches on a GPU.
    """
    claimed_ns = max(claimed_ns, 1.0)
    requests = [one.request for one in (overhead, overhead.processors) if one is not None]
    needed_ns = max(min(requests) / REQUEST_SHARE[device_type], TWICE * RESOLVED * noise_ns(overhead, device_type))
    needed = max(math.ceil(needed_ns / claimed_ns), min(FEWEST_CALLS, math.ceil(LONGEST_NS / claimed_ns)))
    long = min(math.ceil(BURST_NS[device_type] / claimed_ns), BURST_BYTES[device_type] // max(size, 1))
    if device_type == "cuda":
        few_operations = MOST_OPERATIONS // max(operations, 1)
        needed = min(needed, USUAL_CALLS)
        long = min(long, max(USUAL_CALLS, min(few_operations, math.ceil(LEAST_BURST_NS / claimed_ns))))
        long = min(long, max(few_operations, math.ceil(SHORT_BURST_NS / claimed_ns)))
    return max(1, min(MOST_BURST_PLACES[device_type], max(needed, long)))


def count_read_calls(size: int, device_type: str) -> int:
    """Return how many calls of a burst are compared at the most.

    Args:
        size: bytes of the inputs and outputs of one call.
        device_type: cpu or cuda.
    """
    most = READ_CALLS[device_type]
    return most if size * most <= READ_BYTES else FEW_READ_CALLS
