"""`submit`, `top` and `serve` at the command line, with a server that is played."""

import json
import re
from argparse import Namespace
from importlib.util import find_spec

import pytest

from flashinfer_bench.cli.main import cli
from flashinfer_bench.cli.resident import serve, submit, top
from flashinfer_bench.client import Client
from tests.kit import make_definition, make_solution, make_trace, make_workload

httpx = pytest.importorskip("httpx")
ID = "1" * 32
DEVICE = {"run": {"device": {"kind": "cuda", "index": 1, "uuid": "GPU-1"}}}
TRACE = make_trace(solution="kernel_12345678", extra=DEVICE)
TASK = {"task_id": ID, "status": "completed", "definition": "double", "solution": "kernel_12345678"}
METRICS = r"""
# TYPE flashinfer_bench_tasks gauge
flashinfer_bench_uptime_seconds 75.5
flashinfer_bench_queue_jobs 12
flashinfer_bench_verdicts_per_second 3.25
flashinfer_bench_tasks{status="running"} 1
flashinfer_bench_tasks_total{status="completed"} 40
flashinfer_bench_jobs_total{status="PASSED"} 80
flashinfer_bench_job_seconds_sum 20
flashinfer_bench_job_seconds_count 80
flashinfer_bench_device_up{device="cuda:0",hardware="a \"GPU\""} 1
flashinfer_bench_device_condition{device="cuda:0",condition="working"} 1
flashinfer_bench_device_jobs_total{device="cuda:0"} 80
flashinfer_bench_device_job{device="cuda:0",definition="double",solution="kernel",workload="w0"} 1
another_metric 5
"""


def play(**task):
    """Return a factory of clients whose server has one task."""
    asked = []

    def answer(request):
        asked.append((request.method, request.url.path))
        body = json.loads(request.content) if request.content else {}
        match request.url.path:
            case "/evaluate":
                assert body["solution"]["name"] == "kernel"
                return httpx.Response(200, json={"task_id": ID, "normalized_solution_name": "kernel_12345678"})
            case "/definitions/double":
                return httpx.Response(200, json=make_definition().to_dict())
            case "/definitions/double/workloads":
                return httpx.Response(200, json=[make_workload(uuid).to_dict() for uuid in ("w0", "w1")])
            case "/metrics":
                return httpx.Response(200, text=METRICS)
            case "/tasks":
                return httpx.Response(200, json={"tasks": [{**TASK, "status": "running"}, TASK]})
        assert request.url.path == f"/tasks/{ID}"
        if task.get("interrupts") and request.method == "GET":
            raise KeyboardInterrupt
        return httpx.Response(200, json={**TASK, **task})

    def make_client(url, token, **others):
        return Client(url, token, transport=httpx.MockTransport(answer), **others)

    return make_client, asked


def run_submit(tmp_path, make_client, **given):
    file = tmp_path / "kernel.json"
    file.write_text(make_solution("kernel").to_json())
    usual = {"solution": str(file), "server": "http://server", "token_file": None, "priority": 0, "submitter": None}
    usual |= {
        "confirm": "if_best",
        "no_wait": False,
        "require_passed": False,
        "json": False,
        "quiet": False,
        "workloads": ["w0"],
    }
    return submit.execute(Namespace(**{**usual, **given}), make_client=make_client)


def test_submit_prints_what_run_prints(tmp_path, capsys):
    make_client, _ = play(traces=[TRACE.to_dict()])
    assert run_submit(tmp_path, make_client) == 0
    out, err = capsys.readouterr()
    assert "kernel_12345678" in out
    assert re.search(r"1 job in \d+:\d\d: 1 PASSED", out)
    assert f"task {ID} at http://server" in err


def test_submit_prints_the_document_of_run_as_json(tmp_path, capsys):
    make_client, _ = play(traces=[TRACE.to_dict()])
    assert run_submit(tmp_path, make_client, json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["counts"], document["task_id"], document["faults"]) == ({"PASSED": 1}, ID, [])
    assert document["devices"] == [{"label": "cuda:1", "name": "test device", "uuid": "GPU-1"}]


def test_a_job_without_a_verdict_is_a_failure(tmp_path, capsys):
    make_client, _ = play(status="failed", error="the device was lost", traces=[TRACE.to_dict()])
    assert run_submit(tmp_path, make_client, workloads=["w0", "w1"]) == 1
    out = capsys.readouterr().out
    assert "the device was lost" in out
    assert "1 PASSED, 1 without a verdict" in out


def test_a_verdict_that_is_not_passed_fails_only_where_that_is_asked_for(tmp_path):
    wrong = make_trace(solution="kernel_12345678", status="INCORRECT_NUMERICAL")
    make_client, _ = play(traces=[wrong.to_dict()])
    assert run_submit(tmp_path, make_client) == 0
    assert run_submit(tmp_path, make_client, require_passed=True) == 1


def test_ctrl_c_cancels_the_task(tmp_path, capsys):
    make_client, asked = play(interrupts=True)
    assert run_submit(tmp_path, make_client) == 130
    assert asked[-1] == ("DELETE", f"/tasks/{ID}")
    assert "cancelled" in capsys.readouterr().err


def test_no_wait_prints_the_task(tmp_path, capsys):
    make_client, asked = play()
    assert run_submit(tmp_path, make_client, no_wait=True) == 0
    assert (capsys.readouterr().out, len(asked)) == (f"{ID}\n", 1)


def run_top(make_client, **given):
    usual = {"server": "http://server", "token_file": None, "once": True, "every": 0.0, "json": False}
    return top.execute(Namespace(**{**usual, **given}), make_client=make_client)


def test_top_shows_devices_queue_rate_and_open_tasks(capsys):
    make_client, _ = play()
    assert run_top(make_client) == 0
    out = capsys.readouterr().out
    assert "up 1:16; 12 jobs wait; 3.2 verdicts a second, 0.25 s a job" in out
    assert "tasks: 1 running, 40 completed" in out
    assert 'cuda:0  a "GPU"   working    80  kernel on w0' in out
    assert out.count("11111111") == 1


def test_top_as_json_has_the_same(capsys):
    make_client, _ = play()
    assert run_top(make_client, json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["queue_jobs"], document["jobs"], document["seconds_a_job"]) == (12, {"PASSED": 80}, 0.25)
    assert document["devices"][0]["job"] == "kernel on w0"
    assert [task["task_id"] for task in document["open_tasks"]] == [ID]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["serve", "--local", ".", "--host", "0.0.0.0"], "a token is needed: --token-file FILE"),
        (["serve", "--local", ".", "--token-file", "/missing"], "--token-file: /missing cannot be read"),
        (["serve", "--local", ".", "--max-tasks", "0"], "a number above 0"),
        (["serve", "--local", "/missing"], "/missing"),
        (["submit", "/missing.json"], "/missing.json"),
        (["submit", "x.json", "--server", "localhost:8000", "--quiet"], "no URL of a server"),
    ],
)
def test_misuse_is_said_before_anything_is_started(argv, words, capsys):
    assert cli(argv) == 2
    assert words in capsys.readouterr().err


def test_without_its_extra_serve_says_which_one(monkeypatch, capsys):
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == "uvicorn" else find_spec(name))
    assert cli(["serve", "--local", "."]) == 2
    assert "serve needs uvicorn: pip install 'flashinfer-bench[serve]'" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["submit", "x.json"], ["top", "--once"]])
def test_without_their_extra_submit_and_top_say_which_one(argv, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "httpx", None)
    assert cli(argv) == 2
    assert "flashinfer-bench[client]" in capsys.readouterr().err
