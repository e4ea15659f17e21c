"""`inspect ncu` and `inspect sanitizer` with programs in the tools' place, and what is read of the tools' words.

The real tools and a GPU are tried by `python -m benchmarks.repeatability --rows ncu sanitizer`.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.machine import discover_devices
from flashinfer_bench.cli.main import cli
from flashinfer_bench.data import save_json_file
from flashinfer_bench.errors import FlashInferBenchError
from flashinfer_bench.examine.inspect import look
from flashinfer_bench.examine.inspect.look import Inspected, StepDone
from flashinfer_bench.examine.inspect.ncu import parse_raw, plan_ncu, read_profile
from flashinfer_bench.examine.inspect.sanitizer import describe_finding, parse_findings, read_findings
from flashinfer_bench.examine.inspect.session import run_program
from flashinfer_bench.sandbox.namespaces import has_own_network
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set
from tests.kit.vendor_tools import CSV, write_tools
from tests.kit.workers import running_template, worker_order

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(sys.platform != "linux", reason="inspect forks programs as Linux does"),
]
RAISES = "def run(x):\n    raise ValueError('not today')\n"
MEMCHECK = """
========= Invalid __global__ write of size 4 bytes
=========     at twice(const float *, float *, long)+0x80 in /cache/sources/kernels/main.cu:7
=========     by thread (0,0,0) in block (1,0,0)
=========     Address 0x7f0000000200 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f0000000000 of size 512 bytes
=========
========= Invalid __global__ write of size 4 bytes
=========     at twice(const float *, float *, long)+0x80 in /cache/sources/kernels/main.cu:7
=========     by thread (1,0,0) in block (1,0,0)
=========
========= ERROR SUMMARY: 2 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at race(float *)+0x70 in /cache/main.cu:12
=========     and Read access at race(float *)+0x90 in /cache/main.cu:13 [4 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
OLDER = """========= Uninitialized __global__ memory read of size 4 bytes
=========     at 0x00000070 in /cache/main.cu:12:sum(float *)
=========     by thread (3,0,0) in block (0,0,0)
========= Barrier error detected. Divergent thread(s) in block
=========     at wait(float *)+0x40
"""


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))


@pytest.fixture
def _tools(monkeypatch, tmp_path):
    """Programs in the tools' place, on PATH; they need no GPU."""
    folder = write_tools(tmp_path / "programs", said=MEMCHECK)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(look, "find_gpu", lambda name: discover_devices(["cpu"])[0])


@pytest.fixture
def root(tmp_path):
    solutions = [
        make_solution(sources={"kernels/main.cu": "", "main.py": "def run(x):\n    return x * 2\n"}),
    ]
    workloads = [make_trace(workload=make_workload(uuid), solution=None) for uuid in ("first-a", "first-b", "other")]
    return write_trace_set(tmp_path / "set", definitions=[make_definition()], solutions=solutions, workloads=workloads)


def words(root, tool, *more, solution="double_python", workload="first-a"):
    local = ["--local", str(root), "--solution", solution, "--workload", workload]
    return ["inspect", tool, *local, *more]


def only_line(capsys):
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.strip().splitlines()
    return line


@pytest.mark.parametrize(("tool", "product"), [("ncu", "Nsight Compute"), ("sanitizer", "compute-sanitizer")])
def test_what_is_missing_on_the_machine_is_one_line(root, monkeypatch, tmp_path, capsys, tool, product):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(look, "USUAL_FOLDERS", ())
    assert cli(words(root, tool)) == 2
    line = only_line(capsys)
    assert ("is not here" in line, product in line) == (True, True)
    assert cli(words(root, tool, f"--{tool}-path", "/nowhere/tool")) == 2
    assert "/nowhere/tool is not here" in only_line(capsys)
    monkeypatch.setenv("PATH", f"{write_tools(tmp_path / 'programs')}:/usr/bin:/bin")
    assert cli(words(root, tool, "--device", "cuda:97")) == 2
    assert "97" in only_line(capsys)
    monkeypatch.setattr(look, "discover_devices", lambda names: discover_devices(["cpu"]))
    assert cli(words(root, tool)) == 2
    assert "needs an NVIDIA GPU" in only_line(capsys)


