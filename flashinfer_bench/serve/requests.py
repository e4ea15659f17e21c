"""Access checks and parsing of requests, as dependencies of the routes. A route never receives a refused request.

Host     an IP address, a name of this machine, or an allowed name. A web page that redirects its name here by DNS
         rebinding still sends its own name
Origin   refused, and so is a Sec-Fetch-Site of another site. Only browsers send them, and no web page may call this
         server
token    needed on every route except /health, if the server has a token
body     read up to a limit; the rest is dropped
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import urlsplit

from fastapi import Depends, Header, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect

from flashinfer_bench.bench.confirm import Confirm
from flashinfer_bench.data import Definition, Solution, TraceSet
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.data.issue import LoadIssue, Location
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.store.parse import parse_raw
from flashinfer_bench.serve.limits import ServeLimits
from flashinfer_bench.serve.metrics import Metrics
from flashinfer_bench.serve.store import TaskRow
from flashinfer_bench.serve.tasks import TaskService, retry_later

MOST_NAME: Final = 200
"""Longest name, author, submitter or key of a submission, in characters."""
SHOWN_PROBLEMS: Final = 20
"""An answer lists at most this many problems of a body."""
NOWHERE: Final = Path(os.devnull, "solution")
"""The path that stands for a solution in a request. No file can be next to it, so no source is read from this
machine."""


@dataclass
class Site:
    """The served set and the access rules of a server: `app.state.site`."""

    trace_set: TraceSet
    service: TaskService
    metrics: Metrics
    token: str | None = None
    """The token that each request must contain; None if no token is needed."""
    hosts: frozenset[str] = frozenset({"localhost"})
    """Names, in lower case, that a Host header may contain. IP addresses are allowed, too."""
    held_bytes: int = 0
    """Total size of the bodies being read or answered, in bytes."""


def site_of(request: Request) -> Site:
    """Return the configuration of the server."""
    found: Site = request.app.state.site
    return found


Here = Annotated[Site, Depends(site_of)]
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


async def admit(request: Request, here: Here, given: Bearer) -> bool:
    """Refuse requests for another host, from web pages, or without the token. Return whether a request has the token:
    `/health` needs none."""
    host, headers = request.headers.get("host", ""), request.headers
    if not _is_ours(host, here.hosts):
        raise HTTPException(403, f"the Host header ({host[:200]}) names another server; --allow-host lets a name in")
    if "origin" in headers or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise HTTPException(403, "requests from web pages (with Origin or Sec-Fetch-Site of another site) are refused")
    word = given.credentials if given is not None else ""
    is_known = here.token is None or hmac.compare_digest(word.encode(), here.token.encode())  # in constant time
    if not is_known and request.url.path != "/health":
        raise HTTPException(401, "a token is needed: Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})
    return is_known


async def read_body(request: Request, here: Here) -> AsyncIterator[bytes]:
    """Read a whole body. A body beyond the limit is read and dropped, so that its client receives the answer."""
    body, limits = bytearray(), here.service.limits
    try:
        async for part in request.stream():
            if len(body) <= limits.body_bytes:
                body.extend(part)
                here.held_bytes += len(part)
            if here.held_bytes > limits.all_bodies_bytes:
                raise retry_later(503, "too many large requests at once")
        if len(body) > limits.body_bytes:
            raise HTTPException(413, f"the body is larger than {limits.body_bytes:,} bytes")
        yield bytes(body)
    except ClientDisconnect:
        raise HTTPException(400, "the client went away") from None
    finally:
        here.held_bytes -= len(body)


Body = Annotated[bytes, Depends(read_body)]


CHECKED: Final = ConfigDict(strict=True, use_attribute_docstrings=True)


class SubmissionBody(BaseModel):
    """The body of POST /evaluate."""

    model_config = CHECKED
    solution: dict[str, Any]
    """a solution, as in its JSON file"""
    workload_uuids: list[str] | None = Field(None, min_length=1)
    """omitted or null: all"""
    priority: int = Field(0, ge=-1000, le=1000)
    """tasks with a higher priority are judged earlier"""
    submitter: str | None = Field(None, min_length=1, max_length=MOST_NAME)
    """name of the client; submitters get equal shares"""
    confirm: Confirm = "if_best"
    """when to judge it at full assurance, on a GPU: if_best (if it would be the best known), always (at once) or
    never"""


class BatchBody(BaseModel):
    """The body of POST /tasks/batch."""

    model_config = CHECKED
    task_ids: list[str] = Field(max_length=1000)
    timeout: float = Field(0, ge=0, allow_inf_nan=False)
    """seconds to wait for all of them"""


Model = TypeVar("Model", bound=BaseModel)


def parse_submission(
    request: Request,
    here: Here,
    body: Body,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=MOST_NAME)] = None,
) -> tuple[TaskRow, Solution]:
    """Return the requested jobs. The whole request is checked first."""
    asked = parse(SubmissionBody, body)
    solution = _read_solution(asked.solution, here.service.limits)
    definition = find_definition(here, solution.definition).name
    known = [line.workload.uuid for line in here.trace_set.workloads.get(definition, [])]
    workloads = tuple(dict.fromkeys(known if asked.workload_uuids is None else asked.workload_uuids))
    if not workloads:
        raise HTTPException(404, "the definition has no workloads")
    for name in set(workloads).difference(known):
        raise HTTPException(404, f"the definition has no workload {name[:MOST_NAME]!r}")
    row = TaskRow(
        id=uuid.uuid4().hex,
        submitter=asked.submitter or (request.client.host if request.client is not None else "unknown"),
        key=idempotency_key,
        request=digest_of([solution.to_dict(), workloads, asked.priority, asked.confirm]),
        definition=definition,
        solution_name=solution.name,
        solution=solution.to_json(),
        workloads=workloads,
        priority=asked.priority,
        confirm=asked.confirm,
        accepted_at=time.time(),
    )
    return row, solution


def find_definition(here: Here, name: str) -> Definition:
    """Return a definition; refuse an unknown definition."""
    known = here.trace_set.definitions
    if name not in known:
        raise HTTPException(404, f"the set has no definition {name[:MOST_NAME]!r}{did_you_mean(name, known)}")
    return known[name]


def parse(model: type[Model], body: bytes) -> Model:
    """Return a body; refuse a body that is no JSON or has invalid values."""
    try:
        return model.model_validate(from_json(body))
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in error.errors()]
        raise HTTPException(422, "; ".join(problems[:SHOWN_PROBLEMS])) from error
    except ValueError as error:
        raise HTTPException(400, f"the body is no JSON: {error}") from error


def _read_solution(raw: dict[str, Any], limits: ServeLimits) -> Solution:
    issues: list[LoadIssue] = []
    solution = parse_raw(Solution, raw, Location(NOWHERE), issues)
    if solution is None:
        problems = [f"{issue.field or 'solution'}: {issue.reason}" for issue in issues if issue.severity == "error"]
        raise HTTPException(422, "; ".join(problems[:SHOWN_PROBLEMS]))
    size = sum(len(source.content.encode()) for source in solution.sources)
    if len(solution.sources) > limits.sources or size > limits.source_bytes:
        most = f"the limits are {limits.sources} and {limits.source_bytes:,} bytes"
        raise HTTPException(413, f"{len(solution.sources)} sources of {size:,} bytes are too much; {most}")
    if max(len(solution.name), len(solution.author)) > MOST_NAME:
        raise HTTPException(422, f"name and author may have {MOST_NAME} characters")
    return solution.with_unique_name()


def _is_ours(host: str, names: frozenset[str]) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name in names or bool(ipaddress.ip_address(name))
    except ValueError:
        return False
