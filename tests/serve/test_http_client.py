"""The client: what it sends, when it tries again, and what it makes of answers."""

import json
import sys

import pytest

from flashinfer_bench.client import Client, RequestRefused, ServerFault
from flashinfer_bench.errors import Misuse
from tests.kit import make_solution, make_trace

httpx = pytest.importorskip("httpx")
TASK = {"task_id": "1" * 32, "status": "completed", "definition": "double", "solution": "kernel_12345678"}


class Answers:
    """Gives prepared answers, one for each request; an exception is raised."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []

    def __call__(self, request):
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self, **parts):
        client = Client("http://server", transport=httpx.MockTransport(self), **parts)
        client.pauses = []
        client._sleep = client.pauses.append
        return client


def ok(document):
    return httpx.Response(200, json=document)


ACCEPTED = ok({"task_id": "1" * 32, "normalized_solution_name": "kernel_12345678"})


def test_a_submission_that_nobody_answered_is_sent_again_under_its_key():
    answers = Answers(httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), ACCEPTED)
    client = answers.client(submitter="me", token="secret")
    assert client.submit(make_solution("kernel"), ["w0"], priority=2, confirm="never") == "1" * 32
    assert len({request.headers["idempotency-key"] for request in answers.requests}) == 1
    assert {request.headers["authorization"] for request in answers.requests} == {"Bearer secret"}
    body = json.loads(answers.requests[-1].content)
    assert body.items() >= {"submitter": "me", "priority": 2, "workload_uuids": ["w0"], "confirm": "never"}.items()
    assert 0 < client.pauses[0] <= 0.2 < 0.4 >= client.pauses[1]


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_asks_to_come_again_is_asked_again_then(status):
    busy = httpx.Response(status, headers={"retry-after": "7"}, json={"detail": "busy"})
    client = Answers(busy, ACCEPTED).client()
    assert client.submit(make_solution()) == "1" * 32
    assert client.pauses == [7.0]


def test_tries_end():
    client = Answers(httpx.ConnectError("refused")).client(retry_s=0)
    with pytest.raises(ServerFault, match="does not answer: refused"):
        client.health()
    client = Answers(httpx.Response(503, json={"detail": "full"})).client(retry_s=0)
    with pytest.raises(ServerFault, match=r"\(503\): full"):
        client.health()


def test_a_refusal_is_not_tried_again():
    client = Answers(httpx.Response(404, json={"detail": "no such task"})).client()
    with pytest.raises(RequestRefused, match="no such task") as caught:
        client.task("x")
    assert (caught.value.status, caught.value.exit_code, client.pauses) == (404, 2, [])


def test_an_answer_that_is_no_json_of_ours_is_shown():
    client = Answers(httpx.Response(500, text="Internal Server Error")).client()
    with pytest.raises(ServerFault, match="Internal Server Error"):
        client.health()


def test_waiting_asks_until_the_task_is_over():
    trace = make_trace()
    done = {**TASK, "traces": [trace.to_dict()]}
    answers = Answers(ok({**TASK, "status": "pending"}), ok({**TASK, "status": "running"}), ok(done))
    report = answers.client().wait("1" * 32)
    assert (report.is_over, report.traces) == (True, (trace,))
    assert [request.url.params["timeout"] for request in answers.requests] == ["30.0"] * 3


def test_waiting_ends_where_the_server_no_longer_waits():
    answers = Answers(*[ok({**TASK, "status": "pending"})] * 3)
    client = answers.client(retry_s=0.0)
    with pytest.raises(ServerFault, match=f"does not wait for task {TASK['task_id']}, which is pending"):
        client.wait("1" * 32)


def test_waiting_ends_with_its_time():
    client = Answers(ok({**TASK, "status": "running"})).client()
    with pytest.raises(TimeoutError, match="is running after 0 s"):
        client.wait("1" * 32, 0)


def test_evaluate_gives_traces_or_says_why_there_are_none():
    trace = make_trace()
    client = Answers(ACCEPTED, ok({**TASK, "traces": [trace.to_dict()]})).client()
    assert client.evaluate(make_solution()) == [trace]
    client = Answers(ACCEPTED, ok({**TASK, "status": "failed", "error": "device lost"})).client()
    with pytest.raises(ServerFault, match="failed: device lost"):
        client.evaluate(make_solution())


def test_events_are_read_as_they_stream():
    text = ': waiting\n\nevent: verdict\ndata: {"event": "verdict"}\n\nevent: end\ndata: {"event": "end"}\n\n'
    client = Answers(httpx.Response(200, text=text)).client()
    assert [event["event"] for event in client.events("1" * 32)] == ["verdict", "end"]
    client = Answers(httpx.Response(404, json={"detail": "no such task"})).client()
    with pytest.raises(RequestRefused):
        list(client.events("1" * 32))


def test_names_are_quoted_in_paths():
    answers = Answers(ok([]))
    assert answers.client().workloads("a/b?c") == []
    assert answers.requests[0].url.raw_path == b"/definitions/a%2Fb%3Fc/workloads"


def test_without_httpx_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(Misuse, match=r"flashinfer-bench\[client\]"):
        Client()
