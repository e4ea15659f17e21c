"""The stored inputs of workloads on a node: fetched once by their digest, and laid out as they lie in their set."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flashinfer_bench.data.store.checks import is_inside
from flashinfer_bench.errors import WorkloadFault

Fetch = Callable[[str], Any]
"""Gives the bytes of a digest, as anything that has a buffer."""


class BlobShelf:
    """Blobs below one folder.

    Args:
        folder: its own; whoever made it removes it.
        fetch: gets what is not there yet.
    """

    def __init__(self, folder: Path, fetch: Fetch) -> None:
        self._folder = folder
        self._fetch = fetch

    def lay_out(self, root: str, files: Mapping[str, str]) -> Path:
        """Have files at their paths below a folder that stands for a root of the host; return that folder.

        Raises:
            WorkloadFault: a path leads out of the root, or what came is not what the digest says.
        """
        own = self._folder / "roots" / hashlib.sha256(root.encode()).hexdigest()[:16]
        own.mkdir(parents=True, exist_ok=True)
        for path, digest in files.items():
            if not is_inside(path):
                raise WorkloadFault(f"blob {path!r} leads out of the set; blob paths are relative to its root")
            target = own / path
            blob = self._find(digest)
            if target.exists() and target.samefile(blob):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)  # the set's file is another one than before
            target.hardlink_to(blob)
        return own

    def _find(self, digest: str) -> Path:
        blob = self._folder / "blobs" / digest
        if not blob.exists():
            content = memoryview(self._fetch(digest))
            if hashlib.sha256(content).hexdigest() != digest:
                raise WorkloadFault(f"blob {digest} arrived changed")
            blob.parent.mkdir(parents=True, exist_ok=True)
            half = blob.with_suffix(".part")
            half.write_bytes(content)
            half.replace(blob)
        return blob
