"""The frames between the host and the inspector (`inspector.py`), its process. Both are ours. They are JSON.

host → inspector    one InspectOrder, on stdin
inspector → host    one Inspected, on stdout
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from flashinfer_bench.bench.runner.protocol import BlockSolution, Frame, Hello, LimitS

WORK: Final = "{work}"
"""In an argument: the folder that the steps write to and read from."""


class ToolStep(Frame):
    """One program to run inside the walls."""

    name: str
    """"memcheck", for example."""
    argv: list[str]
    calls: bool
    """The command that calls the solution follows after `argv`."""
    warm_up_calls: int = 0
    """Calls before the one that is looked at."""
    limit_s: LimitS
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables beside those of a worker."""


class InspectOrder(Frame):
    """What to look at, and with which steps."""

    hello: Hello
    """The settings that a session would have."""
    definition: dict[str, Any]
    solution: BlockSolution
    workload: dict[str, Any]
    blob_root: str
    seed: int
    readable: tuple[str, ...] = ()
    """Where the tool is."""
    steps: tuple[ToolStep, ...]
    """Each is run, in order, until one of those after the first call does not end in time."""


class StepDone(Frame):
    """What came of one step."""

    name: str
    text: str
    """What it printed, to both streams."""
    code: int | None
    """Its exit code; None where a signal ended it."""
    ended: str
    """How it ended, in words; empty where it ended by itself with 0."""
    error: str = ""
    """What the solution raised; empty where it did not, or where nothing is known of it."""


class Inspected(Frame):
    """What came of an order."""

    problem: str = ""
    """Why there are no steps: the inputs could not be made, or the solution could not be loaded."""
    steps: tuple[StepDone, ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader should know, such as walls that are missing."""
