"""Folders of data and caches: from two environment variables, else in the user's home. Imports no other module of the
package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

DATASET_VARIABLE: Final = "FIB_DATASET_PATH"
"""Environment variable with the folder of the default data set."""
CACHE_VARIABLE: Final = "FIB_CACHE_PATH"
"""Environment variable with the folder for build artifacts."""


def dataset_root(environment: Mapping[str, str]) -> Path:
    """Return the folder of the default data set: $FIB_DATASET_PATH, else a folder below the home directory."""
    return _choose(environment, DATASET_VARIABLE, "dataset")


def cache_root(environment: Mapping[str, str]) -> Path:
    """Return the cache's folder: $FIB_CACHE_PATH, else a folder below the home directory."""
    return _choose(environment, CACHE_VARIABLE, "cache")


def get_fib_dataset_path() -> Path:
    """Return the folder of the default data set in this process's environment. It may not exist."""
    return dataset_root(os.environ)


def get_fib_cache_path() -> Path:
    """Return the folder for build artifacts in this process's environment. It may not exist."""
    return cache_root(os.environ)


def home_expanded(path: Path | str) -> Path:
    """Return a path with the home directory instead of `~`. If the user is unknown, return the path unchanged."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _choose(environment: Mapping[str, str], variable: str, folder: str) -> Path:
    configured = environment.get(variable)
    return home_expanded(configured) if configured else Path.home() / ".cache" / "flashinfer_bench" / folder
