"""The gate in front of every route: who may ask, from where, and how much. Nothing behind it sees a refused request.

Host     an address of digits, a name of this machine, or one that was allowed: a page of another site that made
         its name lead here (DNS rebinding) still says its own name
Origin   none: only browsers send it, and no page is meant to speak with this server; the same holds of a
         Sec-Fetch-Site that tells of another site
token    where there is one, on every route but /health; /shutdown needs one always
body     read up to a limit, with a limit for the time; what is beyond is dropped, never kept
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from flashinfer_bench.serve.limits import ServeLimits
from flashinfer_bench.serve.refusal import Refusal

_log = logging.getLogger(__name__)
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
OPEN_PATH: Final = "/health"
"""The route that answers without a token, and then with no more than whether the server lives."""
SHUTDOWN_PATH: Final = "/shutdown"
BUSY_RETRY_S: Final = 2
"""A client whose body finds no room is asked to come again after so many seconds."""
DROPPED_BYTES: Final = 256 << 20
"""Of a body that is too large so much is read and dropped: its client hears the answer. Then the line is cut."""
DROPPED_S: Final = 10.0
"""For as long as this, in seconds."""
DEADLINE_WORDS: Final = "the body took more than {limit:g} s to arrive"


@dataclass(frozen=True)
class Admission:
    """Who may ask.

    Args:
        token: what each request has to know; None where nobody has to.
        hosts: names that a Host header may say beside addresses, in lower case.
    """

    token: str | None = None
    hosts: frozenset[str] = frozenset({"localhost"})

    def check_host(self, given: Iterable[str]) -> None:
        """Raise Refusal unless there is one Host header, with an address or a name of this server."""
        found = list(given)
        if len(found) != 1 or not self._is_ours(_without_port(found[0]).lower()):
            named = found[0][:200] if found else "none"
            raise Refusal(403, f"the Host header ({named}) names another server; --allow-host lets a name in")

    def check_browser(self, headers: dict[str, str]) -> None:
        """Raise Refusal for a request that a page of a browser makes."""
        if "origin" in headers:
            raise Refusal(403, "requests of web pages (with an Origin header) are refused")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise Refusal(403, "requests of web pages (Sec-Fetch-Site) are refused")

    def check_token(self, path: str, headers: dict[str, str]) -> None:
        """Raise Refusal where a token is needed and the right one is not given."""
        if self.token is None:
            if path == SHUTDOWN_PATH:
                raise Refusal(403, "/shutdown needs a token, and this server has none: start it with --token-file")
            return
        if path != OPEN_PATH and not self.knows_token(headers):
            raise Refusal(401, "a token is needed: Authorization: Bearer TOKEN")

    def knows_token(self, headers: dict[str, str]) -> bool:
        """Tell whether a request gives the token, in a time that says nothing about it."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        is_same = hmac.compare_digest(_digest(given.strip()), _digest(self.token or ""))
        return self.token is None or (scheme.lower() == "bearer" and is_same)

    def _is_ours(self, name: str) -> bool:
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return name in self.hosts
        return True


