"""`inspect ncu` and `inspect sanitizer` with programs in the tools' place, and what is read of the tools' words.

The real tools and a GPU are tried by `benchmarks/check_inspect.py`.
"""

from __future__ import annotations

import itertools
import json
import sys
from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.machine import discover_devices
from flashinfer_bench.cli.machine import inspect as command
from flashinfer_bench.cli.main import cli
from flashinfer_bench.errors import FlashInferBenchError
from flashinfer_bench.examine.inspect import inspector, tools
from flashinfer_bench.examine.inspect.ncu import NcuOptions, parse_raw, plan_ncu, read_profile
from flashinfer_bench.examine.inspect.order import Inspected, StepDone
from flashinfer_bench.examine.inspect.sanitizer import CodePlace, find_problems, join_equal, parse_findings
from flashinfer_bench.sandbox.namespaces import has_own_network
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set
from tests.kit.vendor_tools import CSV, write_tools

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
def programs(monkeypatch, tmp_path):
    """Programs in the tools' place, on PATH."""
    folder = write_tools(tmp_path / "programs", said=MEMCHECK)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(tools.find_tool, "__kwdefaults__", {"environment": {"PATH": f"{folder}:/usr/bin:/bin"}})
    return folder


@pytest.fixture
def _cpu_is_a_gpu(monkeypatch):
    """The programs need no GPU."""
    monkeypatch.setattr(command, "find_gpu", lambda name: discover_devices(["cpu"])[0])


@pytest.fixture
def root(tmp_path):
    solutions = [
        make_solution(sources={"kernels/main.cu": "", "main.py": "def run(x):\n    return x * 2\n"}),
        make_solution("raises", source=RAISES),
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
def test_without_the_tool_one_line_says_which_and_where_it_comes_from(root, monkeypatch, capsys, tool, product):
    monkeypatch.setattr(tools.find_tool, "__kwdefaults__", {"environment": {"PATH": "/nowhere"}})
    monkeypatch.setattr(tools, "USUAL_FOLDERS", ())
    assert cli(words(root, tool)) == 2
    line = only_line(capsys)
    assert "is not here" in line
    assert product in line


@pytest.mark.parametrize("tool", ["ncu", "sanitizer"])
def test_a_path_that_leads_to_no_program_is_named(root, capsys, tool):
    assert cli(words(root, tool, f"--{tool}-path", "/nowhere/tool")) == 2
    assert "/nowhere/tool is not here" in only_line(capsys)


@pytest.mark.parametrize("tool", ["ncu", "sanitizer"])
@pytest.mark.usefixtures("programs")
def test_without_a_gpu_one_line_says_so(root, monkeypatch, capsys, tool):
    cpu = discover_devices(["cpu"])
    monkeypatch.setattr(tools, "discover_devices", lambda names: cpu)
    assert cli(words(root, tool)) == 2
    assert "needs an NVIDIA GPU" in only_line(capsys)


@pytest.mark.usefixtures("programs")
def test_a_gpu_that_is_not_there_is_misuse(root, capsys):
    assert cli(words(root, "ncu", "--device", "cuda:97")) == 2
    assert "97" in only_line(capsys)


@pytest.mark.usefixtures("programs", "_cpu_is_a_gpu")
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"solution": "double_pyhton"}, "no solution 'double_pyhton'; did you mean 'double_python'"),
        ({"workload": "first"}, "several workloads of double begin with 'first'"),
        ({"workload": "fir"}, "no workload 'fir'; it has: first-a, first-b, other"),
        ({"solution": "nowhere.json"}, "nowhere.json"),
        ({"workload": "nowhere.json"}, "nowhere.json"),
    ],
)
def test_what_is_not_in_the_set_is_named_with_what_is(root, capsys, change, told):
    assert cli(words(root, "ncu", **change)) == 2
    assert told in only_line(capsys)


def test_a_check_that_nobody_knows_is_told_before_anything_is_looked_for(root, capsys):
    assert cli(words(root, "sanitizer", "--checks", "memcheck,leaks")) == 2
    assert "unknown leaks; known: memcheck, racecheck" in only_line(capsys)


