"""Who is let in, and what is too much."""

import asyncio
import json

import pytest

from flashinfer_bench.serve.limits import ServeLimits
from tests.serve.conftest import submission
from tests.serve.test_tasks import run, submit

TOKEN = "a-token-that-nobody-guesses"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "127.0.0.1:8000"}, 200),
        ({"host": "localhost:9"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "evil.example:8000"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": ""}, 403),
        ({"origin": "http://localhost"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "none"}, 200),
    ],
)
def test_web_pages_are_kept_out(site, headers, status):
    async def talk():
        async with site.serve() as client:
            assert (await client.get("/definitions", headers=headers)).status_code == status

    run(talk())


@pytest.mark.parametrize("given", [None, "Bearer wrong", f"Basic {TOKEN}", TOKEN, "Bearer ", f"Bearer {TOKEN}x"])
def test_without_the_token_only_health_answers_and_says_little(site, given):
    headers = {} if given is None else {"authorization": given}

    async def talk():
        async with site.serve(token=TOKEN) as client:
            for path in ("/", "/definitions", "/tasks", "/metrics", "/docs", "/openapi.json"):
                answer = await client.get(path, headers=headers)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert (await client.post("/evaluate", json=submission(), headers=headers)).status_code == 401
            assert (await client.post("/shutdown", headers=headers)).status_code == 401
            assert (await client.get("/health", headers=headers)).json() == {"status": "ok"}

    run(talk())
    assert site.stopped == 0


def test_the_token_opens_every_route(site):
    async def talk():
        async with site.serve(token=TOKEN) as client:
            client.headers["authorization"] = f"Bearer {TOKEN}"
            assert (await client.get("/health")).json()["workers"][0]["device"] == "cpu"
            await submit(client)
            assert (await client.post("/shutdown")).status_code == 202

    run(talk())
    assert site.stopped == 1


def test_shutdown_needs_a_token_also_where_nothing_else_does(site):
    async def talk():
        async with site.serve() as client:
            answer = await client.post("/shutdown")
            assert (answer.status_code, "--token-file" in answer.json()["detail"]) == (403, True)

    run(talk())
    assert site.stopped == 0


def test_a_body_beyond_the_limit_is_refused_without_being_kept(site):
    parts = []

    async def large():
        for number in range(400):
            parts.append(number)
            yield b"x" * 10_000

    async def talk():
        async with site.serve(limits=ServeLimits(body_bytes=100_000)) as client:
            answer = await client.post("/evaluate", content=large())
            assert answer.status_code == 413
            answer = await client.post("/evaluate", content=b"x" * 100_001)
            assert answer.status_code == 413
            assert (await submit(client))["task_id"]

    run(talk())
    assert len(parts) == 400  # dropped, so that the client hears the answer


def test_bodies_share_a_bound(site):
    async def slow(sent, go):
        yield b"x" * 900
        sent.set()
        await go.wait()
        yield b"x"

    async def talk():
        async with site.serve(limits=ServeLimits(all_bodies_bytes=1500)) as client:
            sent, go = asyncio.Event(), asyncio.Event()
            first = asyncio.create_task(client.post("/evaluate", content=slow(sent, go)))
            await sent.wait()
            await asyncio.sleep(0.01)
            second = await client.post("/evaluate", content=b"x" * 900)
            assert (second.status_code, second.headers["retry-after"]) == (503, "2")
            go.set()
            assert (await first).status_code == 400
            assert (await client.post("/evaluate", content=b"x" * 900)).status_code == 400

    run(talk())


def test_a_body_that_does_not_come_is_given_up(site):
    async def never():
        yield b"{"
        await asyncio.sleep(10)

    async def talk():
        async with site.serve(limits=ServeLimits(body_s=0.02)) as client:
            assert (await client.post("/evaluate", content=never())).status_code == 408

    run(talk())


