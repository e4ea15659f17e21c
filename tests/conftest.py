"""Fixtures for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PUBLISHED = REPOSITORY.parent / "shared" / "data" / "published"


@pytest.fixture(scope="session")
def published() -> Path:
    """The root of the public data set that lies beside the project; the test is skipped where it does not."""
    if not (PUBLISHED / "definitions").is_dir():
        pytest.skip(f"the public data set is not at {PUBLISHED}")
    return PUBLISHED
