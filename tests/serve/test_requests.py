"""Access checks, refusals, and the answers of the routes besides tasks."""

import asyncio
import json
import os
import re

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import ConfigError, Fault
from flashinfer_bench.serve.limits import ServeLimits
from flashinfer_bench.serve.server import Address, choose_home
from flashinfer_bench.serve.token_file import read_token
from tests.serve.conftest import TOKEN, submission, submit, wait_for, write_set

LABEL = r'[a-z]+="(?:\\.|[^"\\\n])*"'
SAMPLE = re.compile(rf"flashinfer_bench_([a-z_]+(?:\{{{LABEL}(?:,{LABEL})*\}})?) ([-+.0-9e]+)")
LET_IN = [
    {"host": "127.0.0.1:8000"},
    {"host": "[::1]:8000"},
    {"host": "Bench.Example:8000"},  # an allowed name
    {"sec-fetch-site": "none"},
]
KEPT_OUT = [
    {"host": "evil.example"},
    {"host": "evil.example:8000"},
    {"host": "127.0.0.1.evil.example"},
    {"host": "127.0.0.1@evil.example"},
    {"host": ""},
    {"origin": "http://localhost"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
]


@pytest.mark.parametrize(("given", "status"), [(LET_IN, 200), (KEPT_OUT, 403)])
async def test_web_pages_are_kept_out(site, given, status):
    async with site.serve() as client:
        client.served.hosts = Address(allowed_hosts=("Bench.Example",)).names
        for headers in given:
            for path in ("/definitions", "/health", "/docs"):
                assert (await client.get(path, headers=headers)).status_code == status, headers
            answer = await client.post("/evaluate", json=submission(), headers=headers)
            assert (answer.status_code, bool(client.engine.asked)) == (status, status == 200), headers


async def test_without_the_token_only_health_answers_and_says_little(site):
    async with site.serve(token=TOKEN) as client:
        for given in (None, "Bearer wrong", f"Basic {TOKEN}", TOKEN, "Bearer ", f"Bearer {TOKEN}x", "Bearer ü"):
            headers = {} if given is None else {"authorization": given.encode()}
            for path in ("/", "/definitions", "/tasks", "/metrics", "/docs", "/openapi.json"):
                answer = await client.get(path, headers=headers)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), given
            for path in ("/evaluate", "/shutdown"):
                assert (await client.post(path, json=submission(), headers=headers)).status_code == 401
            assert (await client.get("/health", headers=headers)).json() == {"status": "ok"}
    assert site.stopped == 0


async def test_the_token_opens_every_route_and_shutdown_needs_one(site):
    async with site.serve(token=TOKEN) as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        assert (await client.get("/health")).json()["workers"][0]["device"] == "cpu"
        await submit(client)
        assert (await client.post("/shutdown")).status_code == 202
    async with site.serve() as client:
        answer = await client.post("/shutdown")
        assert (answer.status_code, "--token-file" in answer.json()["detail"]) == (403, True)
    assert site.stopped == 1


async def test_a_body_beyond_the_limit_is_dropped_as_it_comes_and_all_bodies_share_a_bound(site):
    parts = []

    async def large():
        for number in range(400):
            parts.append(number)
            yield b"x" * 10_000

    async def slow(sent, go):
        yield b"x" * 90_000
        sent.set()
        await go.wait()
        yield b"x"

    limits = ServeLimits(body_bytes=100_000, all_bodies_bytes=150_000)
    async with site.serve(limits=limits) as client:
        for content in (large(), b"x" * 100_001):
            assert (await client.post("/evaluate", content=content)).status_code == 413
        assert len(parts) == 400  # so that the client receives the answer
        sent, go = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(client.post("/evaluate", content=slow(sent, go)))
        await sent.wait()
        await asyncio.sleep(0.01)
        second = await client.post("/evaluate", content=b"x" * 90_000)
        assert (second.status_code, second.headers["retry-after"]) == (503, "5")
        go.set()
        assert (await first).status_code == 400
        assert client.served.held_bytes == 0
        assert await submit(client)


def with_sources(*more, **sources):
    solution = submission()["solution"]
    solution["sources"] += [{"path": path, "content": content} for path, content in sources.items()] + list(more)
    return {"solution": solution}


def with_fields(**fields):
    return {"solution": {**submission()["solution"], **fields}}


REFUSED = [
    (b"{", 400, "no JSON"),
    (b"\xff", 400, "no JSON"),
    (b"[" * 100_000, 400, "recursion limit"),
    (b'{"a": "\\ud800"}', 400, "hex escape"),
    (b"{}", 422, "solution: Field required"),
    (b'{"solution": {"name": "x"}}', 422, "definition: is missing"),
    (submission(workload_uuids="w0"), 422, "workload_uuids"),
    (submission(workload_uuids=[]), 422, "workload_uuids"),
    (submission(workload_uuids=["w9"]), 404, "no workload 'w9'"),
    (submission(priority=1001), 422, "priority"),
    (submission(confirm="maybe"), 422, "confirm"),
    (submission(submitter="x" * 201), 422, "submitter"),
    (with_fields(definition="doubl"), 404, "did you mean 'double'"),
    (with_sources(a="1", b="2", c="3"), 413, "sources"),
    (with_sources(a="x" * 5000), 413, "bytes"),
    (with_sources(**{"../a": "1"}), 422, "'..'"),
    (with_sources({"path": "secret.py"}), 422, "content"),  # no file of the server replaces it
]


