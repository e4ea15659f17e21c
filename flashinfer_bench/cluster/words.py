"""The frames between the host and a node, beside those of a session (`bench/runner/protocol.py`), which pass through.

host → node     {"block": BlockOrder, "parcel": Parcel}   the node builds the solutions and lays the blobs out, then
                                                          passes the block on to its session
                {"begin": true}, {"drop": true}
node → host     all frames of the session
                {"patience": Patience}    the node works on something that no session knows of
                {"lost": Lost}            the session ended; no frame comes after it
"""

from __future__ import annotations

from typing import Any, Literal

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.protocol import Frame


class Parcel(Frame):
    """What a block needs beside its order."""

    solutions: dict[str, dict[str, Any]]
    """Key in the block → the solution whole: the node builds it."""
    blobs: dict[str, dict[str, str]]
    """Blob root of the host → path below it → digest of the file. Empty where all nodes see the host's files."""
    faults: dict[int, str]
    """Job → why its blobs could not be read."""


class Patience(Frame):
    """Why nothing is heard of a session for so long."""

    name: str
    limit_s: float


class Lost(Frame):
    """How a session ended."""

    message: str
    has_timed_out: bool = False
    is_place_gone: bool = False


class PlaceFacts(Frame):
    """What a place tells of itself, before its first session."""

    kind: Literal["cpu", "cuda"]
    index: int
    hardware: str
    uuid: str
    capability: tuple[int, int] | None
    pci_rank: int | None
    version: str
    """Of this package."""
    cache_root: str
    sandbox: dict[str, Any]
    """The fields of `Sandbox`."""
    languages: dict[str, str | None]
    hidden: list[str]
    """Folders of the node that no worker reads."""

    def device(self, node: str) -> Device:
        """Return the place's device, under the name of its node."""
        return Device(
            self.kind,
            self.index,
            self.hardware,
            self.uuid,
            capability=self.capability,
            pci_rank=self.pci_rank,
            node=node,
        )
