"""Joins a Ray cluster, and keeps it off stdout."""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Mapping
from typing import Any, Final

import ray

from flashinfer_bench.errors import ConfigError

LOG: Final = logging.getLogger(__name__)


def connect(address: str | None) -> None:
    """Join a running cluster.

    Raises:
        ConfigError: none answers there.
    """
    if address is not None and address.startswith("ray://"):
        raise ConfigError(
            "cluster: run this on a node of the cluster (by `ray job submit`, for example), not through ray://"
        )
    keep_off_stdout()
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR", configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        why = str(error).strip().splitlines()[0]
        raise ConfigError(f"cluster: no Ray cluster answers at {address or 'this machine'}: {why}") from None


def keep_off_stdout() -> None:
    """Have Ray log what it would print: it tells of lost nodes on stdout, where a run's result goes."""
    with contextlib.suppress(ImportError):  # of another version of Ray, which is not told here how to be quiet
        worker: Any = importlib.import_module("ray._private.worker")
        if hasattr(worker, "print_to_stdstream"):
            worker.print_to_stdstream = log_lines


def log_lines(data: Mapping[str, Any], *_: object, **__: object) -> None:
    """Log what Ray would print."""
    LOG.debug("ray: %s", data.get("lines"))
