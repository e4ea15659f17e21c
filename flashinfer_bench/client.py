"""A client of a server (`flashinfer-bench serve`). It needs the extra `client` (httpx).

    with Client("http://127.0.0.1:8000") as client:
        traces = client.evaluate(solution)

Requests are retried while the server does not answer, and while it requests a retry (429, 503). A submission has a key,
so a repeated request submits no second task.
"""

from __future__ import annotations

import json
import logging
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict

from flashinfer_bench.base.install import install_hint
from flashinfer_bench.data import Definition, Solution, Trace, Workload
from flashinfer_bench.errors import Fault, UsageError

if TYPE_CHECKING:
    import httpx

_log = logging.getLogger(__name__)
DEFAULT_URL: Final = "http://127.0.0.1:8000"
POLL_S: Final = 30.0
"""Longest wait of one long poll, in seconds. The client then polls again."""
REQUEST_S: Final = 30.0
"""Seconds for an answer, in addition to the requested wait."""
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 10.0
"""The pause between two attempts, in seconds, doubles from FIRST_PAUSE_S up to LONGEST_PAUSE_S. A random part of up to
half shortens each pause."""
RETRY_STATUSES: Final = frozenset({429, 503})
"""Statuses that request a retry."""
ID_HEADER: Final = "X-Request-ID"
"""Header of every answer of our server."""
Confirm = Literal["if_best", "always", "never"]


class ServerFault(Fault):
    """The server could not be reached, or failed."""


class RequestRefused(UsageError):
    """The server refuses the request. A retry would be refused, too.

    Args:
        status: the HTTP status.
        reason: the server's reason.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"the server refuses this ({status}): {reason}")
        self.status: Final = status
        self.reason: Final = reason


class TaskReport(BaseModel):
    """A task, as the server returned it."""

    model_config = ConfigDict(frozen=True)

    task_id: str
    status: str
    """pending, running, completed, failed or cancelled. A completed task has a verdict for every workload, passed or
    not."""
    definition: str
    solution: str
    """The solution's name on the server: the given name, and the start of its hash."""
    traces: tuple[Trace, ...] = ()
    """The recorded verdicts."""
    error: str | None = None
    """Why workloads have no verdict."""
    submitter: str = ""
    """The name of its submitter, or the submitter's address."""
    tasks_ahead: int = 0
    """Number of open tasks that were accepted before this task; 0 once this task is no longer pending."""

    @property
    def is_over(self) -> bool:
        """Whether the task has ended."""
        return self.status in ("completed", "failed", "cancelled")


