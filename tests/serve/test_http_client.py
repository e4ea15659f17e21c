"""The client and its commands: their requests, retries, and handling of answers."""

import json
import re
import sys
import time
from types import SimpleNamespace

import pytest

from flashinfer_bench.cli.main import cli
from flashinfer_bench.client import Client, RequestRefused, ServerFault
from tests.kit import make_definition, make_solution, make_trace, make_workload

httpx = pytest.importorskip("httpx")
ID = "1" * 32
DEVICE = {"run": {"device": {"kind": "cuda", "index": 1, "uuid": "GPU-1"}}}
TRACE = make_trace(solution="kernel_12345678", extra=DEVICE)
WRONG = make_trace(solution="kernel_12345678", status="INCORRECT_NUMERICAL")
TASK = {"task_id": ID, "status": "completed", "definition": "double", "solution": "kernel_12345678"}
EVENT = 'event: verdict\ndata: {"event": "verdict", "workload_uuid": "w0", "status": "PASSED"}\n\n'
DONE = {**TASK, "traces": [TRACE.to_dict()]}
ACCEPTED = {"task_id": ID, "normalized_solution_name": "kernel_12345678"}
REFUSED = httpx.ConnectError("refused")
UUID = "00000001-cc60-59c5-a763-d17742b2b07a"
WORKER = {"device": "cuda:0", "healthy": True, "hardware": 'a "GPU"', "condition": "working"}
METRICS = r"""
# TYPE flashinfer_bench_tasks gauge
flashinfer_bench_verdicts_per_second 3.25
flashinfer_bench_jobs_total{status="PASSED"} 80
flashinfer_bench_jobs_total{status="LEFT_OUT"} 3
flashinfer_bench_device_job{device="cuda:0",definition="double",solution="ker\"nel",workload="w0"} 1
flashinfer_bench_device_job_seconds{device="cuda:0"} 12.3
another_metric 5
"""


def answer(status, document, **headers):
    text = document if isinstance(document, str) else json.dumps(document)
    headers = {key.replace("_", "-"): value for key, value in {"X_Request_ID": "1", **headers}.items()}
    return httpx.Response(status, text=text, headers=headers)


class Answers:
    """Returns prepared answers, one for each request: a response, its JSON, or an exception to raise."""

    def __init__(self, *answers):
        self.answers, self.requests = list(answers), []

    def __call__(self, request):
        self.requests.append(request)
        given = self.answers.pop(0)
        if isinstance(given, BaseException):
            raise given
        return given if isinstance(given, httpx.Response) else answer(200, given)

    def client(self, **parts):
        client = Client("http://server", transport=httpx.MockTransport(self), **parts)
        client.pauses = []
        client._sleep = client.pauses.append
        return client


def test_an_unanswered_submission_is_sent_again_with_its_key():
    answers = Answers(REFUSED, httpx.ReadTimeout("slow"), ACCEPTED)
    client = answers.client(submitter="me", token="secret")
    assert client.submit(make_solution("kernel"), ["w0"], priority=2, confirm="never") == ID
    assert len({request.headers["idempotency-key"] for request in answers.requests}) == 1
    assert {request.headers["authorization"] for request in answers.requests} == {"Bearer secret"}
    body = json.loads(answers.requests[-1].content)
    assert body.items() >= {"submitter": "me", "priority": 2, "workload_uuids": ["w0"], "confirm": "never"}.items()
    assert 0 < client.pauses[0] <= 0.2 < 0.4 >= client.pauses[1]


def test_a_server_that_asks_to_come_again_is_asked_again_then():
    busy = (answer(status, {"detail": "busy"}, retry_after="7") for status in (429, 503))
    client = Answers(*busy, ACCEPTED).client()
    assert (client.submit(make_solution()), client.pauses) == (ID, [7.0, 7.0])


@pytest.mark.parametrize(
    ("given", "retry_s", "error", "words"),
    [
        (REFUSED, 0, ServerFault, "does not answer: refused"),
        (answer(500, "Internal Server Error"), 0, ServerFault, "Internal Server Error"),
        (httpx.Response(200, text="<html>"), 60, ServerFault, "another program answers"),
        (answer(404, {"detail": "no such task"}), 60, RequestRefused, "no such task"),
        ({**TASK, "status": "failed", "error": "device lost"}, 0, ServerFault, "failed: device lost"),
    ],
)
def test_tries_end_and_a_refusal_is_not_tried_again(given, retry_s, error, words):
    client = Answers(ACCEPTED, given).client(retry_s=retry_s)
    with pytest.raises(error, match=words):
        client.evaluate(make_solution())
    assert client.pauses == []


