"""Scripts of agents: sources to a solution and back, tools with their schemas, texts for a prompt."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from flashinfer_bench.agents import (
    extract_solution_to_files,
    flashinfer_bench_list_ncu_options,
    flashinfer_bench_run_ncu,
    flashinfer_bench_run_sanitizer,
    function_to_schema,
    get_all_tool_schemas,
    pack_solution_from_files,
    tools,
)
from flashinfer_bench.bench.machine import discover_devices
from flashinfer_bench.data import BuildSpec, Solution, load_json_file, save_json_file
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set
from tests.kit.vendor_tools import write_tools

pytestmark = pytest.mark.cpu
SPEC = {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::run"}
NAMES = ("mine", "double", "me")


class Part(NamedTuple):
    """A type that a schema refers to."""

    size: int


@pytest.fixture
def sources(tmp_path):
    folder = tmp_path / "sources"
    (folder / "helpers").mkdir(parents=True)
    (folder / "main.py").write_text("from helpers.one import two\n\ndef run(x):\n    return x * two\n")
    (folder / "helpers" / "one.py").write_bytes("two = 2  # zwölf\r\n".encode())
    return folder


@pytest.fixture
def profile(tmp_path, monkeypatch):
    """Return a call of the profiling tool, on a set of one solution, with a CPU that poses as a GPU."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setattr(tools, "find_gpu", lambda name: discover_devices(["cpu"])[0])
    workloads = [make_trace(solution=None)]
    write_trace_set(tmp_path, definitions=[make_definition()], solutions=[make_solution()], workloads=workloads)
    usual = {"solution": "double_python", "workload": "w0", "trace_set_path": str(tmp_path), "timeout": 250}
    usual["ncu_path"] = str(write_tools(tmp_path / "programs") / "ncu")
    return lambda **changes: flashinfer_bench_run_ncu(**{**usual, **changes})


def test_a_folder_becomes_a_solution_and_the_same_folder_again(sources, tmp_path):
    solution = pack_solution_from_files(str(sources), BuildSpec(**SPEC), *NAMES, description="twice")
    assert (solution.name, solution.definition, solution.author, solution.description) == (*NAMES, "twice")
    folder = extract_solution_to_files(solution, tmp_path / "again")
    assert folder == str(tmp_path / "again" / "mine")
    for file in ("main.py", "helpers/one.py"):
        assert Path(folder, file).read_bytes() == (sources / file).read_bytes()
    again = pack_solution_from_files(path=folder, spec=SPEC, name="mine", definition="double", author="me")
    assert again.hash() == solution.hash()
    save_json_file(again, tmp_path / "mine.json")
    assert load_json_file(Solution, tmp_path / "mine.json") == again


@pytest.mark.parametrize(
    ("files", "spec", "words"),
    [
        (None, {}, "is no folder"),
        ({}, {}, "no source"),
        ({"main.py": b"\xff\xfe"}, {}, r"'main\.py' cannot be read"),
        ({"main.py": b""}, {"entry_point": "kernel.py::run"}, "kernel.py"),
        ({"main.py": b""}, {"language": "cobol"}, "language"),
    ],
)
def test_what_is_no_solution_is_a_value_error(tmp_path, files, spec, words):
    folder = tmp_path / "sources"
    if files is not None:
        write_trace_set(folder, files)
    with pytest.raises(ValueError, match=words):
        pack_solution_from_files(folder, SPEC | spec, *NAMES)


def test_no_source_is_written_through_a_link(tmp_path):
    (tmp_path / "there" / "double_python").mkdir(parents=True)
    (tmp_path / "kept.py").write_text("kept")
    (tmp_path / "there" / "double_python" / "main.py").symlink_to(tmp_path / "kept.py")
    with pytest.raises(ValueError, match="link"):
        extract_solution_to_files(make_solution(), tmp_path / "there")
    assert (tmp_path / "kept.py").read_text() == "kept"


def test_schemas_are_json_that_describes_every_parameter():
    schemas = [schema["function"] for schema in json.loads(json.dumps(get_all_tool_schemas()))]
    functions = [flashinfer_bench_list_ncu_options, flashinfer_bench_run_ncu, flashinfer_bench_run_sanitizer]
    for schema, function in zip(schemas, functions, strict=True):
        assert (schema["name"], bool(schema["description"])) == (function.__name__, True)
        assert list(schema["parameters"]["properties"]) == list(inspect.signature(function).parameters)
        assert all(one["description"] and one["type"] for one in schema["parameters"]["properties"].values())
    properties = schemas[1]["parameters"]["properties"]
    assert schemas[1]["parameters"]["required"] == ["solution", "workload"]
    assert [properties[name]["type"] for name in ("solution", "timeout", "sections")] == ["string", "integer", "array"]


