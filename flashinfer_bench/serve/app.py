"""The routes. The docstring of each route is its description in /openapi.json and /docs."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from pydantic import BaseModel

from flashinfer_bench import __version__
from flashinfer_bench.data import Definition, Solution
from flashinfer_bench.errors import FlashInferBenchError, UsageError
from flashinfer_bench.serve.requests import (
    BatchBody,
    Body,
    Here,
    Site,
    SubmissionBody,
    admit,
    find_definition,
    parse,
    parse_submission,
)
from flashinfer_bench.serve.store import TaskRow
from flashinfer_bench.serve.tasks import TaskService, retry_later

_log = logging.getLogger(__name__)
HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
router = APIRouter()
Found = Annotated[Definition, Depends(find_definition)]
Seconds = Annotated[float, Query(ge=0, le=1e6, allow_inf_nan=False, description="seconds to wait for its end")]


def make_app(site: Site) -> FastAPI:
    """Return the application of a server; `/shutdown` calls its `state.stop`."""
    app = FastAPI(title="flashinfer-bench", version=__version__, openapi_url=None, dependencies=[Depends(admit)])
    app.state.site = site
    app.include_router(router)
    app.middleware("http")(_note)
    app.add_exception_handler(FlashInferBenchError, _answer_failure)
    return app


async def _note(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    """Add an id to each answer, and headers that restrict browsers. Log each request in one line."""
    name, started = uuid.uuid4().hex[:12], time.monotonic()
    response = await answer(request)
    response.headers.update({**HEADERS, "X-Request-ID": name})
    client = request.client.host if request.client is not None else "-"
    took, path, status = time.monotonic() - started, ascii(request.url.path)[1:-1][:300], response.status_code
    _log.info("request %s from %s: %s %s -> %d in %.3f s", name, client, request.method, path, status, took)
    return response


async def _answer_failure(request: Request, error: Exception) -> Response:
    """Answer 422 if the request is invalid, else 503: an error of the engine or the disk may be temporary."""
    is_invalid = isinstance(error, UsageError)
    refusal = HTTPException(422, str(error)) if is_invalid else retry_later(503, str(error))
    return await http_exception_handler(request, refusal)


def _body_of(model: type[BaseModel]) -> dict[str, Any]:
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


@router.get("/definitions")
async def list_definitions(here: Here) -> Response:
    """List the definitions with their op types and numbers of workloads."""
    workloads, definitions = here.trace_set.workloads, here.trace_set.definitions.values()
    names = ("name", "op_type", "description")
    found = [
        {name: getattr(one, name) for name in names} | {"workloads": len(workloads.get(one.name, []))}
        for one in definitions
    ]
    return JSONResponse(found)


@router.get("/definitions/{name}")
async def read_definition(definition: Found) -> Response:
    """Return a definition as in its file."""
    return JSONResponse(definition.to_dict())


@router.get("/definitions/{name}/workloads")
async def list_workloads(here: Here, definition: Found) -> Response:
    """List the workloads of a definition."""
    return JSONResponse([line.workload.to_dict() for line in here.trace_set.workloads.get(definition.name, [])])


@router.get("/workloads/{uuid}")
async def read_workload(here: Here, uuid: str) -> Response:
    """Return a workload with the name of its definition."""
    for name, lines in here.trace_set.workloads.items():
        for line in lines:
            if line.workload.uuid == uuid:
                return JSONResponse({"definition": name, "workload": line.workload.to_dict()})
    raise HTTPException(404, f"the set has no workload {uuid[:200]!r}")


@router.post("/evaluate", openapi_extra=_body_of(SubmissionBody))
async def evaluate(here: Here, asked: Annotated[tuple[TaskRow, Solution], Depends(parse_submission)]) -> Response:
    """Accept a solution for workloads of its definition. The task is on disk before this answers.

    If the submitter has used the same Idempotency-Key header before, return the first task with this key.
    """
    row = await here.service.accept(*asked)
    return JSONResponse({"task_id": row.id, "normalized_solution_name": row.solution_name})


@router.get("/tasks")
async def list_tasks(here: Here, submitter: str | None = None) -> Response:
    """List the latest tasks without their traces, of one submitter or of all."""
    return JSONResponse({"tasks": await here.service.list_tasks(submitter)})


@router.post("/tasks/batch", openapi_extra=_body_of(BatchBody))
async def read_batch(here: Here, body: Body) -> Response:
    """Return several tasks. With a timeout, wait until all of them are over, or the timeout has passed."""
    asked = parse(BatchBody, body)
    tasks = list(dict.fromkeys(asked.task_ids))
    if asked.timeout:
        await here.service.wait(tasks, asked.timeout)
    return JSONResponse({"tasks": [await here.service.read(task) for task in tasks]})


@router.get("/tasks/{task_id}")
async def read_task(here: Here, task_id: str, timeout: Seconds = 0) -> Response:
    """Return a task with its traces so far. With a timeout, wait until it is over, or the timeout has passed."""
    if timeout:
        await here.service.wait([task_id], timeout)
    return JSONResponse(await here.service.read(task_id))


@router.delete("/tasks/{task_id}")
async def cancel_task(here: Here, task_id: str) -> Response:
    """Cancel a task. Its recorded verdicts stay, and a task that is over does not change."""
    return JSONResponse(await here.service.cancel(task_id))


@router.get("/tasks/{task_id}/events")
async def stream_events(here: Here, task_id: str) -> Response:
    """Stream the events of a task as server-sent events: each verdict, then the end of the task."""
    await here.service.read(task_id)
    with here.service.limit_waiting():  # a refusal must come before the answer begins
        return StreamingResponse(_stream(here.service, task_id), media_type="text/event-stream")


@router.get("/health")
async def check_health(here: Here, is_known: Annotated[bool, Depends(admit)]) -> Response:
    """Return the status (ok or draining), the devices and the queue. A request without the token gets only the
    status."""
    status = "draining" if here.service.is_draining else "ok"
    return JSONResponse({"status": status, **(here.metrics.health() if is_known else {})})


@router.get("/metrics")
async def read_metrics(here: Here) -> Response:
    """Return metrics in Prometheus' text format."""
    text = here.metrics.render(here.service.count_open(), here.service.ended)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.post("/shutdown", status_code=202)
async def shut_down(request: Request, here: Here) -> Response:
    """Drain and end the server, as SIGTERM does."""
    if here.token is None:
        raise HTTPException(403, "/shutdown needs a token, and this server has none: start it with --token-file")
    request.app.state.stop()
    return JSONResponse({"status": "draining"}, status_code=202)


@router.get("/openapi.json", include_in_schema=False)
async def describe(request: Request) -> Response:
    """Return the description of the routes."""
    return JSONResponse(request.app.openapi())


@router.get("/")
@router.get("/docs", include_in_schema=False)
async def list_routes(request: Request) -> Response:
    """List the routes as text. FastAPI's usual page would load scripts from another site, and these scripts could call
    this server."""
    entries = [
        f"{method.upper()} {path}\n    {operation['description']}\n"
        for path, operations in request.app.openapi()["paths"].items()
        for method, operation in operations.items()
    ]
    return PlainTextResponse("\n".join([*entries, "The whole description is at /openapi.json.\n"]))


async def _stream(service: TaskService, task: str) -> AsyncIterator[str]:
    with service.limit_waiting():
        async for event in service.events(task):
            yield ": waiting\n\n" if event is None else f"event: {event['event']}\ndata: {json.dumps(event)}\n\n"