@pytest.mark.usefixtures("_tools")
@pytest.mark.parametrize(
    ("change", "flags", "told"),
    [
        ({"solution": "double_pyhton"}, (), "no solution 'double_pyhton'; did you mean 'double_python'"),
        ({"workload": "first"}, (), "'first' is the start of several uuids; it has first-a, first-b"),
        ({"workload": "fir"}, (), "the start of a uuid needs 4 characters"),
        ({"workload": "9999"}, (), "no workload '9999'; it has first-a, first-b, other"),
        ({"solution": "nowhere.json"}, (), "nowhere.json"),
        ({"workload": "nowhere.json"}, (), "nowhere.json"),
        ({}, ("--definition", "twice"), "no definition 'twice'"),
        ({}, ("--checks", "memcheck,leaks"), "unknown leaks; known: memcheck, racecheck"),
    ],
)
def test_wrong_names_are_misuse(root, capsys, change, flags, told):
    assert cli(words(root, "sanitizer", *flags, **change)) == 2
    assert told in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("_tools")
def test_a_profile_as_json(root, capsys):
    flags = ["--l2-cache", "warm", "--kernel-name", "regex:tw.*", "--sections", "SourceCounters", "--sandbox", "off"]
    assert cli(words(root, "ncu", *flags, "--format", "json", workload="other")) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["solution"], document["workload"], document["tool"]) == ("double_python", "other", "ncu")
    assert document["duration_us"] == 2.0
    first, second = document["kernels"]
    assert (first["name"], first["grid"], first["dram_tb_per_sec"]) == ("twice(float *, int)", "(2, 1, 1)", 2.0)
    assert (second["name"], second["dram_tb_per_sec"], second["stalls"]) == ('void f<4, "x">(int)', None, [])


@pytest.mark.slow
@pytest.mark.usefixtures("_tools")
def test_findings_as_text_with_file_and_line(root, capsys):
    sandbox = "auto" if has_own_network() else "off"
    assert cli(words(root, "sanitizer", "--checks", "memcheck", "initcheck", "--sandbox", sandbox)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == (
        "memcheck: kernels/main.cu:7: Invalid __global__ write of size 4 bytes in "
        "twice(const float *, float *, long), thread (0,0,0) of block (1,0,0) (2 times)"
    )
    assert lines[2] == "initcheck: nothing found"


@pytest.mark.slow
@pytest.mark.usefixtures("_tools")
@pytest.mark.parametrize(
    ("source", "told"),
    [(RAISES, "the solution failed while ncu looked at it"), (f"{RAISES}run(1)\n", "the solution cannot be imported")],
)
def test_a_solution_that_raises_is_told_with_its_words_and_no_traceback_of_ours(root, tmp_path, capsys, source, told):
    save_json_file(make_solution("raises", source=source), tmp_path / "raises.json")
    assert cli(words(root, "ncu", "--sandbox", "off", solution=str(tmp_path / "raises.json"))) == 1
    errors = capsys.readouterr().err
    assert (told in errors, "ValueError: not today" in errors, "session.py" in errors) == (True, True, False)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_template(tmp_path_factory.mktemp("session") / "run") as socket:
        yield socket


@pytest.mark.parametrize(
    ("script", "text", "words"),
    [
        ("echo said; echo more >&2", "said\nmore\n", ""),
        ("echo said; exit 3", "said\n", "it ended with exit code 3"),
        ("kill -ABRT $$", "", "it was killed by SIGABRT"),
        ("setsid sleep 60 & echo $!; sleep 60", None, "it did not end within 3 s"),
    ],
)
def test_a_program_is_told_and_nothing_of_it_is_left(server, tmp_path, script, text, words):
    order = worker_order(program=["/bin/sh", "-c", script])
    limit_s = 100.0 if text is not None else 3.0
    done = run_program(server, "a step", order, tmp_path / "home", limit_s)
    assert (done.ended, (tmp_path / "home").exists()) == (words, False)
    if text is not None:
        assert done.text == text
    else:
        with pytest.raises(ProcessLookupError):
            os.kill(int(done.text), 0)


def test_the_plan_of_ncu_asks_only_for_metrics_that_the_gpu_has(tmp_path):
    known = {"gpu__time_duration", "sm__throughput"}
    profile = plan_ncu(tmp_path / "ncu", known, l2_cache="warm", kernel_name="k")[0].argv
    given = dict(itertools.pairwise(profile))
    assert given["--metrics"] == "gpu__time_duration.sum,sm__throughput.avg.pct_of_peak_sustained_elapsed"
    assert (given["--cache-control"], given["--kernel-name"], given["--clock-control"]) == ("none", "k", "none")
    assert "gpu__time_duration.sum" in plan_ncu(tmp_path / "ncu")[0].argv


STALLS = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"


def test_units_stalls_and_the_busiest_tensor_pipe_of_a_raw_page():
    cells = {
        "ID": ("", "0"),
        "Kernel Name": ("", "k"),
        "gpu__time_duration.sum": ("us", "1,234.5"),
        "dram__bytes_read.sum": ("Kbyte", "2"),
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": ("%", "10"),
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": ("%", "30"),
        STALLS.format("long_scoreboard"): ("inst", "3"),
        STALLS.format("barrier"): ("inst", "1"),
        STALLS.format("selected"): ("inst", "9"),
    }
    columns = [cells.keys(), [unit for unit, _ in cells.values()], [value for _, value in cells.values()]]
    text = "\n".join(",".join(f'"{cell}"' for cell in row) for row in columns)
    (kernel,) = parse_raw(f"==WARNING== a word\n{text}\nsomething that the solution printed\n")
    assert (kernel["name"], kernel["tensor_percent"], kernel["waves"]) == ("k", 30, None)
    assert (kernel["duration_us"], kernel["dram_read_bytes"]) == pytest.approx((1234.5, 2000))
    shares = [(one["reason"], one["share"]) for one in kernel["stalls"]]
    assert shares == [("long_scoreboard", 0.75), ("barrier", 0.25)]


@pytest.mark.parametrize("text", ["", "no table", '"ID"', '"ID","Kernel Name"\n"",""\n"0"\n', CSV.splitlines()[1]])
def test_a_raw_page_without_kernels_has_none(text):
    assert parse_raw(text) == []


JOB = SimpleNamespace(
    definition=make_definition(), solution=make_solution(sources={"main.py": ""}), workload=make_workload()
)


def called(**step):
    """Return a call with one step, which ended well if nothing else is said."""
    return Inspected(JOB, "a GPU", Path(), [StepDone(**step)])


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ({"text": "==ERROR== ERR_NVGPUCTRPERM", "ended": "it ended with exit code 1"}, "an administrator can allow it"),
        ({"text": "==WARNING== No kernels were profiled."}, "launched no kernel"),
        ({"text": "x", "ended": "it did not end within 5 s"}, "it did not end within 5 s"),
        ({"text": "x", "ended": "it ended with exit code 1", "error": "KeyError: 3"}, "KeyError: 3"),
    ],
)
def test_why_there_is_no_profile_is_told(step, told):
    with pytest.raises(FlashInferBenchError, match=told):
        read_profile(called(name="profile", **step))