def test_a_custom_function_becomes_a_schema():
    def compile_kernel(
        source: str, flags: list[str], level: Literal["O1", "O3"] = "O3", *, limit: float = 2.0, log: Callable = print
    ):
        """Compile a kernel.

        It is not run.

        Args:
            source: the text,
                whole.
            flags (list): for the compiler.
        """

    def nested(parts: list[Part] = ()):
        """Build parts."""

    def underlined(source: str, level: int = 3):
        """Compile a kernel.

        Parameters
        ----------
        source : str
            The text,
            whole.
        level : int, optional
            How much.

        Returns
        -------
        str
            What it says.
        """

    assert function_to_schema(compile_kernel)["function"] == {
        "name": "compile_kernel",
        "description": "Compile a kernel. It is not run.",
        "parameters": {
            "type": "object",
            "properties": {
                "source": {"type": "string", "description": "the text, whole."},
                "flags": {"type": "array", "items": {"type": "string"}, "description": "for the compiler."},
                "level": {"type": "string", "enum": ["O1", "O3"], "default": "O3"},
                "limit": {"type": "number", "default": 2.0},
                "log": {},
            },
            "required": ["source", "flags"],
        },
    }
    schema = function_to_schema(nested)["function"]["parameters"]
    assert (schema["properties"]["parts"]["items"], [*schema["$defs"]]) == ({"$ref": "#/$defs/Part"}, ["Part"])
    described = function_to_schema(underlined)["function"]
    texts = [described, *described["parameters"]["properties"].values()]
    assert [one["description"] for one in texts] == ["Compile a kernel.", "The text, whole.", "How much."]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"solution": "nobody"}, "no solution 'nobody'"),
        ({"workload": "nobody"}, "no workload 'nobody'; it has w0"),
        ({"solution": "nowhere.json"}, "nowhere.json"),
        ({"solution": make_solution(definition="other")}, "no definition 'other'"),
        ({"trace_set_path": "nowhere"}, "nowhere"),
        ({"tmpdir": "nowhere"}, "nowhere/inspect-"),
        ({"ncu_path": "/nowhere/ncu"}, "/nowhere/ncu"),
        ({"page": "best"}, "details, raw, source, session"),
    ],
)
def test_names_that_lead_nowhere_are_texts_that_begin_with_error(profile, change, words):
    answer = profile(**change)
    assert answer.startswith("ERROR: ")
    assert words in answer


def test_errors_of_the_other_tools_are_texts_that_begin_with_error(profile, tmp_path):
    sanitizer = {"sanitizer_path": str(tmp_path / "programs/compute-sanitizer"), "sanitizer_types": ["leaks"]}
    answer = flashinfer_bench_run_sanitizer("double_python", "w0", trace_set_path=str(tmp_path), **sanitizer)
    assert answer.startswith("ERROR: ")
    assert "unknown leaks; known: memcheck" in answer
    assert flashinfer_bench_list_ncu_options("/nowhere/ncu").startswith("ERROR: ")
    answer = flashinfer_bench_list_ncu_options(ncu_path=str(tmp_path / "programs/ncu"))
    assert answer.splitlines() == ["Identifier Sections", "basic LaunchStats", "", "LaunchStats no wish"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="inspect forks programs as Linux does")
def test_a_solution_and_a_workload_that_are_no_names_are_profiled(profile, tmp_path):
    save_json_file(make_workload("w9", axes={"n": 3}), tmp_path / "workload.json")
    given = {"solution": make_solution("unsaved"), "workload": str(tmp_path / "workload.json")}
    lines = profile(**given, kernel_name="k", tmpdir=str(tmp_path), max_lines=23).splitlines()
    assert lines[0].startswith("ncu: unsaved on double, workload w9")
    assert lines[1] == "duration 1235 us in all"
    assert (len(lines), lines[-1]) == (23, "[2 more lines]")
    assert "--metrics gpu__time_duration.sum,dram__bytes" in lines[-2]  # and no other metric, since the GPU has these
    assert "sm__throughput" not in lines[-2]
    assert "--clock-control none --cache-control all" in lines[-2]
    assert "--kernel-name k" in lines[-2]
