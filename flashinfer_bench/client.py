"""A client of a server (`flashinfer-bench serve`): submit, wait, read. It needs the extra `client` (httpx).

    with Client("http://127.0.0.1:8000") as client:
        traces = client.evaluate(solution)

Requests are tried again while nobody answers, and while the server asks for it (429, 503). A submission carries a key
of its own, so that one that is sent twice is one task.
"""

from __future__ import annotations

import json
import logging
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn
from urllib.parse import quote

from flashinfer_bench.data import Definition, Solution, Trace, Workload
from flashinfer_bench.errors import Fault, Misuse

if TYPE_CHECKING:
    import httpx

_log = logging.getLogger(__name__)
DEFAULT_URL: Final = "http://127.0.0.1:8000"
POLL_S: Final = 30.0
"""Seconds that a long poll asks the server to wait, before it asks again."""
REQUEST_S: Final = 30.0
"""Seconds for an answer, beside those that the server was asked to wait."""
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 10.0
"""The pause before the next try doubles from the first to this, in seconds, with a random part."""
COME_AGAIN: Final = frozenset({429, 503})
"""Statuses that ask to come again."""
Confirm = Literal["if_best", "always", "never"]


class ServerFault(Fault):
    """The server could not be reached, or failed."""


class RequestRefused(Misuse):
    """The server refuses the request, and would refuse it again.

    Args:
        status: of HTTP.
        reason: what the server says.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"the server refuses this ({status}): {reason}")
        self.status: Final = status
        self.reason: Final = reason


@dataclass(frozen=True)
class TaskReport:
    """A task, as the server told it."""

    task_id: str
    status: str
    """pending, running, completed, failed or cancelled. Completed: every workload has a verdict, whatever it is."""
    definition: str
    solution: str
    """The solution's name on the server: its own, and the beginning of its hash."""
    traces: tuple[Trace, ...] = ()
    """The verdicts so far."""
    error: str | None = None
    """Why workloads have no verdict."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return self.status in ("completed", "failed", "cancelled")


class Client:
    """Speaks with one server; usable as a context manager, and from several threads.

    Args:
        url: of the server.
        token: what its `--token-file` holds.
        submitter: who asks; the server gives submitters equal shares. Left out: the client's address.
        retry_s: how long requests are tried again, in seconds.
        transport: of httpx, for tests.

    Raises:
        Misuse: httpx is not installed, or the URL is none.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        token: str | None = None,
        *,
        submitter: str | None = None,
        retry_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise Misuse("the client needs httpx: pip install 'flashinfer-bench[client]'") from error
        self._failure = httpx.TransportError
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise Misuse(f"{url!r} is no URL of a server: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise Misuse(f"{url!r} is no URL of a server, such as {DEFAULT_URL}")
        self._client = httpx.Client(base_url=parsed, headers=headers, transport=transport, trust_env=False)
        self.url: Final = url
        self._submitter = submitter
        self._retry_s = retry_s
        self._sleep: Callable[[float], None] = time.sleep

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Tasks go on."""
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
            solution: what is judged.
            workloads: uuids; left out, all of its definition.
            priority: higher ones are judged earlier among this submitter's tasks.
            key: the name of this submission: the same key again is the same task. Left out, a new one.
            confirm: when a GPU judges it at full assurance: where it would be the best known, at once, or never.
        """
        body: dict[str, Any] = {"solution": solution.to_dict(), "priority": priority, "confirm": confirm}
        if workloads is not None:
            body["workload_uuids"] = list(workloads)
        if self._submitter is not None:
            body["submitter"] = self._submitter
        headers = {"idempotency-key": key or uuid.uuid4().hex}
        return str(self._read("POST", "/evaluate", json=body, headers=headers)["task_id"])

    def task(self, task_id: str, timeout_s: float = 0.0) -> TaskReport:
        """Return a task; with a timeout, wait for its end, as far as the server lets requests wait."""
        return _to_report(self._read("GET", f"/tasks/{task_id}", wait_s=timeout_s, params={"timeout": timeout_s}))

    def wait(self, task_id: str, timeout_s: float | None = None) -> TaskReport:
        """Return a task when it is over.

        Args:
            task_id: of the task.
            timeout_s: limit of the wait, in seconds; left out, as long as the server lets requests wait.

        Raises:
            TimeoutError: it is not over in time.
            ServerFault: the server is gone.
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
                self._sleep(FIRST_PAUSE_S)  # a server that ends does not let requests wait

    def evaluate(
        self,
        solution: Solution,
        workloads: Iterable[str] | None = None,
        *,
        priority: int = 0,
        confirm: Confirm = "if_best",
        timeout_s: float | None = None,
    ) -> list[Trace]:
        """Submit a solution, and return its traces when all are there.

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
        return list(map(_to_report, self._read("POST", "/tasks/batch", wait_s=timeout_s, json=body)["tasks"]))

    def tasks(self, submitter: str | None = None) -> list[TaskReport]:
        """Return the latest tasks without their traces, of one submitter or of all."""
        asked = {} if submitter is None else {"submitter": submitter}
        return list(map(_to_report, self._read("GET", "/tasks", params=asked)["tasks"]))

    def cancel(self, task_id: str) -> TaskReport:
        """Give a task up; verdicts that are recorded stay."""
        return _to_report(self._read("DELETE", f"/tasks/{task_id}"))

    def events(self, task_id: str) -> Iterator[dict[str, Any]]:
        """Yield what happens to a task: each verdict, then its end.

        Raises:
            ServerFault: the stream broke off; `wait` goes on.
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
        """Return whether the server takes tasks, its devices and its queue."""
        return dict(self._read("GET", "/health"))

    def metrics(self) -> str:
        """Return the server's counts in Prometheus' text format."""
        return self._ask("GET", "/metrics").text

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
        """Send a request until it is answered, or the time for tries is over.

        Args:
            method: of HTTP.
            path: of the route.
            wait_s: seconds that the server is asked to wait.
            request: further parts, as httpx takes them.
        """
        deadline, pause = time.monotonic() + self._retry_s, FIRST_PAUSE_S
        while True:
            is_last, asked = time.monotonic() >= deadline, 0.0
            try:
                answer = self._client.request(method, path, timeout=REQUEST_S + wait_s, **request)
            except self._failure as error:
                why = f"does not answer: {error or type(error).__name__}"
                if is_last:
                    raise ServerFault(f"{self.url} {why}") from error
            else:
                if answer.is_success:
                    return answer
                if is_last or answer.status_code not in COME_AGAIN:
                    self._refuse(answer)
                why, after = f"asks to come again ({answer.status_code})", answer.headers.get("retry-after", "")
                asked = float(after) if after.isdigit() else 0.0
            if pause == FIRST_PAUSE_S:
                _log.warning("%s %s; trying again for up to %.0f s", self.url, why, self._retry_s)
            self._sleep(min(max(asked, pause * random.uniform(0.5, 1.0)), max(0.0, deadline - time.monotonic())))
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _refuse(self, answer: httpx.Response) -> NoReturn:
        try:
            reason = str(answer.json()["detail"])
        except (ValueError, KeyError, TypeError):
            reason = answer.text[:200]
        if answer.status_code >= 500 or answer.status_code in COME_AGAIN:
            raise ServerFault(f"{self.url} cannot serve this ({answer.status_code}): {reason}")
        raise RequestRefused(answer.status_code, reason)


def _to_report(document: Mapping[str, Any]) -> TaskReport:
    traces = tuple(Trace.model_validate(one) for one in document.get("traces") or ())
    names = {key: str(document[key]) for key in ("task_id", "status", "definition", "solution")}
    return TaskReport(**names, traces=traces, error=document.get("error"))
