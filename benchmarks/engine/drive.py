"""`flashinfer-bench run` as a user types it, with one change: its progress goes to a file, a JSON line for each event.

    python -m benchmarks.engine.drive EVENTS run --local SET ...

The lines have the time of the system's monotonic clock, which the process that starts this one reads, too. Beside the
events they tell when a device begins to time a reference, and what it does next: it is not idle meanwhile.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from flashinfer_bench.cli import entry


class EventLines:
    """Shows events as lines in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("w", encoding="utf-8")

    def __enter__(self) -> EventLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def show(self, event: Any) -> None:
        """Write one event."""
        self.write(describe(event))

    def write(self, line: dict[str, Any]) -> None:
        """Write one line, with the time."""
        if not self._file.closed:
            self._file.write(json.dumps({"at": time.monotonic(), **line}) + "\n")
            self._file.flush()


def describe(event: Any) -> dict[str, Any]:
    """Return what is kept of an event; this file imports no event, since the command has to import it in its order."""
    job = getattr(event, "job", None)
    names = {} if job is None else {"job": (job.definition.name, job.solution.name, job.workload.uuid)}
    match type(event).__name__:
        case "RunStarted":
            return {"kind": "run", "jobs": event.jobs, "devices": [device.label for device in event.devices]}
        case "JobStarted":
            return {"kind": "started", **names, "device": event.device.label}
        case "JobFinished":
            return {"kind": "finished", **names, "device": event.device.label, **judge(event.trace.evaluation)}
        case "JobFaulted":
            return {"kind": "faulted", **names, "message": event.message}
        case _:
            return {"kind": "notice", "message": getattr(event, "message", "")}


def judge(evaluation: Any) -> dict[str, Any]:
    """Return what is kept of an evaluation."""
    baseline = (evaluation.extra or {}).get("baseline") or {}
    performance = evaluation.performance
    return {
        "status": evaluation.status.value,
        "message": evaluation.log.strip()[-300:] if performance is None else "",
        "reference_ms": performance.reference_latency_ms if performance is not None else None,
        "is_cached": baseline.get("source") == "cached",
    }


def note_references(lines: EventLines) -> None:
    """Have the phases that sessions tell of be written, those of references and what follows them."""
    client = importlib.import_module("flashinfer_bench.bench.runner.client")
    reference = importlib.import_module("flashinfer_bench.bench.runner.protocol").REFERENCE_PHASE
    read = client.SessionClient.messages
    timing: set[str] = set()

    def messages(session: Any) -> Iterator[Any]:
        for message in read(session):
            name, device = (message.get("phase") or {}).get("name"), session.device.label
            if name == reference or device in timing:
                lines.write({"kind": "reference" if name == reference else "next", "device": device})
                (timing.add if name == reference else timing.discard)(device)
            yield message

    client.SessionClient.messages = messages


def main() -> int:
    """Run the command line; the progress is replaced after the command has begun its start-up, not before."""
    lines = EventLines(Path(sys.argv.pop(1)))
    parse = entry.parse_command_line

    def parse_then_listen(argv: Any) -> Any:
        parsed = parse(argv)
        command = importlib.import_module("flashinfer_bench.cli.judge")
        command.RunProgress = lambda **_: lines  # type: ignore[attr-defined]
        note_references(lines)
        return parsed

    entry.parse_command_line = parse_then_listen
    return entry.run_command_line()


if __name__ == "__main__":
    sys.exit(main())