@pytest.mark.parametrize(
    ("text", "source", "lines"),
    [
        (
            RACECHECK,
            "main.cu",
            ["memcheck: main.cu:12 and main.cu:13: race between accesses to shared memory in race(float *)"],
        ),
        (
            OLDER,
            "other.cu",
            [
                "memcheck: /cache/main.cu:12: Uninitialized __global__ memory read of size 4 bytes in sum(float *), "
                "thread (3,0,0) of block (0,0,0)",
                "memcheck: in wait(float *): Barrier error detected. Divergent thread(s) in block",
            ],
        ),
        (
            MEMCHECK,
            "kernels/main.cu",
            [
                "memcheck: kernels/main.cu:7: Invalid __global__ write of size 4 bytes in "
                "twice(const float *, float *, long), thread (0,0,0) of block (1,0,0) (2 times)"
            ],
        ),
    ],
    ids=["both places of a race", "an older release", "equal findings are one"],
)
def test_findings_are_read_with_their_places(text, source, lines):
    found = parse_findings("memcheck", text, ["main.cu", source] if source != "other.cu" else [source])
    assert [describe_finding(one) for one in found] == lines
    if text is RACECHECK:
        assert [place["access"] for place in found[0]["places"]] == ["Write", "Read"]


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ({"text": "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors"}, []),
        ({"text": "no word of the tool"}, ["said nothing"]),
        ({"text": "========= Internal Sanitizer Error: no memory"}, ["Internal Sanitizer Error: no memory"]),
        ({"text": "=========", "ended": "it did not end within 5 s"}, ["did not end within 5 s"]),
        ({"text": "=========", "error": "Traceback\nValueError: no"}, ["ValueError: no"]),
        ({"text": MEMCHECK, "ended": "it was killed by SIGABRT"}, []),
    ],
)
def test_a_check_that_did_not_look_is_no_clean_one(step, told):
    problems = read_findings(called(name="memcheck", **step))["problems"]
    assert len(problems) == len(told)
    assert all(words in problem for words, problem in zip(told, problems, strict=True))