async def test_what_cannot_be_judged_is_refused_with_the_reason(site, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.py").write_text("hush = 1\n")
    (tmp_path / "solution").touch()
    async with site.serve(limits=ServeLimits(sources=3, source_bytes=4000)) as client:
        for body, status, words in REFUSED:
            answer = await client.post("/evaluate", content=body if isinstance(body, bytes) else json.dumps(body))
            assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text
            assert "hush" not in answer.text
        assert client.engine.asked == []


NONE = "0" * 32


LACKING = [
    ("GET", f"/tasks/{NONE}", None, 404),
    ("DELETE", f"/tasks/{NONE}", None, 404),
    ("GET", f"/tasks/{NONE}/events", None, 404),
    ("GET", f"/tasks/{NONE}?timeout=nan", None, 422),
    ("POST", "/tasks/batch", {"task_ids": [1]}, 422),
    ("POST", "/tasks/batch", {"task_ids": [], "timeout": -1}, 422),
    ("POST", "/tasks/batch", {"task_ids": [NONE]}, 404),
    ("POST", "/tasks/batch", {"task_ids": [NONE] * 1001}, 422),
]


async def test_what_is_not_there_or_cannot_be_asked_is_said_so(site):
    async with site.serve() as client:
        for method, path, body, status in LACKING:
            assert (await client.request(method, path, json=body)).status_code == status, path


async def test_metrics_can_be_parsed_and_count_and_health_lists_devices(site):
    async with site.serve() as client:
        await wait_for(client, await submit(client))
        answer = await client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
        found = dict(SAMPLE.fullmatch(line).groups() for line in lines)
        (device,) = client.engine.state().devices
        expected = {
            'tasks_total{status="completed"}': 1,
            'jobs_total{status="PASSED"}': 2,
            f'device_up{{device="cpu",hardware="{device.hardware}"}}': 1,
            'device_jobs_total{device="cpu"}': 2,
            "job_seconds_count": 2,
            "job_seconds_sum": 1.2,
            'job_seconds_bucket{le="+Inf"}': 2,
        }
        assert {name: float(found[name]) for name in expected} == expected
        assert {"uptime_seconds", "queue_jobs", "verdicts_per_second"} < found.keys()
        health = (await client.get("/health")).json()
        assert (health["status"], health["queue_size"], health["workers"][0]["hardware"]) == ("ok", 0, device.hardware)


async def test_docs_make_no_request_and_every_answer_has_the_id_in_the_log(site, caplog):
    async with site.serve() as client:
        with caplog.at_level("INFO", logger="flashinfer_bench.serve"):
            page = await client.get("/docs")
        assert page.headers["content-type"].startswith("text/plain")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert {"GET /health", "POST /evaluate", "GET /tasks/{task_id}"} < set(page.text.splitlines())
        (line,) = [record.getMessage() for record in caplog.records if "GET /docs" in record.getMessage()]
        assert page.headers["x-request-id"] in line


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        (f"{TOKEN}\n", 0o600, None),
        (TOKEN, 0o640, "chmod 600"),
        (TOKEN, 0o602, "chmod 600"),
        ("short", 0o600, "16 or more plain"),
        ("with a space inside it", 0o600, "16 or more plain"),
        ("ünprintable-and-long", 0o600, "16 or more plain"),
        (None, 0o600, "cannot be read"),
    ],
)
def test_a_token_is_a_secret_of_one_user(tmp_path, text, mode, words):
    path = tmp_path / "token"
    if text is None:
        os.mkfifo(path, mode)
    else:
        path.write_text(text)
        path.chmod(mode)
    if words is None:
        assert read_token(path) == TOKEN
    else:
        with pytest.raises(ConfigError, match=words):
            read_token(path)


def test_an_address_that_others_reach_needs_a_token():
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        Address(host).check()
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.com", ""):
        with pytest.raises(ConfigError, match="--token-file"):
            Address(host).check()
        Address(host, token=TOKEN).check()


def test_an_address_that_cannot_be_used_is_a_fault():
    with Address(port=0).listen() as first, pytest.raises(Fault, match=r"cannot listen on 127\.0\.0\.1"):
        Address(port=first.getsockname()[1]).listen()
    with pytest.raises(ConfigError, match="--port 65536"):
        Address(port=1 << 16).check()


def test_tasks_lie_beside_the_set_or_in_the_cache(tmp_path, monkeypatch):
    trace_set = TraceSet.from_path(write_set(tmp_path / "set"))
    assert choose_home(trace_set, tmp_path / "cache") == (tmp_path / "set" / ".serve", tmp_path / "set")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    folder, records = choose_home(trace_set, tmp_path / "cache")
    assert (folder, folder.parent) == (records, tmp_path / "cache" / "serve")
