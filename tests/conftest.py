"""Fixtures for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.kit.processes import set_mark

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A machine that is busy makes no example wrong."""
settings.register_profile("exploring", UNTIMED)
settings.register_profile("repeatable", UNTIMED, derandomize=True)
settings.load_profile("repeatable")  # the same examples each time: `--hypothesis-profile=exploring` draws new ones

for name in ("COLUMNS", "LINES", "FIB_DATASET_PATH"):
    os.environ.pop(name, None)  # tables are as wide as their text, and the user's set is no test's
set_mark()
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each of the programs that tests start compiles the package anew

CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Undo the changes of a test to the environment. torch.compile, for example, sets variables that stay."""
    before = dict(os.environ)
    yield
    changed = {name for name, _ in os.environ.items() ^ before.items()} - {"PYTEST_CURRENT_TEST"}
    for name in changed:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]


@pytest.fixture(scope="session")
def published() -> Path:
    """The root of the public data set; the test is skipped where it is not found."""
    named = os.environ.get("FIB_PUBLISHED_PATH")
    roots = [Path(named)] if named else [folder / "shared/data/published" for folder in CHECKOUT.parents]
    for root in roots:
        if (root / "definitions").is_dir():
            return root
    pytest.skip(f"the public FlashInfer-Trace data set is not in {roots[0]}: point FIB_PUBLISHED_PATH at its root")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow files first, so that two processes end together; skip tests that need more GPUs than there are."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    wanted = [(item, marker.kwargs.get("count", 1)) for item in items if (marker := item.get_closest_marker("gpu"))]
    if not wanted:
        return
    from flashinfer_bench.bench.machine import discover_devices

    there = sum(device.kind == "cuda" for device in discover_devices(None))
    for item, count in wanted:
        if there < count:
            item.add_marker(pytest.mark.skip(reason=f"needs {count} NVIDIA GPU(s); this machine has {there}"))
