"""One server: a socket, an engine, a store, and the shutdown.

SIGTERM, Ctrl-C and /shutdown drain it. Then it accepts no new tasks, and running jobs end within a limit. The remaining
tasks go back to the store for the next server. A second signal ends the process at once. Its sessions end with it, and
no accepted task is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn

from flashinfer_bench.bench.engine import Engine
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.data.store.layout import SERVED
from flashinfer_bench.errors import ConfigError, Fault
from flashinfer_bench.serve.app import make_app
from flashinfer_bench.serve.limits import ServeLimits
from flashinfer_bench.serve.metrics import Metrics
from flashinfer_bench.serve.requests import Site
from flashinfer_bench.serve.store import TaskStore
from flashinfer_bench.serve.tasks import TaskService

MOST_FILES: Final = 16_384
"""Number of files that the process opens concurrently, within its hard limit. Each connection is a file."""
KEPT_FILES: Final = 512
"""Number of open files that are reserved for the engine."""
FEWEST_CONNECTIONS: Final = 64
BACKLOG: Final = 1024
"""Connections that the system queues until they are accepted."""
CLOSE_S: Final = 5
"""Seconds that unfinished answers get after the drain."""


@dataclass(frozen=True)
class Address:
    """The address of a server, and its access rules.

    Args:
        host: an address or a name of this machine.
        port: the port; 0 for any free port.
        token: the token that requests must contain.
        allowed_hosts: further names that a Host header may contain.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    allowed_hosts: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise ConfigError for an invalid port, or for an address that other machines reach without a token."""
        if not 0 <= self.port < 1 << 16:
            raise ConfigError(f"--port {self.port}: a number from 0 to {(1 << 16) - 1} is expected")
        is_ours = self.host == "localhost"
        with contextlib.suppress(ValueError):
            is_ours = is_ours or ipaddress.ip_address(self.host).is_loopback
        if self.token is None and not is_ours:
            raise ConfigError(
                f"--host {self.host}: other machines can reach this address, so a token is needed: --token-file FILE"
            )

    @property
    def names(self) -> frozenset[str]:
        """The names that a Host header may contain, in lower case."""
        return frozenset(name.lower() for name in ("localhost", self.host, socket.gethostname(), *self.allowed_hosts))

    def listen(self) -> socket.socket:
        """Return a listening socket. Clients can connect before the server accepts.

        Raises:
            Fault: the address cannot be used.
        """
        try:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            return socket.create_server((self.host, self.port), family=family, backlog=BACKLOG)
        except OSError as error:
            raise Fault(f"cannot listen on {self.host}:{self.port}: {error.strerror or error}") from error


def choose_home(trace_set: TraceSet, cache: Path) -> tuple[Path, Path]:
    """Return the folder of a server's tasks and the root of their traces. Both are in the cache if the set is
    read-only."""
    root = trace_set.folder.resolve()
    if os.access(root, os.W_OK):
        return root / SERVED, root
    folder = cache / "serve" / digest_of(str(root))[:16]
    return folder, folder


def serve(
    engine: Engine,
    trace_set: TraceSet,
    address: Address,
    limits: ServeLimits,
    *,
    cache: Path,
    announce: Callable[[str], None],
) -> None:
    """Serve until a signal or /shutdown ends it. The engine is closed at the end.

    Args:
        engine: the engine for the jobs.
        trace_set: the set of the tasks.
        address: the checked address and the access rules.
        limits: the limits of requests.
        cache: the folder for tasks and traces if the set is read-only.
        announce: callback for each line of output.

    Raises:
        DataSetError: another server has opened the tasks of this set.
        Fault: the address cannot be used, or the disk fails.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(engine.close)
        listener = stack.enter_context(address.listen())
        folder, records = choose_home(trace_set, cache)
        if folder == records:
            announce(f"note: {trace_set.folder} cannot be written; tasks and traces go to {folder}")
        service = TaskService(engine, TaskStore(folder, trace_set, records), limits)
        stack.callback(service.close)
        site = Site(trace_set, service, Metrics(engine), address.token, address.names)
        asyncio.run(Server(site, announce).run(listener))


class Server(uvicorn.Server):
    """A uvicorn server whose signals drain it."""

    def __init__(self, site: Site, announce: Callable[[str], None]) -> None:
        self._service = site.service
        self._announce = announce
        self._ending: asyncio.Task[None] | None = None
        app = make_app(site)
        app.state.stop = self.end
        config = uvicorn.Config(
            app,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=max(FEWEST_CONNECTIONS, _take_files() - KEPT_FILES),
            timeout_graceful_shutdown=CLOSE_S,
            backlog=BACKLOG,
        )
        super().__init__(config)

    async def run(self, listener: socket.socket) -> None:  # type: ignore[override]
        """Serve until the drain has ended."""
        if left := await self._service.start():
            self._announce(f"note: open tasks of an earlier server: {left}")
        host, port = listener.getsockname()[:2]
        self._announce(f"serving on http://{f'[{host}]' if ':' in host else host}:{port}")
        await self.serve([listener])
        if self._ending is not None:
            await self._ending

    def end(self) -> None:
        """Drain, then stop. A repeated call has no effect."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._drain())

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Make signals drain the server. uvicorn's own handler would close the socket first."""
        loop, signals = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self._on_signal)
        yield
        for number in signals:
            loop.remove_signal_handler(number)

    async def _drain(self) -> None:
        self._announce("draining: no new tasks; once more ends it at once")
        try:
            left = await self._service.drain(self._service.limits.drain_s)
            self._announce(f"drained; tasks left for the next server: {left}")
        finally:
            self.should_exit = True

    def _on_signal(self) -> None:
        if self._ending is not None:
            os._exit(130)  # sessions end with their host, and the store has all accepted tasks
        self.end()


def _take_files() -> int:
    """Raise the limit of open files; return the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = min(MOST_FILES, hard) if hard != resource.RLIM_INFINITY else MOST_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return files
