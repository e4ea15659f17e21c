"""What a request's body says: JSON of a stranger, checked whole before anything is done with it.

400: no JSON. 413: too much of something. 422: JSON that says something else. 404: names that the set does not have.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from flashinfer_bench.bench.confirm import Confirm
from flashinfer_bench.data import Solution, TraceSet
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.data.issue import LoadIssue
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.store.json_text import parse_json
from flashinfer_bench.data.store.parse import Place, parse_raw
from flashinfer_bench.serve.limits import ServeLimits
from flashinfer_bench.serve.refusal import Refusal

MOST_NAME: Final = 200
"""The name, author, submitter or key of a submission may have this many characters."""
HIGHEST_PRIORITY: Final = 1_000
"""Priorities lie between minus this and this; a higher one is judged earlier among a submitter's tasks."""
NOWHERE: Final = Path(os.devnull, "solution")
"""Where a solution of a request lies: no file of this machine is beside it, so none is read in place of a content."""
SHOWN_PROBLEMS: Final = 20
"""An answer tells so many problems of a solution."""
_TASK_ID: Final = re.compile(r"[0-9a-f]{32}")
SUBMISSION_SCHEMA: Final = {
    "type": "object",
    "required": ["solution"],
    "properties": {
        "solution": {"type": "object", "description": "a solution, as its JSON file has it"},
        "workload_uuids": {"type": "array", "items": {"type": "string"}, "description": "left out or null: all"},
        "priority": {"type": "integer", "default": 0},
        "submitter": {"type": "string", "description": "who asks; submitters get equal shares"},
        "confirm": {
            "type": "string",
            "enum": list(get_args(Confirm)),
            "default": "if_best",
            "description": "when a GPU judges the solution at full assurance: where it would be the best known, at "
            "once, or never",
        },
    },
}
BATCH_SCHEMA: Final = {
    "type": "object",
    "required": ["task_ids"],
    "properties": {
        "task_ids": {"type": "array", "items": {"type": "string"}},
        "timeout": {"type": "number", "default": 0, "description": "seconds to wait for all of them"},
    },
}


@dataclass(frozen=True)
class Submission:
    """What a client wants to be judged."""

    solution: Solution
    """Under its unique name."""
    workloads: tuple[str, ...]
    """Uuids, each once."""
    priority: int
    submitter: str
    key: str | None
    """What the client calls this submission."""
    confirm: Confirm = "if_best"

    @property
    def digest(self) -> str:
        """Digest of all that is asked for."""
        asked = [self.solution.to_dict(), self.workloads, self.priority]
        return digest_of(asked if self.confirm == "if_best" else [*asked, self.confirm])


def parse_submission(
    body: bytes, trace_set: TraceSet, limits: ServeLimits, *, key: str | None, client: str
) -> Submission:
    """Read the body of POST /evaluate.

    Args:
        body: as it came.
        trace_set: what may be asked for.
        limits: of sources.
        key: the request's Idempotency-Key.
        client: the submitter where the body names none.

    Raises:
        Refusal: something is wrong with it.
    """
    given = _read_object(body)
    solution = _read_solution(given.get("solution"), limits)
    definition = trace_set.definitions.get(solution.definition)
    if definition is None:
        hint = did_you_mean(solution.definition, trace_set.definitions)
        raise Refusal(404, f"the set has no definition {solution.definition[:MOST_NAME]!r}{hint}")
    submitter = given.get("submitter")
    for name, value in (("submitter", submitter), ("Idempotency-Key", key)):
        if value is not None and not (isinstance(value, str) and 0 < len(value) <= MOST_NAME):
            raise Refusal(422, f"{name}: a text of 1 to {MOST_NAME} characters is expected")
    priority = given.get("priority", 0)
    if type(priority) is not int or abs(priority) > HIGHEST_PRIORITY:
        raise Refusal(422, f"priority: a whole number from -{HIGHEST_PRIORITY} to {HIGHEST_PRIORITY} is expected")
    confirm = given.get("confirm", "if_best")
    if confirm not in get_args(Confirm):
        raise Refusal(422, f"confirm: one of {', '.join(get_args(Confirm))} is expected")
    known = [line.workload.uuid for line in trace_set.workloads.get(definition.name, [])]
    workloads = _choose_workloads(given.get("workload_uuids"), known)
    return Submission(solution, workloads, priority, submitter or client, key, confirm)


