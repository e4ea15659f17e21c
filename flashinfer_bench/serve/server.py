"""One server: a socket, an engine, a ledger; and how it ends.

SIGTERM, Ctrl-C and /shutdown drain it: no new tasks, jobs that run end within a limit, and what is left goes back to
the ledger for the next server. A second signal ends the process at once; its sessions end with it, and nothing that was
accepted is lost.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import uvicorn

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.data.store.layout import SERVED
from flashinfer_bench.errors import ConfigError, Fault
from flashinfer_bench.serve.app import make_app
from flashinfer_bench.serve.door import ServedEngine
from flashinfer_bench.serve.gate import Admission
from flashinfer_bench.serve.ledger import Ledger
from flashinfer_bench.serve.limits import ServeLimits
from flashinfer_bench.serve.metrics import Metrics
from flashinfer_bench.serve.records import TaskRecords
from flashinfer_bench.serve.service import TaskService
from flashinfer_bench.serve.strangers import Strangers

CACHE_FOLDER: Final = "serve"
"""The folder of the cache that holds ledgers and traces of sets that cannot be written."""
WANTED_FILES: Final = 16_384
"""Files that the process may have open at once, where its hard limit allows as many: each connection is one."""
KEPT_FILES: Final = 512
"""Of these, files that are kept for the engine; connections get the rest."""
FEWEST_CONNECTIONS: Final = 64
"""Connections that a server takes at once in any case, however few files it may open."""
STRANGERS_SHARE: Final = 8
"""An address may have this part of all connections without a request (an eighth)..."""
FEWEST_STRANGERS: Final = 16
"""... and so many in any case."""
MOST_PORT: Final = 65_535
"""The highest port of TCP."""
BACKLOG: Final = 1024
"""Connections that the system holds until they are accepted."""
CLOSE_S: Final = 5
"""Seconds that answers under way have to leave a server that has drained."""
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Address:
    """Where a server listens, and who may ask it.

    Args:
        host: an address of this machine, or a name of it.
        port: 0 for any that is free.
        token: what requests have to know.
        allowed_hosts: names that a Host header may say, too.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    allowed_hosts: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise ConfigError for a port that is none, or an address that others reach while there is no token."""
        if not 0 <= self.port <= MOST_PORT:
            raise ConfigError(f"--port {self.port}: a number from 0 to {MOST_PORT} is expected")
        if self.token is None and not self._is_loopback():
            raise ConfigError(
                f"--host {self.host}: others can reach this address, so a token is needed: --token-file FILE"
            )

    def admission(self) -> Admission:
        """Return who is let in."""
        names = {"localhost", self.host, socket.gethostname(), *self.allowed_hosts}
        return Admission(self.token, frozenset(name.lower() for name in names))

    def _is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass
class Home:
    """Where a server keeps its tasks, and where their traces go."""

    ledger: Path
    records: Path
    notes: list[str] = field(default_factory=list)
    """What a person should know of it."""


def choose_home(trace_set: TraceSet, cache: Path) -> Home:
    """Return the folders of a server: beside the set, or in the cache where the set cannot be written."""
    root = trace_set.folder.resolve()
    if os.access(root, os.W_OK):
        return Home(root / SERVED, root)
    folder = cache / CACHE_FOLDER / digest_of(str(root))[:16]
    return Home(folder, folder, [f"note: {root} cannot be written; tasks and traces go to {folder}"])


@dataclass(frozen=True)
class ServerSettings:
    """What a server is told."""

    home: Home
    address: Address
    limits: ServeLimits


def serve(engine: ServedEngine, trace_set: TraceSet, settings: ServerSettings, announce: Callable[[str], None]) -> None:
    """Serve until a signal or /shutdown ends it. The engine is closed in the end.

    Args:
        engine: judges.
        trace_set: what tasks are about.
        settings: where, for whom, and how much.
        announce: gets lines for people.

    Raises:
        ConfigError: others reach the address and there is no token.
        DataSetError: another server has the tasks of this set.
        Fault: the address cannot be used, or the disk fails.
    """
    home, address = settings.home, settings.address
    with contextlib.ExitStack() as stack:
        stack.callback(engine.close)
        address.check()
        listener = stack.enter_context(contextlib.closing(_listen(address)))
        records = TaskRecords(Ledger(home.ledger), trace_set, home.records)
        service = TaskService(engine, trace_set, records, settings.limits)
        stack.callback(service.close)
        metrics = Metrics(engine)
        asyncio.run(_Server(service, metrics, address, announce).run(listener))


class _Server:
    def __init__(
        self, service: TaskService, metrics: Metrics, address: Address, announce: Callable[[str], None]
    ) -> None:
        self._service = service
        self._ending: asyncio.Task[None] | None = None
        self._announce = announce
        admission = address.admission()
        connections = max(FEWEST_CONNECTIONS, _raise_file_limit() - KEPT_FILES)
        strangers = max(FEWEST_STRANGERS, connections // STRANGERS_SHARE)
        self._uvicorn = _Quiet(
            uvicorn.Config(
                make_app(service, metrics, admission, self.end),
                http=Strangers(service.limits.head_s, strangers, admission).protocol(),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=connections,
                timeout_graceful_shutdown=CLOSE_S,
                backlog=BACKLOG,
            )
        )

    async def run(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with _handled(loop, self._on_signal):
            left = await self._service.start()
            if left:
                self._announce(f"note: going on with {left} tasks of an earlier server")
            host, port = listener.getsockname()[:2]
            self._announce(f"serving on http://{f'[{host}]' if ':' in host else host}:{port}")
            await self._uvicorn.serve([listener])
            if self._ending is not None:
                await self._ending

    def end(self) -> None:
        """Drain, then stop; called again, it does nothing."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        self._announce("draining: no new tasks; once more ends it at once")
        try:
            left = await self._service.drain(self._service.limits.drain_s)
            self._announce(f"drained; {left} tasks are left for the next server")
        finally:
            self._uvicorn.should_exit = True

    def _on_signal(self) -> None:
        if self._ending is not None:
            os._exit(130)  # sessions end with their host, and the ledger has all that was accepted
        self.end()


class _Quiet(uvicorn.Server):
    """A uvicorn server that leaves signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def _handled(loop: asyncio.AbstractEventLoop, handler: Callable[[], Any]) -> Iterator[None]:
    taken = []
    for number in SIGNALS:
        with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread, as in tests
            loop.add_signal_handler(number, handler)
            taken.append(number)
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)


def _listen(address: Address) -> socket.socket:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, name = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(name)
            listener.listen(BACKLOG)  # whoever is told the address can connect
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise Fault(f"cannot listen on {address.host}:{address.port}: {error.strerror or error}") from error
    return listener


def _raise_file_limit() -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return WANTED_FILES if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