@pytest.mark.slow
@pytest.mark.usefixtures("programs", "_cpu_is_a_gpu")
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
@pytest.mark.usefixtures("programs", "_cpu_is_a_gpu")
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
@pytest.mark.usefixtures("programs", "_cpu_is_a_gpu")
def test_a_solution_that_raises_is_told_with_its_words_and_no_traceback_of_ours(root, capsys):
    assert cli(words(root, "ncu", "--sandbox", "off", solution="raises")) == 1
    errors = capsys.readouterr().err
    assert "the solution failed while ncu looked at it" in errors
    assert "ValueError: not today" in errors
    assert "inspector.py" not in errors


def test_a_tool_gets_no_walls_without_a_network_of_its_own(monkeypatch):
    monkeypatch.setattr(inspector, "has_own_network", lambda: False)
    order = SimpleNamespace(hello=SimpleNamespace(has_walls=True), steps=[None])
    assert "--sandbox off" in inspector.inspect(order).problem


def test_the_plan_of_ncu_asks_only_for_metrics_that_the_gpu_has(tmp_path):
    known = {"gpu__time_duration", "sm__throughput"}
    profile = plan_ncu(tmp_path / "ncu", NcuOptions(cache="warm", kernel_name="k"), known).steps[0].argv
    given = dict(itertools.pairwise(profile))
    assert given["--metrics"] == "gpu__time_duration.sum,sm__throughput.avg.pct_of_peak_sustained_elapsed"
    assert (given["--cache-control"], given["--kernel-name"], given["--clock-control"]) == ("none", "k", "none")
    nothing_known = plan_ncu(tmp_path / "ncu", NcuOptions()).steps[0].argv
    assert "gpu__time_duration.sum" in nothing_known


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
    assert kernel.values["duration_us"] == pytest.approx(1234.5)
    assert kernel.values["tensor_percent"] == 30
    assert kernel.values["dram_read_bytes"] == pytest.approx(2000)
    assert kernel.stalls == [("long_scoreboard", 0.75), ("barrier", 0.25)]
    assert kernel.document()["waves"] is None


@pytest.mark.parametrize("text", ["", "no table", '"ID"', '"ID","Kernel Name"\n"",""\n"0"\n', CSV.splitlines()[1]])
def test_a_raw_page_without_kernels_has_none(text):
    assert list(parse_raw(text)) == []


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
    done = Inspected(steps=(StepDone(**{"name": "profile", "code": 1, "ended": "", **step}),))
    with pytest.raises(FlashInferBenchError, match=told):
        read_profile(done)


def test_a_race_has_both_places():
    (race,) = parse_findings("racecheck", RACECHECK, ["main.cu"])
    assert race.places == (
        CodePlace("race(float *)", "main.cu", 12, "Write"),
        CodePlace("race(float *)", "main.cu", 13, "Read"),
    )
    assert race.describe().startswith("racecheck: main.cu:12 and main.cu:13: race between accesses")


def test_words_of_older_releases_and_places_without_lines_are_read():
    read, barrier = parse_findings("initcheck", OLDER, ["other.cu"])
    assert read.places == (CodePlace("sum(float *)", "/cache/main.cu", 12),)
    assert (read.thread, read.block) == ("(3,0,0)", "(0,0,0)")
    assert (barrier.where, barrier.places[0].line) == ("in wait(float *)", None)


def test_equal_findings_are_one_with_its_count():
    (finding,) = join_equal(parse_findings("memcheck", MEMCHECK, ["main.cu", "kernels/main.cu"]))
    assert (finding.count, finding.thread, finding.where) == (2, "(0,0,0)", "kernels/main.cu:7")


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
    done = Inspected(steps=(StepDone(**{"name": "memcheck", "code": 0, "ended": "", **step}),))
    problems = find_problems(done, list(parse_findings("memcheck", done.steps[0].text, [])))
    assert len(problems) == len(told)
    assert all(words in problem for words, problem in zip(told, problems, strict=True))
