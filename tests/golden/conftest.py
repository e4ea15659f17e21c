"""Fixtures of the golden tests: the command line with a cache that one run of the tests shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.face import Face


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of this run of the tests alone; the processes of xdist share it."""
    base = tmp_path_factory.getbasetemp()
    above = base.parent if base.name.startswith("popen-") else base
    return above / "golden-cache"


@pytest.fixture(scope="session")
def face(shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Face:
    """The command line."""
    return Face(shared_cache, tmp_path_factory.mktemp("face"))
