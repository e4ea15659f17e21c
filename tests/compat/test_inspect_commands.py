"""`inspect ncu` and `inspect sanitizer` with fake tools, and the parsing of the tools' output.

`python -m benchmarks.repeatability --rows ncu sanitizer` tests the real tools on a GPU.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from flashinfer_bench.bench.machine import discover_devices
from flashinfer_bench.cli.main import cli
from flashinfer_bench.data import save_json_file
from flashinfer_bench.errors import FlashInferBenchError
from flashinfer_bench.examine.inspect import tool_runs
from flashinfer_bench.examine.inspect.ncu import parse_raw, read_profile
from flashinfer_bench.examine.inspect.tool_runs import Inspected, StepDone
from flashinfer_bench.sandbox.namespaces import has_own_network
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set
from tests.kit.processes import marked, wait_until_gone
from tests.kit.vendor_tools import write_tools

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(sys.platform != "linux", reason="inspect forks programs as Linux does"),
]
RAISES = "def run(x):\n    raise ValueError('not today')\n"
WROTE = "Invalid __global__ write of size 4 bytes"
SAID = {
    "memcheck": f"""
========= {WROTE}
=========     at twice(const float *, float *, long)+0x80 in /cache/sources/kernels/main.cu:7
=========     by thread (0,0,0) in block (1,0,0)
=========     Address 0x7f0000000200 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f0000000000 of size 512 bytes
=========
========= {WROTE}
=========     at twice(const float *, float *, long)+0x80 in /cache/sources/kernels/main.cu:7
=========     by thread (1,0,0) in block (1,0,0)
=========
========= ERROR SUMMARY: 2 errors
""",
    "racecheck": """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at race(float *)+0x70 in /cache/main.cu:12
=========     and Read access at race(float *)+0x90 in /cache/main.cu:13 [4 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
========= Uninitialized __global__ memory read of size 4 bytes
=========     at 0x00000070 in /cache/main.cu:12:sum(float *)
=========     by thread (3,0,0) in block (0,0,0)
========= Barrier error detected. Divergent thread(s) in block
=========     at wait(float *)+0x40
""",
    "initcheck": "no word of the tool",
}
FOUND = [
    f"memcheck: kernels/main.cu:7: {WROTE} in twice(const float *, float *, long), thread (0,0,0) of block (1,0,0) "
    "(2 times)",
    "racecheck: /cache/main.cu:12 and /cache/main.cu:13: race between accesses to shared memory in race(float *)",
    "racecheck: /cache/main.cu:12: Uninitialized __global__ memory read of size 4 bytes in sum(float *), "
    "thread (3,0,0) of block (0,0,0)",
    "racecheck: in wait(float *): Barrier error detected. Divergent thread(s) in block",
    "synccheck: nothing found",
    "not checked: initcheck: compute-sanitizer said nothing: it did not look at the call",
]


@pytest.fixture
def tools(monkeypatch, tmp_path):
    """Write fake tools that need no GPU, for PATH."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}:/usr/bin:/bin")
    monkeypatch.setattr(tool_runs, "find_gpu", lambda name: discover_devices(["cpu"])[0])
    write_tools(tmp_path / "programs")
    return lambda **said: write_tools(tmp_path / "programs", **said)


@pytest.fixture
def inspect(tmp_path):
    """Return a command that inspects a solution of a set."""
    write_trace_set(
        tmp_path / "set",
        definitions=[make_definition()],
        solutions=[make_solution(sources={"kernels/main.cu": "", "main.py": "def run(x):\n    return x * 2\n"})],
        workloads=[make_trace(workload=make_workload(uuid), solution=None) for uuid in ("first-a", "first-b", "other")],
    )

    def run(tool, *flags, solution="double_python", workload="first-a"):
        local = ["--local", str(tmp_path / "set"), "--solution", solution, "--workload", workload]
        return cli(["inspect", tool, *local, *flags])

    return run


