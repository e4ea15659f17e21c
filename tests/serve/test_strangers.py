"""Connections without a request: how long they stay, and whom they keep out."""

import asyncio
import contextlib
import time

import pytest

from flashinfer_bench.serve.limits import ServeLimits
from flashinfer_bench.serve.metrics import Metrics
from tests.serve.conftest import submission
from tests.serve.test_tasks import run, submit

TOKEN = "a-token-that-nobody-guesses"
HOST = "Host: localhost\r\n"
HALF = f"GET /health HTTP/1.1\r\n{HOST}X-Half: "
HEAD_S = 0.5
MANY = 100
"""More than all connections that a server takes here."""


@contextlib.asynccontextmanager
async def listening(client, token=None):
    """Let a site's server listen on a port, with few connections; yield a way to connect."""
    from flashinfer_bench.serve import server

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "_raise_file_limit", lambda: server.KEPT_FILES + server.FEWEST_CONNECTIONS)
        address = server.Address(port=0, token=token)
        running = server._Server(client.service, Metrics(client.engine), address, lambda line: None)
    with server._listen(address) as listener:
        serving = asyncio.create_task(running.run(listener))
        try:
            async with Port(listener.getsockname()[1]) as port:
                yield port
        finally:
            running.end()
            await serving


class Port:
    """Where a server listens; connections to it are closed in the end."""

    def __init__(self, number):
        self.number = number
        self.writers = []

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc_info):
        for writer in self.writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def connect(self, text="", peer="127.0.0.1"):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.number, local_addr=(peer, 0))
        self.writers.append(writer)
        writer.write(text.encode())
        return reader, writer

    async def ask(self, path="/health", *, headers="", peer="127.0.0.1"):
        """Return the status of an answer, on a connection of its own."""
        text = f"GET {path} HTTP/1.1\r\n{HOST}{headers}Connection: close\r\n\r\n"
        reader, _ = await self.connect(text, peer)
        return await asyncio.wait_for(read_answer(reader), 5)


async def read_answer(reader):
    """Return the status of an answer; 0 where the connection is closed instead. Its body is read, too."""
    status, length = await reader.readline(), 0
    while (line := (await reader.readline()).strip().lower()) != b"":
        length = int(line.partition(b":")[2]) if line.startswith(b"content-length") else length
    await reader.readexactly(length)
    return int(status.split()[1]) if status else 0


async def closes(reader, within=5):
    """Return after how many seconds a connection is closed."""
    started = time.monotonic()
    with contextlib.suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), within)
    return time.monotonic() - started


@pytest.mark.parametrize("sent", ["", "GET", HALF])
def test_a_connection_without_a_whole_head_is_closed(site, sent):
    async def talk():
        async with site.serve(limits=ServeLimits(head_s=HEAD_S)) as client, listening(client) as port:
            reader, _ = await port.connect(sent)
            assert HEAD_S * 0.8 < await closes(reader) < HEAD_S + 3

    run(talk())


def test_bytes_that_come_one_by_one_win_no_time(site):
    async def talk():
        async with site.serve(limits=ServeLimits(head_s=HEAD_S)) as client, listening(client) as port:
            reader, writer = await port.connect(HALF)
            ending = asyncio.create_task(closes(reader))
            while not ending.done():
                writer.write(b"x")
                await asyncio.sleep(0.05)
            assert await ending < HEAD_S + 3

    run(talk())


def test_after_an_answer_the_time_begins_again(site):
    async def talk():
        async with site.serve(limits=ServeLimits(head_s=HEAD_S)) as client, listening(client) as port:
            reader, writer = await port.connect()
            for _ in range(4):
                await asyncio.sleep(HEAD_S * 0.4)
                writer.write(f"GET /health HTTP/1.1\r\n{HOST}\r\n".encode())
                assert await read_answer(reader) == 200
            writer.write(HALF.encode())  # uvicorn's own limit for idle connections ends here
            assert HEAD_S * 0.8 < await closes(reader) < HEAD_S + 3

    run(talk())


@pytest.mark.parametrize("token", [None, TOKEN])
def test_long_polls_streams_and_slow_bodies_are_no_strangers(site, token):
    known = f"Authorization: Bearer {token}\r\n"

    async def talk():
        limits = ServeLimits(head_s=HEAD_S)
        async with site.serve(is_open=False, limits=limits) as client, listening(client, token) as port:
            task = (await submit(client))["task_id"]
            poll = f"GET /tasks/{task}?timeout=60 HTTP/1.1\r\n{HOST}{known}\r\n"
            polls = []
            for _ in range(30):  # twice what an address may have of strangers
                polls.append(await port.connect(poll))
                await asyncio.sleep(0.01)  # until its head is read, it is one
            stream = await port.connect(f"GET /tasks/{task}/events HTTP/1.1\r\n{HOST}{known}\r\n")
            slow = await port.connect(f"POST /evaluate HTTP/1.1\r\n{HOST}{known}Content-Length: 2\r\n\r\n{{")
            await asyncio.sleep(HEAD_S * 3)
            slow[1].write(b"}")
            assert await read_answer(slow[0]) == 422
            client.engine.open()
            assert [await read_answer(reader) for reader, _ in polls] == [200] * 30
            assert b"event: " in await asyncio.wait_for(stream[0].readuntil(b"data: "), 5)

    run(talk())


@pytest.mark.parametrize("sent", ["", HALF])
def test_an_address_with_many_strangers_keeps_nobody_out(site, sent):
    async def talk():
        async with site.serve() as client, listening(client) as port:
            held = [await port.connect(sent) for _ in range(MANY)]
            await asyncio.sleep(1)
            assert await port.ask(peer="127.0.0.2") == 200
            assert [await port.ask() for _ in range(20)] == [200] * 20  # nor itself
            assert sum(not reader.at_eof() for reader, _ in held) <= 16

    run(talk())


def test_many_that_come_at_once_and_ask_are_all_answered(site):
    async def talk():
        async with site.serve() as client, listening(client) as port:
            assert await asyncio.gather(*(port.ask() for _ in range(60))) == [200] * 60

    run(talk())


def test_without_the_token_a_body_wins_no_time(site):
    async def talk():
        async with site.serve(limits=ServeLimits(head_s=HEAD_S)) as client, listening(client, TOKEN) as port:
            slow = await port.connect(f"GET /health HTTP/1.1\r\n{HOST}Content-Length: 2\r\n\r\n{{")
            assert HEAD_S * 0.8 < await closes(slow[0]) < HEAD_S + 3
            assert await port.ask("/tasks") == 401
            assert await port.ask("/tasks", headers=f"Authorization: Bearer {TOKEN}\r\n") == 200

    run(talk())


def test_a_submission_over_a_socket_is_judged(site):
    import httpx

    async def talk():
        async with site.serve() as client, listening(client) as port:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port.number}", trust_env=False) as other:
                task = (await other.post("/evaluate", json=submission())).json()["task_id"]
                answer = await other.get(f"/tasks/{task}", params={"timeout": 20})
            assert answer.json()["status"] == "completed"

    run(talk())
