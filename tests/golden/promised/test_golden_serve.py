"""A server session: submitted solutions, their tasks and traces, what is refused, and how it ends.

Spec: spec/compat.md (5: "a server for agents"); docs/serve.md (all), docs/migration.md ("The server"), docs/engine.md.
"""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.error
import urllib.request
from uuid import uuid4

import pytest

from tests.golden.face import (
    MARK,
    QUICK,
    Face,
    SmallSet,
    assert_has,
    is_noise,
    make_solution,
    marked_processes,
    read_traces,
    spec,
    wait_until,
    write_json,
)

if not os.environ.get("CI"):
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    pytest.importorskip("httpx")
pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(600)]
RIGHT = "def run(x):\n    return x * 2\n"
WRONG = "def run(x):\n    return x * 3\n"
BROKEN = "raise ValueError('too early')\n"
TOKEN = "a-token-of-sixteen-characters-or-more"


class Server:
    """`serve` of a set of one definition, from its first line to its last."""

    def __init__(self, folder, cache):
        self.small = SmallSet(folder / "set")
        tensor = spec(["n"], "float32")
        self.small.definition("double", RIGHT, {"x": tensor}, {"y": tensor})
        for uuid in ("w1", "w2"):
            self.small.workload("double", uuid)
        self.token_file = folder / "token"
        self.token_file.write_text(TOKEN)
        self.token_file.chmod(0o600)
        self.mark = uuid4().hex
        self.here = Face(cache, folder, **{MARK: self.mark})
        flags = ("--port", "0", "--token-file", self.token_file, *QUICK)
        self.process = self.here.start("serve", "--local", self.small.root, *flags)
        said = []
        for line in self.process.stderr:
            said.append(line)
            if found := re.search(r"serving on (http://127\.0\.0\.1:\d+)", line):
                self.url = found[1]
                return
        self.process.communicate()
        raise AssertionError("".join(said))

    def ask(self, path, body=None, *, token=TOKEN, method=None, **headers):
        """Return the code and the JSON (or text) of an answer."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        request.add_header("Content-Type", "application/json")
        for name, value in headers.items():
            request.add_header(name, value)
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                text, code = answer.read().decode(), answer.status
        except urllib.error.HTTPError as error:
            with error:
                text, code = error.read().decode(), error.code
        try:
            return code, json.loads(text)
        except ValueError:
            return code, text

    def wait(self, task):
        """Return a task when it is over."""
        found = {}
        wait_until(
            lambda: (
                found.update(self.ask(f"/tasks/{task}?timeout=60")[1]) or found["status"] not in ("pending", "running")
            ),
            400,
        )
        return found


@pytest.fixture(scope="module")
def server(tmp_path_factory, shared_cache):
    """A server, which drains at SIGTERM and leaves no process."""
    server = Server(tmp_path_factory.mktemp("serve"), shared_cache)
    yield server
    server.process.send_signal(signal.SIGTERM)
    try:
        server.process.communicate(timeout=120)
    finally:
        if server.process.poll() is None:
            os.killpg(server.process.pid, signal.SIGKILL)
    assert server.process.returncode == 0
    wait_until(lambda: not marked_processes(server.mark), 30)


@pytest.fixture(scope="module")
def tasks(server):
    """Three solutions, submitted at once; each when it is over."""
    ids = {}
    for name, source in {"right": RIGHT, "wrong": WRONG, "broken": BROKEN}.items():
        code, answer = server.ask("/evaluate", {"solution": make_solution("double", name, source)})
        assert code in (200, 202), answer
        assert_has(answer, "task_id normalized_solution_name")
        assert answer["normalized_solution_name"].startswith(name)
        ids[name] = answer["task_id"]
    return {name: server.wait(task) for name, task in ids.items()}


def test_a_task_is_completed_when_each_workload_has_a_verdict(tasks):
    for name, status in {"right": "PASSED", "wrong": "INCORRECT_NUMERICAL", "broken": "COMPILE_ERROR"}.items():
        task = tasks[name]
        assert_has(task, "task_id status definition solution traces")
        assert (task["status"], task["definition"], len(task["traces"])) == ("completed", "double", 2)
        verdicts = [{"status": t["evaluation"]["status"], "reason": t["evaluation"]["log"]} for t in task["traces"]]
        assert {verdict["status"] for verdict in verdicts if not is_noise(verdict)} <= {status}


def test_verdicts_are_lines_of_the_set_and_name_their_task(server, tasks):
    traces = [
        (trace["solution"], trace["evaluation"]["extra"]["run"]["task"]) for trace in read_traces(server.small.root)
    ]
    wanted = {task["solution"]: task["task_id"] for task in tasks.values()}
    assert {(name, task) for name, task in traces if name in wanted} == set(wanted.items())


def test_routes_answer_what_the_set_has(server, tasks):
    assert server.ask("/health", token=None)[1].keys() == {"status"}
    health = server.ask("/health")[1]
    assert_has(health, "status workers queue_size")
    assert_has(health["workers"][0], "device healthy hardware condition")
    assert "double" in json.dumps(server.ask("/definitions")[1])
    assert server.ask("/definitions/double")[1]["op_type"] == "golden"
    assert {"w1", "w2"} == set(re.findall(r"w[12]", json.dumps(server.ask("/definitions/double/workloads")[1])))
    assert server.ask("/workloads/w1")[0] == 200
    batch = server.ask("/tasks/batch", {"task_ids": [tasks["right"]["task_id"]], "timeout": 1})[1]
    assert [task["status"] for task in batch["tasks"]] == ["completed"]
    assert len(server.ask("/tasks")[1]["tasks"]) >= 3
    assert "# TYPE" in server.ask("/metrics")[1]
    routes = set(server.ask("/openapi.json")[1]["paths"])
    documented = {"/evaluate", "/tasks/{task_id}", "/tasks/batch", "/tasks", "/health", "/definitions", "/shutdown"}
    assert {re.sub(r"\{\w+\}", "{}", path) for path in documented} <= {
        re.sub(r"\{\w+\}", "{}", path) for path in routes
    }
    assert server.ask("/")[0] == 200


def test_events_are_told_as_they_come_and_end(server, tasks):
    text = server.ask(f"/tasks/{tasks['wrong']['task_id']}/events")[1]
    assert text.count("event: verdict") == 2
    assert text.count("event: end") == 1


@pytest.mark.parametrize(
    ("code", "path", "more"),
    [
        (401, "/definitions", {"token": None}),
        (401, "/definitions", {"token": "another-token-of-about-the-same-length"}),
        (403, "/definitions", {"Origin": "http://example.com"}),
        (403, "/definitions", {"Host": "example.com"}),
        (404, "/definitions/nothing", {}),
        (404, "/workloads/nothing", {}),
        (404, "/tasks/nothing", {}),
        (400, "/evaluate", {"body": b"no JSON"}),
        (422, "/evaluate", {"body": {"solution": {"name": "half"}}}),
        (404, "/evaluate", {"body": {"solution": make_solution("nothing", "right", RIGHT)}}),
    ],
)
def test_what_is_refused(server, code, path, more):
    found, answer = server.ask(path, **more)
    assert found in (401, 403) if code in (401, 403) else found == code, (found, answer)


def test_the_client_submits_waits_and_cancels(server, tasks):
    from flashinfer_bench import Solution
    from flashinfer_bench.client import Client

    solution = Solution.model_validate(make_solution("double", "by_client", RIGHT + "# client\n"))
    with Client(server.url, TOKEN, submitter="golden") as client:
        assert client.health()["status"]
        (trace,) = client.evaluate(solution, ["w1"])
        assert (trace.workload.uuid, trace.solution.startswith("by_client")) == ("w1", True)
        first = client.submit(solution, priority=1)
        assert [event["event"] for event in client.events(first)][-1] == "end"
        (report,) = client.batch([first], timeout_s=60)
        assert (report.status, len(report.traces)) == ("completed", 2)
        assert client.cancel(first).status in ("completed", "cancelled")


def test_submit_prints_what_run_prints_and_has_its_exit_codes(server, tasks):
    for name, source, code in (("right", RIGHT, 0), ("wrong", WRONG, 1)):
        path = write_json(server.here.folder / f"{name}.json", make_solution("double", name, source + "# submit\n"))
        words = (
            "submit",
            path,
            "--server",
            server.url,
            "--token-file",
            server.token_file,
            "--require-passed",
            "--json",
        )
        done = server.here(*words)
        if not any(is_noise(job) for job in done.json["jobs"]):
            assert done.code == code, done
        assert_has(done.json, "jobs counts")
        assert {job["workload"] for job in done.json["jobs"]} == {"w1", "w2"}
    top = server.here("top", "--server", server.url, "--token-file", server.token_file, "--once", "--json")
    assert (top.code, isinstance(top.json, dict)) == (0, True)


def test_a_second_server_of_the_set_is_refused(server):
    done = server.here("serve", "--local", server.small.root, "--port", "0", "--token-file", server.token_file)
    assert (done.code in (1, 2), "serving on" in done.told) == (True, False), done


def test_another_address_needs_a_token(server, tmp_path):
    done = server.here("serve", "--local", server.small.root, "--port", "0", "--host", "0.0.0.0")
    assert (done.code, "token" in done.text) == (2, True), done
