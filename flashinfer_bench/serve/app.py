"""The routes. Each says in one sentence what it answers; the sentences make /openapi.json and /docs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Annotated, Any, Final

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse

from flashinfer_bench import __version__
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.errors import FlashInferBenchError
from flashinfer_bench.serve.bodies import BATCH_SCHEMA, SUBMISSION_SCHEMA, check_task_id, parse_batch, parse_submission
from flashinfer_bench.serve.docs_page import render_docs
from flashinfer_bench.serve.documents import definition_list, workload_list
from flashinfer_bench.serve.gate import Admission, Asgi, Gate
from flashinfer_bench.serve.metrics import CONTENT_TYPE, Metrics
from flashinfer_bench.serve.refusal import Refusal
from flashinfer_bench.serve.service import TaskService

Timeout = Annotated[float, Query(ge=0, le=1e6, allow_inf_nan=False, description="seconds to wait for its end")]
KEY_HEADER: Final = "idempotency-key"


def make_app(service: TaskService, metrics: Metrics, admission: Admission, stop: Callable[[], None]) -> Asgi:
    """Make the application of a server.

    Args:
        service: has the tasks.
        metrics: counts.
        admission: who may ask.
        stop: called when /shutdown is asked for.
    """
    app = FastAPI(title="flashinfer-bench", version=__version__, docs_url=None, redoc_url=None)
    app.add_exception_handler(Refusal, _answer_refusal)
    app.add_exception_handler(FlashInferBenchError, _answer_failure)
    _add_set(app, service)
    _add_tasks(app, service)
    _add_server(app, service, metrics, stop)
    return Gate(app, admission, service.limits)


def _add_set(app: FastAPI, service: TaskService) -> None:
    trace_set = service.trace_set
    where = {item.workload.uuid: (name, item) for name, items in trace_set.workloads.items() for item in items}

    def check(name: str) -> str:
        if name not in trace_set.definitions:
            raise Refusal(404, f"the set has no definition {name[:200]!r}{did_you_mean(name, trace_set.definitions)}")
        return name

    @app.get("/definitions")
    async def list_definitions() -> Response:
        """List the definitions with their op types and numbers of workloads."""
        return JSONResponse(definition_list(trace_set))

    @app.get("/definitions/{name}")
    async def read_definition(name: str) -> Response:
        """Return a definition as its file has it."""
        return JSONResponse(trace_set.definitions[check(name)].to_dict())

    @app.get("/definitions/{name}/workloads")
    async def list_workloads(name: str) -> Response:
        """List the workloads of a definition."""
        return JSONResponse(workload_list(trace_set, check(name)))

    @app.get("/workloads/{uuid}")
    async def read_workload(uuid: str) -> Response:
        """Return a workload with the name of its definition."""
        if uuid not in where:
            raise Refusal(404, f"the set has no workload {uuid[:200]!r}{did_you_mean(uuid, where)}")
        name, line = where[uuid]
        return JSONResponse({"definition": name, "workload": line.workload.to_dict()})


def _add_tasks(app: FastAPI, service: TaskService) -> None:
    @app.post("/evaluate", openapi_extra=_body_of(SUBMISSION_SCHEMA))
    async def evaluate(request: Request) -> Response:
        """Accept a solution for workloads of its definition: its task is on disk when this answers.

        An Idempotency-Key header that the submitter has used before gives the task of then.
        """
        body = await request.body()
        key = request.headers.get(KEY_HEADER)
        client = request.client.host if request.client is not None else "unknown"
        parse = asyncio.to_thread(parse_submission, body, service.trace_set, service.limits, key=key, client=client)
        row = await service.accept(await parse)
        request.state.task_id = row.id
        return JSONResponse({"task_id": row.id, "normalized_solution_name": row.solution_name})

    @app.get("/tasks")
    async def list_tasks(submitter: str | None = None) -> Response:
        """List the latest tasks without their traces, of one submitter or of all."""
        return JSONResponse({"tasks": await service.list_tasks(submitter)})

    @app.post("/tasks/batch", openapi_extra=_body_of(BATCH_SCHEMA))
    async def read_batch(request: Request) -> Response:
        """Return several tasks; with a timeout, as soon as all of them are over."""
        tasks, timeout = parse_batch(await request.body(), service.limits)
        for task in tasks:
            await service.read(task)  # an unknown one is refused before anything is waited for
        await _wait(request, service.wait(tasks, timeout))
        return JSONResponse({"tasks": [await service.read(task) for task in tasks]})

    @app.get("/tasks/{task_id}")
    async def read_task(request: Request, task_id: str, timeout: Timeout = 0.0) -> Response:
        """Return a task with the traces so far; with a timeout, as soon as it is over."""
        request.state.task_id = check_task_id(task_id)
        await _wait(request, service.wait([task_id], timeout))
        return JSONResponse(await service.read(task_id))

    @app.delete("/tasks/{task_id}")
    async def cancel_task(request: Request, task_id: str) -> Response:
        """Give a task up; verdicts that are recorded stay. One that is over stays as it is."""
        request.state.task_id = check_task_id(task_id)
        return JSONResponse(await service.cancel(task_id))

    @app.get("/tasks/{task_id}/events")
    async def stream_events(request: Request, task_id: str) -> Response:
        """Stream what happens to a task as server-sent events: each verdict, then its end."""
        request.state.task_id = check_task_id(task_id)
        await service.read(task_id)
        with service.place_to_wait():  # refused before the answer begins
            return StreamingResponse(_stream(service, task_id), media_type="text/event-stream")


def _add_server(app: FastAPI, service: TaskService, metrics: Metrics, stop: Callable[[], None]) -> None:
    @app.get("/")
    async def list_endpoints() -> Response:
        """List the routes."""
        paths = app.openapi()["paths"]
        routes = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
        return JSONResponse({"name": app.title, "version": app.version, "endpoints": routes, "docs": "/docs"})

    @app.get("/health")
    async def check_health(request: Request) -> Response:
        """Tell whether the server takes tasks, its devices and its queue; without the token only the first."""
        status = "draining" if service.is_draining else "ok"
        if not request.state.is_known:
            return JSONResponse({"status": status})
        found = metrics.health()
        return JSONResponse({"status": status, **found})

    @app.get("/metrics")
    async def read_metrics() -> Response:
        """Return counts and times in Prometheus' text format."""
        return PlainTextResponse(metrics.render(service), media_type=CONTENT_TYPE)

    @app.post("/shutdown")
    async def shut_down() -> Response:
        """End the server as SIGTERM does: it drains."""
        stop()
        return JSONResponse({"status": "draining"}, status_code=202)

    @app.get("/docs", include_in_schema=False)
    async def show_docs() -> Response:
        return HTMLResponse(render_docs(app.openapi()))


async def _stream(service: TaskService, task: str) -> AsyncIterator[str]:
    with service.place_to_wait():
        async for event in service.events(task):
            if event is None:
                yield ": waiting\n\n"
            else:
                yield f"event: {event['event']}\ndata: {json.dumps(event)}\n\n"


async def _wait(request: Request, waiting: Coroutine[Any, Any, None]) -> None:
    """Wait as long as the client does: one that has gone makes room for others."""
    work = asyncio.ensure_future(waiting)
    gone = asyncio.ensure_future(_see_it_go(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        for future in (work, gone):
            future.cancel()


async def _see_it_go(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _body_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def _answer_refusal(_request: Request, error: Exception) -> Response:
    if not isinstance(error, Refusal):
        raise error
    return JSONResponse({"detail": error.reason}, status_code=error.status, headers=error.headers())


async def _answer_failure(_request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": f"the server failed: {error}"}, status_code=500)