class Gate:
    """Wraps the application. One line of the log tells of each request."""

    def __init__(self, inside: Asgi, admission: Admission, limits: ServeLimits) -> None:
        self._inside = inside
        self._admission = admission
        self._limits = limits
        self._held_bytes = 0
        """What the bodies hold that are being read or answered."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it."""
        if scope["type"] == "lifespan":
            await self._inside(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"this server speaks no {scope['type']}")
        request = uuid.uuid4().hex[:12]
        scope.setdefault("state", {})["request_id"] = request
        started = time.monotonic()
        answered = 0

        async def tell(message: MutableMapping[str, Any]) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = message["status"]
                message["headers"] = [*message.get("headers", ()), *_common_headers(request)]
            await send(message)

        try:
            await self._admit(scope, receive, tell)
        except Refusal as refusal:
            if answered == 0:
                await answer_refusal(refusal, tell)
        finally:
            task = scope["state"].get("task_id", "-")
            client = (scope.get("client") or ("-",))[0]
            took = time.monotonic() - started
            line = "request %s from %s: %s %s -> %d in %.3f s, task %s"
            _log.info(line, request, client, scope["method"], _printable(scope["path"]), answered, took, task)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        pairs = read_headers(scope["headers"])
        headers = dict(pairs)
        self._admission.check_host(value for name, value in pairs if name == "host")
        self._admission.check_browser(headers)
        self._admission.check_token(scope["path"], headers)
        scope["state"]["is_known"] = self._admission.knows_token(headers)
        body = _Body(receive, self._limits)
        try:
            await self._read(body, headers)
            await self._inside(scope, body.replay, send)
        finally:
            self._held_bytes -= body.counted

    async def _read(self, body: _Body, headers: dict[str, str]) -> None:
        """Read a body whole, as long as there is room for it."""
        limit = self._limits.body_bytes
        stated = headers.get("content-length", "0")
        too_large = Refusal(413, f"the body is larger than {limit:,} bytes")
        if stated.isdigit() and int(stated[:20]) > limit:
            await body.drop()
            raise too_large
        deadline = time.monotonic() + self._limits.body_s
        while not body.is_whole:
            part = await body.next_part(deadline - time.monotonic())
            self._held_bytes += len(part)
            body.keep(part)
            if body.counted > limit:
                body.forget()
                await body.drop()
                raise too_large
            if self._held_bytes > self._limits.all_bodies_bytes:
                body.forget()
                raise Refusal(503, "too many large requests at once", retry_after_s=BUSY_RETRY_S)


class _Body:
    """The body of one request while it is read, and for the application afterwards."""

    def __init__(self, receive: Receive, limits: ServeLimits) -> None:
        self._receive = receive
        self._limits = limits
        self._parts: list[bytes] = []
        self.counted = 0
        """Bytes that were kept; what was forgotten still counts, until the request is over."""
        self.is_whole = False
        self._is_replayed = False

    async def next_part(self, left_s: float) -> bytes:
        try:
            message = await asyncio.wait_for(self._receive(), max(left_s, 0.001))
        except asyncio.TimeoutError:
            raise Refusal(408, DEADLINE_WORDS.format(limit=self._limits.body_s)) from None
        if message["type"] == "http.disconnect":
            raise Refusal(400, "the client went away")
        self.is_whole = not message.get("more_body", False)
        part: bytes = message.get("body", b"")
        return part

    def keep(self, part: bytes) -> None:
        self._parts.append(part)
        self.counted += len(part)

    def forget(self) -> None:
        self._parts.clear()

    async def drop(self) -> None:
        """Read on without keeping anything, for a while: a client that still sends would not hear an answer."""
        deadline = time.monotonic() + DROPPED_S
        dropped = 0
        while not self.is_whole and dropped < DROPPED_BYTES:
            try:
                dropped += len(await self.next_part(deadline - time.monotonic()))
            except Refusal:
                return

    async def replay(self) -> MutableMapping[str, Any]:
        """Hand the application the whole body, then what comes after it: that the client has gone."""
        if self._is_replayed:
            return await self._receive()
        self._is_replayed = True
        body = b"".join(self._parts)
        self._parts.clear()
        return {"type": "http.request", "body": body, "more_body": False}


def read_headers(raw: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Return headers as text, with names in lower case."""
    return [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw]


async def answer_refusal(refusal: Refusal, send: Send) -> None:
    """Answer a request that is refused at the gate; the connection is closed, whatever is still on its way in it."""
    content = json.dumps({"detail": refusal.reason}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(content)), "connection": "close"}
    listed = [(name.encode(), value.encode()) for name, value in {**headers, **refusal.headers()}.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": listed})
    await send({"type": "http.response.body", "body": content})


def _common_headers(request: str) -> list[tuple[bytes, bytes]]:
    return [
        (b"x-request-id", request.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"cache-control", b"no-store"),
        (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    ]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:300])
