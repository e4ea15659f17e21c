"""What a worker is told when it is forked."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.host import usable_cores, usable_memory
from flashinfer_bench.bench.runner.environments import worker_environment
from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.bench.runner.workers.artifacts import place_of
from flashinfer_bench.bench.runner.workers.enclosure import Enclosure
from flashinfer_bench.compile import Artifact
from flashinfer_bench.timing.driver import CONNECTIONS

MEMORY_SHARE: Final = 0.6
"""Where the configuration sets no limit, the workers of all sessions together may hold this share of the machine's
memory."""
NOT_PRECOMPILED: Final = ("TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
"""Folders of other compilers: a worker that precompiles has them in its home, which goes with it."""

Precompiled = tuple[Artifact, dict[str, Any]]
"""The artifact of a solution that is precompiled, and what else `worker/jit/precompile.py` wants to know."""


@dataclass(frozen=True)
class NewWorker:
    """A worker that is to be forked: where its files are, and what it is for."""

    key: str
    """The digest of its solution, or what stands for it: names the folders of compilers."""
    artifact: Path | None
    """Of its solution, where it has one."""
    home: Path
    """Its own, removed at its end."""
    given: Path
    """What it alone is given to read."""
    gpu_index: int | None = None
    """Its GPU's number as CUDA counts; None to go by the UUID."""
    is_narrow: bool = False
    """Its context on the GPU has one connection."""
    timing_image: bytes | None = None
    """Machine code of the timing kernels, which it then need not assemble."""
    precompiled: Precompiled | None = None
    """Given for one that precompiles, has no GPU, and ends then."""


@cache
def threads_of_worker() -> int:
    """Return how many threads a worker's libraries may use."""
    return usable_cores()


@cache
def default_memory_limit(sessions: int = 1) -> int:
    """Return how many bytes a worker may hold on this machine while so many sessions judge on it."""
    return int(usable_memory() * MEMORY_SHARE / sessions)


def make_order(hello: Hello, new: NewWorker, enclosure: Enclosure | None) -> dict[str, Any]:
    """Return the spawn order of a worker.

    Args:
        hello: the session's settings.
        new: the worker.
        enclosure: makes its walls; None where it has none.

    Raises:
        OSError: folders cannot be made.
    """
    own = {"HOME": str(new.home), "TMPDIR": str(new.home)}
    if new.precompiled is not None:
        own["CUDA_VISIBLE_DEVICES"] = ""
    elif new.gpu_index is not None:
        own["CUDA_VISIBLE_DEVICES"] = str(new.gpu_index)
    if new.is_narrow:
        own[CONNECTIONS] = "1"
    timing = {"l2_cache": hello.timing.l2_cache, "clock": hello.timing.clock, "image": ""}
    if new.timing_image is not None and new.precompiled is None:
        timing["image"] = base64.b64encode(new.timing_image).decode()
    order: dict[str, Any] = {
        "environment": worker_environment(os.environ, Path(hello.cache_root)) | own,
        "gpu_uuid": hello.gpu_uuid if new.gpu_index is not None else None,
        "device": "cuda:0" if hello.device == "cuda" else "cpu",
        "threads": threads_of_worker(),
        "memory_limit_bytes": hello.worker_memory_bytes or default_memory_limit(hello.sessions),
        "timing": timing,
    }
    if enclosure is None:
        return order
    walls = enclosure.make_walls(new.key, new.artifact, new.given)
    walls = replace(walls, writable=(str(new.home), *walls.writable))
    order["environment"] |= enclosure.environment(new.key)
    if new.precompiled is not None:
        walls = walls.without_gpu()
        artifact = enclosure.hand_over(new.precompiled[0], new.given)
        order["precompile"] = {**place_of(artifact), **new.precompiled[1]}
        # Of what it leaves half done, Triton's cache and what ninja makes alone take no harm: ninja knows what is not
        # finished, and the lock on a module goes with the process, or with the next worker (`jit/left_locks.py`).
        order["environment"] |= {name: str(new.home / name.lower()) for name in NOT_PRECOMPILED}
    order["walls"] = walls.to_json()
    return order
