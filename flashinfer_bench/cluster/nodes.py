"""What the nodes of a cluster can be used for, by what Ray and they tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.bench.runner.sandbox import Sandbox
from flashinfer_bench.cluster.words import PlaceFacts


def choose_kind(nodes: Iterable[Mapping[str, Any]]) -> Literal["cpu", "cuda"]:
    """Return what a run uses: GPUs, where any node has one."""
    return "cuda" if any(node["Alive"] and node["Resources"].get("GPU", 0) >= 1 for node in nodes) else "cpu"


def count_places(resources: Mapping[str, float], kind: Literal["cpu", "cuda"]) -> int:
    """Return how many places a node has: its GPUs, or one for its CPU."""
    return int(resources.get("GPU", 0)) if kind == "cuda" else int(resources.get("CPU", 0) >= 1)


def read_sandbox(facts: PlaceFacts) -> Sandbox:
    """Return how far a place confines workers."""
    return Sandbox(**{**facts.sandbox, "notes": tuple(facts.sandbox["notes"])})


def fit_hello(hello: Hello, facts: PlaceFacts, sandbox: Sandbox) -> Hello:
    """Return a session's settings as they are right on the node of a place."""
    return hello.model_copy(
        update={
            "cache_root": facts.cache_root,
            "has_walls": sandbox.has_walls,
            "sandbox_user": sandbox.user,
            "hidden": [*hello.hidden, *facts.hidden],
            "baselines": hello.baselines if sandbox.has_walls else "off",
        }
    )
