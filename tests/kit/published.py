"""Where the public FlashInfer-Trace data set lies, for the tests that read it."""

from collections.abc import Mapping
from pathlib import Path

VARIABLE = "FIB_PUBLISHED_PATH"
USUAL = Path("shared", "data", "published")
HINT = f"point {VARIABLE} at its root, or put it at {USUAL} in a folder that holds the checkout"


def find_published(checkout: Path, environment: Mapping[str, str]) -> Path | None:
    """Return the root that the environment names, else the usual one nearest to the checkout, where there is one."""
    named = environment.get(VARIABLE)
    roots = [Path(named)] if named else [folder / USUAL for folder in checkout.parents]
    return next((root for root in roots if (root / "definitions").is_dir()), None)