def with_sources(**sources):
    solution = submission()["solution"]
    solution["sources"] += [{"path": path, "content": content} for path, content in sources.items()]
    return {"solution": solution}


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "no JSON"),
        (b"\xff", 400, "no JSON"),
        (b"[" * 100_000, 400, "nested"),
        (b'{"a": "\\ud800"}', 400, "surrogate"),
        (b"[]", 422, "object"),
        (b"{}", 422, "solution: is missing"),
        (b'{"solution": 1}', 422, "solution"),
        (b'{"solution": {"name": "x"}}', 422, "definition: is missing"),
        ({**submission(), "workload_uuids": "w0"}, 422, "workload_uuids"),
        ({**submission(), "workload_uuids": []}, 422, "workload_uuids"),
        ({**submission(), "workload_uuids": ["w9"]}, 404, "no workload 'w9'"),
        ({**submission(), "priority": 1.5}, 422, "priority"),
        ({**submission(), "priority": True}, 422, "priority"),
        ({**submission(), "confirm": "maybe"}, 422, "confirm: one of if_best, always, never is expected"),
        ({**submission(), "submitter": ""}, 422, "submitter"),
        ({**submission(), "submitter": "x" * 201}, 422, "submitter"),
        ({"solution": {**submission()["solution"], "definition": "doubl"}}, 404, "did you mean 'double'"),
        ({"solution": {**submission()["solution"], "name": "x" * 201}}, 422, "200 characters"),
        (with_sources(a="1", b="2", c="3"), 413, "sources"),
        (with_sources(a="x" * 5000), 413, "bytes"),
        (with_sources(**{"../a": "1"}), 422, "'..'"),
        (with_sources(**{"../a": "1", "b": "2", "c": "3"}), 413, "sources"),
        (with_sources(**{"../a": "x" * 5000}), 413, "bytes"),
    ],
)
def test_what_cannot_be_judged_is_refused_with_the_reason(site, body, status, words):
    content = body if isinstance(body, bytes) else json.dumps(body)

    async def talk():
        async with site.serve(limits=ServeLimits(sources=3, source_bytes=4000)) as client:
            answer = await client.post("/evaluate", content=content)
            assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text
            assert client.engine.submitted == []

    run(talk())


def test_no_file_of_the_server_is_read_in_place_of_a_content(site, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.py").write_text("hush = 1\n")
    (tmp_path / "solution").touch()
    body = with_sources()
    body["solution"]["sources"].append({"path": "secret.py"})

    async def talk():
        async with site.serve() as client:
            answer = await client.post("/evaluate", content=json.dumps(body))
            assert (answer.status_code, "hush" in answer.text) == (422, False)
            assert client.engine.submitted == []

    run(talk())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/definitions/none", 404),
        ("GET", "/definitions/none/workloads", 404),
        ("GET", "/workloads/none", 404),
        ("GET", "/tasks/none", 404),
        ("GET", f"/tasks/{'0' * 32}", 404),
        ("DELETE", f"/tasks/{'0' * 32}", 404),
        ("GET", f"/tasks/{'0' * 32}/events", 404),
        ("GET", f"/tasks/{'0' * 32}?timeout=x", 422),
        ("GET", f"/tasks/{'0' * 32}?timeout=nan", 422),
        ("GET", f"/tasks/{'0' * 32}?timeout=-1", 422),
        ("GET", "/nothing", 404),
        ("PUT", "/tasks", 405),
    ],
)
def test_what_is_not_there_is_said_so(site, method, path, status):
    async def talk():
        async with site.serve() as client:
            assert (await client.request(method, path)).status_code == status

    run(talk())


@pytest.mark.parametrize(
    "body", [{"task_ids": "x"}, {"task_ids": [1]}, {"task_ids": [], "timeout": "x"}, {"task_ids": [], "timeout": -1}]
)
def test_a_wrong_batch_is_refused(site, body):
    async def talk():
        async with site.serve(limits=ServeLimits(batch=2)) as client:
            assert (await client.post("/tasks/batch", json=body)).status_code == 422
            many = {"task_ids": ["0" * 32] * 3}
            assert (await client.post("/tasks/batch", json=many)).status_code == 413

    run(talk())
