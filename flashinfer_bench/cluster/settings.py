"""Which cluster a run uses, and the way there: without the extra, one line says what to install."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from flashinfer_bench.bench.runner.sandbox import Level
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from flashinfer_bench.cluster.cluster import Cluster


@dataclass(frozen=True)
class ClusterSettings:
    """What a cluster is asked for."""

    address: str | None = None
    """Of the cluster's head, as Ray takes it; None for the one that this machine belongs to."""
    kind: Literal["cpu", "cuda"] | None = None
    """The kind of its slots; None for GPUs where it has any."""
    sandbox: Level = "auto"
    cache: str | None = None
    """The folder for what is built, on every node; None for each node's own."""
    has_shared_blobs: bool = False
    """All nodes see the host's files under the same paths."""
    build_jobs: int | None = None
    """Compilers at once on each node; None for the node's default."""
    hidden: tuple[str, ...] = ()
    """Names of folders of the cache that no worker reads."""


def join_cluster(settings: ClusterSettings) -> Cluster:
    """Join a cluster and return its slots.

    Raises:
        ConfigError: ray is not installed, no cluster answers, or it has no slot for this run.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("cluster: ray is not installed; try: pip install 'flashinfer-bench[cluster]'")
    from flashinfer_bench.cluster.cluster import Cluster

    return Cluster(settings)