def parse_batch(body: bytes, limits: ServeLimits) -> tuple[list[str], float]:
    """Read the body of POST /tasks/batch: ids of tasks, and how long to wait for all of them.

    Raises:
        Refusal: something is wrong with it.
    """
    given = _read_object(body)
    tasks = _read_texts("task_ids", given.get("task_ids"))
    if len(tasks) > limits.batch:
        raise Refusal(413, f"task_ids: {len(tasks)} are too many; ask for {limits.batch} at once")
    timeout = given.get("timeout", 0) or 0
    if type(timeout) not in (int, float) or not math.isfinite(timeout) or timeout < 0:
        raise Refusal(422, "timeout: a number of seconds is expected")
    for task in tasks:
        check_task_id(task)
    return list(dict.fromkeys(tasks)), float(timeout)


def check_task_id(task: str) -> str:
    """Return the id of a task.

    Raises:
        Refusal: no task has such an id.
    """
    if not _TASK_ID.fullmatch(task):
        raise Refusal(404, f"there is no task {task[:MOST_NAME]!r}")
    return task


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        parsed, _ = parse_json(body.decode("utf-8-sig"))
    except ValueError as error:
        raise Refusal(400, f"the body is no JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise Refusal(422, "the body should be a JSON object")
    return parsed


def _read_solution(raw: object, limits: ServeLimits) -> Solution:
    if raw is None:
        raise Refusal(422, "solution: is missing")
    _check_sources(raw, limits)
    issues: list[LoadIssue] = []
    solution = parse_raw(Solution, raw, Place(NOWHERE), issues)
    if solution is None:
        problems = [f"{issue.field or 'solution'}: {issue.reason}" for issue in issues if issue.severity == "error"]
        raise Refusal(422, "; ".join(problems[:SHOWN_PROBLEMS]))
    _check_size((source.content for source in solution.sources), limits)
    if max(len(solution.name), len(solution.author)) > MOST_NAME:
        raise Refusal(422, f"name and author may have {MOST_NAME} characters")
    return solution.with_unique_name()


def _check_sources(raw: object, limits: ServeLimits) -> None:
    """Refuse too many sources, and too large ones, before any of them is looked at: that takes time."""
    sources = raw.get("sources") if isinstance(raw, dict) else None
    if not isinstance(sources, (list, dict)):
        return
    if len(sources) > limits.sources:
        raise Refusal(413, f"{len(sources)} sources are too many; the limit is {limits.sources}")
    contents = sources.values() if isinstance(sources, dict) else map(_content_of, sources)
    _check_size((content for content in contents if isinstance(content, str)), limits)


def _check_size(contents: Iterable[str], limits: ServeLimits) -> None:
    size = sum(len(content.encode("utf-8", "replace")) for content in contents)
    if size > limits.source_bytes:
        raise Refusal(413, f"the sources have {size:,} bytes; the limit is {limits.source_bytes:,}")


def _content_of(source: object) -> object:
    return source.get("content") if isinstance(source, dict) else None


def _choose_workloads(asked: object, known: Sequence[str]) -> tuple[str, ...]:
    if asked is None:
        if not known:
            raise Refusal(404, "the definition has no workloads")
        return tuple(known)
    uuids = tuple(dict.fromkeys(_read_texts("workload_uuids", asked)))
    if not uuids:
        raise Refusal(422, "workload_uuids: is empty; leave it out for all of them")
    there = set(known)
    for uuid in uuids:
        if uuid not in there:
            raise Refusal(404, f"the definition has no workload {uuid[:MOST_NAME]!r}{did_you_mean(uuid, known)}")
    return uuids


def _read_texts(name: str, value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Refusal(422, f"{name}: a list of texts is expected")
    return value