def test_a_server_that_never_answered_is_given_up_early_with_the_next_step():
    client = Answers(*[REFUSED] * 2, TASK, REFUSED, TASK).client(first_retry_s=0)
    for _ in range(2):
        with pytest.raises(ServerFault, match="`flashinfer-bench serve` starts a server"):
            client.task(ID)
    assert (client.task(ID).is_over, client.task(ID).is_over, len(client.pauses)) == (True, True, 1)


def test_waiting_asks_until_the_task_is_over_or_the_time_is(monkeypatch):
    still = SimpleNamespace(monotonic=lambda: 0.0, sleep=time.sleep)
    monkeypatch.setattr("flashinfer_bench.client.time", still)  # a busy machine answers late
    client = Answers({**TASK, "status": "pending"}, {**TASK, "status": "running"}, DONE).client()
    report = client.wait(ID)
    assert (report.is_over, report.traces, client.pauses) == (True, (TRACE,), [0.2, 0.2])
    with pytest.raises(TimeoutError, match="is running after 0 s"):
        Answers({**TASK, "status": "running"}).client().wait(ID, 0)


def test_events_are_read_as_they_stream_and_names_are_quoted_in_paths():
    text = ': waiting\n\nevent: verdict\ndata: {"event": "verdict"}\n\nevent: end\ndata: {"event": "end"}\n\n'
    assert [event["event"] for event in Answers(answer(200, text)).client().events(ID)] == ["verdict", "end"]
    with pytest.raises(RequestRefused):
        list(Answers(answer(404, {"detail": "no such task"})).client().events(ID))
    answers = Answers([])
    assert answers.client().workloads("a/b?c") == []
    assert answers.requests[0].url.raw_path == b"/definitions/a%2Fb%3Fc/workloads"


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run `submit` or `top` on a server with one task; return exit code, stdout, stderr, and the requests."""
    real = httpx.Client

    def go(*words, **task):
        asked, sent, queued = [], [], task.pop("queued", [])

        def serve(request):
            asked.append((request.method, request.url.path))
            sent.append(request.content)
            if task.get("interrupts") and request.method == "GET" and "/tasks" in request.url.path:
                raise KeyboardInterrupt
            if queued and request.url.path == f"/tasks/{ID}":
                return answer(200, {**TASK, "status": "pending", "tasks_ahead": queued.pop()})
            known = {
                "/evaluate": ACCEPTED,
                "/definitions": [{"name": "double"}],
                "/definitions/double": make_definition().to_dict(),
                "/definitions/double/workloads": [make_workload(uuid).to_dict() for uuid in ("w0", "w1", UUID)],
                "/metrics": METRICS,
                "/health": {"status": "ok", "workers": [WORKER], "queue_size": 12},
                "/tasks": {"tasks": [{**TASK, "status": "running", "submitter": "ann"}, TASK]},
                f"/tasks/{ID}": {**TASK, **task},
            }
            return answer(200, known[request.url.path])

        monkeypatch.setattr(httpx, "Client", lambda **parts: real(**{**parts, "transport": httpx.MockTransport(serve)}))
        file = tmp_path / "kernel.json"
        file.write_text(make_solution("kernel").to_json())
        code = cli([str(file) if word == "FILE" else word for word in (*words, "--server", "http://server")])
        go.posted = next((json.loads(content) for content in sent if content), None)
        return (code, *capsys.readouterr(), asked)

    return go


WORKLOADS = "/definitions/double/workloads"
UNKNOWN = "error: --workloads: double has no workload w9 on the server; it has w0, w1, "
SUBMIT = ("submit", "FILE", "--workloads")


def test_submit_prints_the_output_of_run_and_fails_without_a_verdict(command):
    lost = {"status": "failed", "error": "the device was lost", "traces": [TRACE.to_dict()]}
    code, out, err, _ = command(*SUBMIT, "w0", "w1", **lost)
    assert (code, "the device was lost" in out, f"task {ID} at http://server" in err) == (1, True, True)
    assert re.search(r"2 jobs in \d+:\d\d: 1 PASSED, 1 without a verdict", out)
    document = json.loads(command(*SUBMIT, "w0", "--json", traces=[TRACE.to_dict()])[1])
    assert document["devices"] == [{"label": "cuda:1", "name": "test device", "uuid": "GPU-1"}]
    assert command(*SUBMIT, "w0", traces=[WRONG.to_dict()])[0] == 0


def test_submit_shows_the_place_in_the_queue_and_each_verdict(command, monkeypatch):
    monkeypatch.setattr("flashinfer_bench.cli.submit.POLL_S", 0)
    verdict = "[1/1] double / kernel_12345678 / w0 on cuda:1: PASSED 1.00 ms, 2.00x"
    for flags, lines in (([], ["1 open task ahead", "next", verdict]), (["--quiet"], [])):
        code, _, err, _ = command(*SUBMIT, "w0", *flags, queued=[0, 1, 1, 1], traces=[TRACE.to_dict()])
        shown = [line.removeprefix("note: waiting in the queue: ") for line in err.splitlines()]
        assert (code, shown[1:]) == (0, lines)


def test_ctrl_c_cancels_the_task_and_no_wait_prints_it(command):
    code, _, err, asked = command(*SUBMIT, "w0", interrupts=True)
    assert (code, asked[-1], "cancelled" in err) == (130, ("DELETE", f"/tasks/{ID}"), True)
    assert command(*SUBMIT, "w0", "--no-wait") == (0, f"{ID}\n", "", [("GET", WORKLOADS), ("POST", "/evaluate")])
    assert command(*SUBMIT, "w0", "n=8", "--no-wait")[0] == 0
    assert command.posted["workload_uuids"] == ["w0", "w1", UUID]
    code, _, err, _ = command(*SUBMIT, "0000", "w9", "--no-wait")
    assert (code, err.startswith(UNKNOWN)) == (2, True)


@pytest.mark.parametrize(
    ("name", "flags", "entry", "code"),
    [
        ("mine.py", [], "mine.py::run", 0),
        ("mine.py", ["--entry", "other"], "mine.py::other", 0),
        ("mine.py", ["--language", "nope"], None, 2),
        ("missing.py", [], None, 2),
    ],
)
def test_submit_takes_a_source_as_run_does(command, tmp_path, name, flags, entry, code):
    (tmp_path / "mine.py").write_text("def run(x):\n    return x + x\n\n\ndef other(x):\n    return x * 2\n")
    assert command("submit", str(tmp_path / name), "--no-wait", *flags)[0] == code
    if entry is not None:
        solution = command.posted["solution"]
        assert (solution["definition"], solution["author"], solution["spec"]["entry_point"]) == ("double", "me", entry)


def test_top_shows_devices_queue_rate_and_open_tasks(command):
    code, out, _, _ = command("top", "--once")
    assert (code, out.count(ID)) == (0, 1)
    assert "1 open task, 12 jobs in the queue; 3.2 verdicts per second in the last minute; " in out
    assert "; since the start: 80 PASSED, 3 not judged\n" in out
    assert 'cuda:0  a "GPU"   working  ker"nel on w0       12' in out
    assert "kernel_12345678  ann\n" in out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["serve", "--local", ".", "--token-file", "/missing"], "--token-file: /missing cannot be read"),
        (["serve", "--local", ".", "--max-tasks", "0"], "a number above 0"),
        (["submit", "/missing.json"], "/missing.json"),
        (["submit", "x.json", "--server", "localhost:8000", "--quiet"], "no URL of a server"),
        (["submit", "x.json", "--confirm", "maybe"], "--confirm"),
    ],
)
def test_misuse_is_said_before_anything_is_started(argv, words, capsys):
    assert cli(argv) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "lacks", "extra"),
    [
        (["serve", "--local", "."], "uvicorn", "pip install -e '.[serve]'"),
        (["submit", "x.json"], "httpx", "pip install -e '.[client]'"),
        (["top", "--once"], "httpx", "pip install -e '.[client]'"),
    ],
)
def test_without_its_extra_a_command_says_which_one(argv, lacks, extra, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, lacks, None)
    assert cli(argv) == 2
    assert extra in capsys.readouterr().err