@pytest.mark.parametrize(("tool", "product"), [("ncu", "Nsight Compute"), ("sanitizer", "compute-sanitizer")])
def test_a_missing_tool_is_reported_in_one_line(inspect, monkeypatch, tmp_path, capsys, tool, product):
    def refused(*flags):
        assert inspect(tool, *flags) == 2
        captured = capsys.readouterr()
        (line,) = captured.err.strip().splitlines()
        return line if captured.out == "" else None

    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(tool_runs, "USUAL_FOLDERS", ())
    line = refused()
    assert ("is not here" in line, product in line) == (True, True)
    assert "/nowhere/tool is not here" in refused(f"--{tool}-path", "/nowhere/tool")
    monkeypatch.setenv("PATH", f"{write_tools(tmp_path / 'programs')}:/usr/bin:/bin")
    assert "97" in refused("--device", "cuda:97")
    monkeypatch.setattr(tool_runs, "discover_devices", lambda names: discover_devices(["cpu"]))
    assert "needs an NVIDIA GPU" in refused()


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("change", "flags", "reported"),
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
def test_wrong_names_are_misuse(inspect, capsys, change, flags, reported):
    assert inspect("sanitizer", *flags, **change) == 2
    assert reported in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_a_profile_has_its_flags_units_stalls_and_the_busiest_tensor_pipe(inspect, capsys):
    flags = ["--l2-cache", "warm", "--kernel-name", "regex:tw.*", "--sections", "SourceCounters", "--sandbox", "off"]
    assert inspect("ncu", *flags, "--format", "json", workload="other") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["solution"], document["workload"], document["tool"]) == ("double_python", "other", "ncu")
    first, second = document["kernels"]
    assert (first["name"], first["grid"], first["dram_tb_per_sec"]) == ("twice(float *, int)", "(2, 1, 1)", 2.0)
    assert (first["duration_us"], first["dram_read_bytes"]) == pytest.approx((1234.5, 2000))
    assert (first["tensor_percent"], first["waves"]) == (30, None)
    assert [(one["reason"], one["share"]) for one in first["stalls"]] == [("long_scoreboard", 0.75), ("barrier", 0.25)]
    assert (second["name"], second["dram_tb_per_sec"], second["stalls"]) == ('void f<4, "x">(int)', None, [])
    assert document["duration_us"] == 1235


@pytest.mark.slow
def test_findings_have_file_and_line_and_a_check_that_did_not_look_is_no_clean_one(inspect, tools, capsys):
    tools(said=SAID)
    assert inspect("sanitizer", "--sandbox", "auto" if has_own_network() else "off") == 1
    assert capsys.readouterr().out.splitlines()[1:] == FOUND


def test_numbers_that_are_not_finite_are_null():
    metrics = ["gpu__time_duration.sum", "launch__registers_per_thread", "launch__waves_per_multiprocessor"]
    waits = [f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio" for name in ("barrier", "wait")]
    rows = [["ID", *metrics, *waits], ["", "ns", "", "", "", ""], ["0", "nan", "inf", "-inf", "nan", "2.0"]]
    (kernel,) = parse_raw("".join(f'"{chr(34).join(row).replace(chr(34), chr(34) + "," + chr(34))}"\n' for row in rows))
    assert [kernel[name] for name in ("duration_us", "registers_per_thread", "waves")] == [None] * 3
    assert kernel["stalls"] == [{"reason": "wait", "share": 1.0}]


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM", "an administrator can allow it"),
        ("==WARNING== No kernels were profiled.", "launched no kernel"),
    ],
)
def test_a_missing_profile_is_explained(text, reported):
    with pytest.raises(FlashInferBenchError, match=reported):
        read_profile(Inspected(None, "a GPU", Path(), [StepDone("profile", text, "exit code 1")]))


@pytest.mark.slow
def test_a_tool_that_does_not_end_leaves_no_process(inspect, tools, capsys):
    tools(script="setsid sleep 600 & sleep 600")
    with marked() as alive:
        assert inspect("ncu", "--sandbox", "off", "--timeout", "1") == 1
        assert not wait_until_gone(alive)
    assert "it did not end within 1 s" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("source", "reported"),
    [(RAISES, "the solution failed while ncu looked at it"), (f"{RAISES}run(1)\n", "the solution cannot be imported")],
)
def test_a_solution_that_raises_is_reported_with_its_message_and_no_internal_traceback(
    inspect, tmp_path, capsys, source, reported
):
    save_json_file(make_solution("raises", source=source), tmp_path / "raises.json")
    assert inspect("ncu", "--sandbox", "off", solution=str(tmp_path / "raises.json")) == 1
    errors = capsys.readouterr().err
    assert (reported in errors, "ValueError: not today" in errors, "session.py" in errors) == (True, True, False)
