"""The settings of a run's cluster, and `join_cluster`. If ray is not installed, the error says how to install it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from flashinfer_bench.base.install import install_hint
from flashinfer_bench.bench.runner.sandbox import Level
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from flashinfer_bench.cluster.cluster import Cluster


@dataclass(frozen=True)
class ClusterSettings:
    """The settings of a run's cluster."""

    address: str | None = None
    """Address of the cluster's head, in Ray's format; None for the cluster of this machine."""
    kind: Literal["cpu", "cuda"] | None = None
    """The kind of the slots. None: GPUs if the cluster has any, else CPUs."""
    sandbox: Level = "auto"
    cache: str | None = None
    """The cache folder on every node; None for each node's default."""
    has_shared_blobs: bool = False
    """Whether all nodes have the host's files under the same paths."""
    build_jobs: int | None = None
    """Number of parallel builds on each node; None for the node's default."""
    hidden: tuple[str, ...] = ()
    """Names of folders of the cache that workers must not read."""


def join_cluster(settings: ClusterSettings) -> Cluster:
    """Join a cluster and return its slots.

    Raises:
        ConfigError: ray is not installed, no cluster answers, or it has no slot for this run.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"cluster: ray is not installed; {install_hint('cluster')}")
    from flashinfer_bench.cluster.cluster import Cluster

    return Cluster(settings)