class Client:
    """A client of one server, usable as a context manager and from several threads.

    Args:
        url: the URL of the server.
        token: the token in the server's `--token-file`.
        submitter: name of the client; the server gives submitters equal shares. Default: the client's address.
        retry_s: duration of retries, in seconds.
        first_retry_s: the same before the first answer of the server. Default: `retry_s`.
        transport: a transport of httpx, for tests.

    Raises:
        UsageError: httpx is not installed, or the URL is invalid.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        token: str | None = None,
        *,
        submitter: str | None = None,
        retry_s: float = 60.0,
        first_retry_s: float | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise UsageError(f"the client needs httpx: {install_hint('client')}") from error
        self._failure = httpx.TransportError
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise UsageError(f"{url!r} is no URL of a server: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise UsageError(f"{url!r} is no URL of a server, such as {DEFAULT_URL}")
        self._client = httpx.Client(base_url=parsed, headers=headers, transport=transport, trust_env=False)
        self.url: Final = url
        self._submitter = submitter
        self._later_s = retry_s
        self._retry_s = retry_s if first_retry_s is None else first_retry_s
        self._sleep: Callable[[float], None] = time.sleep

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Tasks continue."""
        self._client.close()

    def submit(
        self,
        solution: Solution,
        workloads: Iterable[str] | None = None,
        *,
        priority: int = 0,
        key: str | None = None,
        confirm: Confirm = "if_best",
    ) -> str:
        """Submit a solution, and return the id of its task.

        Args:
            solution: the solution to judge.
            workloads: uuids; default: all workloads of its definition.
            priority: tasks of this submitter with a higher priority are judged earlier.
            key: key of this submission. The same key returns the same task. Default: a new key.
            confirm: whether a GPU judges the solution at full assurance: "always" (at once), "if_best" (only if it
                would be the best known) or "never".
        """
        body: dict[str, Any] = {"solution": solution.to_dict(), "priority": priority, "confirm": confirm}
        if workloads is not None:
            body["workload_uuids"] = list(workloads)
        if self._submitter is not None:
            body["submitter"] = self._submitter
        headers = {"idempotency-key": key or uuid.uuid4().hex}
        return str(self._read("POST", "/evaluate", json=body, headers=headers)["task_id"])

    def task(self, task_id: str, timeout_s: float = 0.0) -> TaskReport:
        """Return a task. With a timeout, wait for the end of the task; the server may shorten the timeout."""
        return TaskReport.model_validate(
            self._read("GET", f"/tasks/{task_id}", wait_s=timeout_s, params={"timeout": timeout_s})
        )

    def wait(self, task_id: str, timeout_s: float | None = None) -> TaskReport:
        """Wait for the end of a task and return it.

        Args:
            task_id: id of the task.
            timeout_s: limit of the wait, in seconds. Default: no limit.

        Raises:
            TimeoutError: the task is not over in time.
            ServerFault: the server does not answer.
        """
        deadline = inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            asked = time.monotonic()
            report = self.task(task_id, min(POLL_S, max(0.0, deadline - asked)))
            if report.is_over:
                return report
            if time.monotonic() >= deadline:
                raise TimeoutError(f"task {task_id} is {report.status} after {timeout_s:g} s")
            if time.monotonic() < asked + FIRST_PAUSE_S:
                self._sleep(FIRST_PAUSE_S)  # a server that is ending answers at once

    def evaluate(
        self,
        solution: Solution,
        workloads: Iterable[str] | None = None,
        *,
        priority: int = 0,
        confirm: Confirm = "if_best",
        timeout_s: float | None = None,
    ) -> list[Trace]:
        """Submit a solution, and return its traces when all are recorded.

        Raises:
            ServerFault: a workload has no verdict.
            TimeoutError: the task is not over in time.
        """
        report = self.wait(self.submit(solution, workloads, priority=priority, confirm=confirm), timeout_s)
        if report.status != "completed":
            raise ServerFault(f"task {report.task_id} {report.status}: {report.error or 'no reason was given'}")
        return list(report.traces)

    def batch(self, task_ids: Iterable[str], timeout_s: float = 0.0) -> list[TaskReport]:
        """Return several tasks; with a timeout, wait until all of them are over."""
        body = {"task_ids": list(task_ids), "timeout": timeout_s}
        return list(
            map(TaskReport.model_validate, self._read("POST", "/tasks/batch", wait_s=timeout_s, json=body)["tasks"])
        )

    def tasks(self, submitter: str | None = None) -> list[TaskReport]:
        """Return the latest tasks without their traces, of one submitter or of all."""
        asked = {} if submitter is None else {"submitter": submitter}
        return list(map(TaskReport.model_validate, self._read("GET", "/tasks", params=asked)["tasks"]))

    def cancel(self, task_id: str) -> TaskReport:
        """Cancel a task. Its recorded verdicts stay."""
        return TaskReport.model_validate(self._read("DELETE", f"/tasks/{task_id}"))

    def events(self, task_id: str) -> Iterator[dict[str, Any]]:
        """Yield the events of a task: each verdict, then the end of the task.

        Raises:
            ServerFault: the stream was interrupted; `wait` resumes.
        """
        try:
            with self._client.stream("GET", f"/tasks/{task_id}/events", timeout=REQUEST_S) as answer:
                if not answer.is_success:
                    answer.read()
                    self._refuse(answer)
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        yield json.loads(line.removeprefix("data: "))
        except self._failure as error:
            raise ServerFault(f"{self.url}: the stream of task {task_id} broke off: {error}") from error

    def health(self) -> dict[str, Any]:
        """Return the status of the server ("ok" or "draining"), its devices and its queue."""
        return dict(self._read("GET", "/health"))

    def metrics(self) -> str:
        """Return the server's metrics in Prometheus' text format."""
        return self._ask("GET", "/metrics").text

    def definitions(self) -> list[str]:
        """Return the names of the definitions."""
        return [str(one["name"]) for one in self._read("GET", "/definitions")]

    def definition(self, name: str) -> Definition:
        """Return a definition."""
        return Definition.model_validate(self._read("GET", f"/definitions/{quote(name, safe='')}"))

    def workloads(self, definition: str) -> list[Workload]:
        """Return the workloads of a definition."""
        found = self._read("GET", f"/definitions/{quote(definition, safe='')}/workloads")
        return list(map(Workload.model_validate, found))

    def _read(self, method: str, path: str, **request: Any) -> Any:
        return self._ask(method, path, **request).json()

    def _ask(self, method: str, path: str, *, wait_s: float = 0.0, **request: Any) -> httpx.Response:
        """Send a request until it is answered, or the time for retries is over.

        Args:
            method: HTTP method.
            path: path of the route.
            wait_s: requested wait in seconds.
            request: further arguments of httpx.
        """
        started, pause = time.monotonic(), FIRST_PAUSE_S
        while True:
            is_last, asked = time.monotonic() >= started + self._retry_s, 0.0
            try:
                answer = self._client.request(method, path, timeout=REQUEST_S + wait_s, **request)
            except self._failure as error:
                why = f"does not answer: {error or type(error).__name__}"
                if is_last:
                    raise ServerFault(f"{self.url} {why}; `flashinfer-bench serve` starts a server") from error
            else:
                self._retry_s = self._later_s
                if answer.is_success and ID_HEADER not in answer.headers:
                    raise ServerFault(f"{self.url} is no server of `flashinfer-bench serve`: another program answers")
                if answer.is_success:
                    return answer
                if is_last or answer.status_code not in RETRY_STATUSES:
                    self._refuse(answer)
                why, after = f"asks to come again ({answer.status_code})", answer.headers.get("retry-after", "")
                asked = float(after) if after.isdigit() else 0.0
            if pause == FIRST_PAUSE_S:
                _log.warning("%s %s; trying again for up to %.0f s", self.url, why, self._retry_s)
            self._sleep(
                min(max(asked, pause * random.uniform(0.5, 1.0)), max(0.0, started + self._retry_s - time.monotonic()))
            )
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _refuse(self, answer: httpx.Response) -> NoReturn:
        try:
            reason = str(answer.json()["detail"])
        except (ValueError, KeyError, TypeError):
            reason = answer.text[:200]
        if answer.status_code >= 500 or answer.status_code in RETRY_STATUSES:
            raise ServerFault(f"{self.url} cannot serve this ({answer.status_code}): {reason}")
        raise RequestRefused(answer.status_code, reason)
