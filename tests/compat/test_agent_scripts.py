"""Scripts of agents: sources to a solution and back, tools with their schemas, texts for a prompt."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Literal

import pytest

from flashinfer_bench.agents import (
    FFI_PROMPT,
    FFI_PROMPT_SIMPLE,
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


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))


@pytest.fixture
def sources(tmp_path):
    folder = tmp_path / "sources"
    (folder / "helpers").mkdir(parents=True)
    (folder / "main.py").write_text("from helpers.one import two\n\ndef run(x):\n    return x * two\n")
    (folder / "helpers" / "one.py").write_bytes("two = 2  # zwölf\r\n".encode())
    return folder


@pytest.fixture
def root(tmp_path):
    return write_trace_set(
        tmp_path / "set",
        definitions=[make_definition()],
        solutions=[make_solution()],
        workloads=[make_trace(solution=None)],
    )


@pytest.fixture
def programs(tmp_path):
    return write_tools(tmp_path / "programs")


@pytest.fixture
def _cpu_is_a_gpu(monkeypatch):
    monkeypatch.setattr(tools, "find_gpu", lambda name: discover_devices(["cpu"])[0])


def test_a_folder_becomes_a_solution_and_the_same_folder_again(sources, tmp_path):
    solution = pack_solution_from_files(str(sources), BuildSpec(**SPEC), "mine", "double", "me", description="twice")
    assert (solution.name, solution.definition, solution.author, solution.description) == (
        "mine", "double", "me", "twice"
    )  # fmt: skip
    folder = extract_solution_to_files(solution, tmp_path / "again")
    assert folder == str(tmp_path / "again" / "mine")
    written = {path.relative_to(folder).as_posix(): path.read_bytes() for path in Path(folder).rglob("*.py")}
    assert written == {path.relative_to(sources).as_posix(): path.read_bytes() for path in sources.rglob("*.py")}
    again = pack_solution_from_files(path=folder, spec=SPEC, name="mine", definition="double", author="me")
    assert again.hash() == solution.hash()
    save_json_file(again, tmp_path / "mine.json")
    assert load_json_file(Solution, tmp_path / "mine.json") == again


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"path": "nowhere"}, "nowhere is no folder"),
        ({"spec": {**SPEC, "entry_point": "kernel.py::run"}}, "kernel.py"),
        ({"spec": {**SPEC, "language": "cobol"}}, "language"),
        ({"name": ""}, "name"),
    ],
)
def test_what_is_no_solution_is_a_value_error(sources, change, words):
    given = {"path": sources, "spec": SPEC, "name": "mine", "definition": "double", "author": "me"}
    with pytest.raises(ValueError, match=words):
        pack_solution_from_files(**(given | change))


def test_folders_without_text_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no source"):
        pack_solution_from_files(tmp_path, SPEC, "mine", "double", "me")
    (tmp_path / "main.py").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"'main\.py' cannot be read"):
        pack_solution_from_files(tmp_path, SPEC, "mine", "double", "me")


def test_no_source_is_written_through_a_link(tmp_path):
    (tmp_path / "there" / "double_python").mkdir(parents=True)
    (tmp_path / "kept.py").write_text("kept")
    (tmp_path / "there" / "double_python" / "main.py").symlink_to(tmp_path / "kept.py")
    with pytest.raises(ValueError, match="link"):
        extract_solution_to_files(make_solution(), tmp_path / "there")
    assert (tmp_path / "kept.py").read_text() == "kept"


def test_schemas_are_json_that_describes_every_parameter():
    schemas = json.loads(json.dumps(get_all_tool_schemas()))
    functions = [flashinfer_bench_list_ncu_options, flashinfer_bench_run_ncu, flashinfer_bench_run_sanitizer]
    assert [schema["function"]["name"] for schema in schemas] == [function.__name__ for function in functions]
    for schema, function in zip(schemas, functions, strict=True):
        assert schema["type"] == "function"
        assert schema["function"]["description"]
        asked = schema["function"]["parameters"]
        assert (asked["type"], list(asked["properties"])) == ("object", list(inspect.signature(function).parameters))
        assert all(one["description"] and one.get("type") for one in asked["properties"].values())
    properties = schemas[1]["function"]["parameters"]["properties"]
    assert schemas[1]["function"]["parameters"]["required"] == ["solution", "workload"]
    assert (properties["solution"]["type"], properties["timeout"]["type"]) == ("string", "integer")
    assert (properties["sections"]["type"], properties["sections"]["items"]) == ("array", {"type": "string"})


def test_a_function_of_one_s_own_becomes_a_schema():
    def compile_kernel(source: str, flags: list[str], level: Literal["O1", "O3"] = "O3", *, limit: float = 2.0):
        """Compile a kernel.

        It is not run.

        Args:
            source: the text,
                whole.
            flags (list): for the compiler.
        """

    def bare(size: int): ...

    described = function_to_schema(bare)["function"]
    assert (described["description"], described["parameters"]["properties"]) == ("", {"size": {"type": "integer"}})
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
            },
            "required": ["source", "flags"],
        },
    }


def test_underlined_sections_are_read_too():
    def compile_kernel(source: str, level: int = 3):
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

    described = function_to_schema(compile_kernel)["function"]
    assert described["description"] == "Compile a kernel."
    properties = described["parameters"]["properties"]
    assert [one["description"] for one in properties.values()] == ["The text, whole.", "How much."]


def test_prompts_tell_how_a_function_is_exported():
    for text in (FFI_PROMPT, FFI_PROMPT_SIMPLE):
        assert "TVM_FFI_DLL_EXPORT_TYPED_FUNC" in text
        assert "TVMFFIEnvGetStream" in text
    assert FFI_PROMPT.startswith(FFI_PROMPT_SIMPLE)


def test_what_goes_wrong_is_a_text_that_begins_with_error(root, programs, tmp_path):
    ncu, sanitizer = str(programs / "ncu"), str(programs / "compute-sanitizer")
    at = {"trace_set_path": str(root)}
    answers = [
        flashinfer_bench_list_ncu_options("/nowhere/ncu"),
        flashinfer_bench_run_ncu("double_python", "w0", ncu_path="/nowhere/ncu", **at),
        flashinfer_bench_run_ncu("double_python", "w0", ncu_path=ncu, page="best", **at),
        flashinfer_bench_run_ncu("double_python", "w0", ncu_path=ncu, device="cuda:97", **at),
        flashinfer_bench_run_sanitizer("double_python", "w0", sanitizer_path="/nowhere/sanitizer", **at),
        flashinfer_bench_run_sanitizer(
            "double_python", "w0", sanitizer_path=sanitizer, sanitizer_types=["leaks"], **at
        ),
    ]
    assert [answer[:7] for answer in answers] == ["ERROR: "] * len(answers)
    assert "details, raw, source, session" in answers[2]
    assert "unknown leaks; known: memcheck" in answers[5]


@pytest.mark.usefixtures("_cpu_is_a_gpu")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"solution": "nobody"}, "no solution 'nobody'"),
        ({"workload": "nobody"}, "no workload 'nobody'; it has w0"),
        ({"solution": "nowhere.json"}, "nowhere.json"),
        ({"solution": make_solution(definition="other")}, "no definition 'other'"),
        ({"trace_set_path": "nowhere"}, "nowhere"),
        ({"tmpdir": "nowhere"}, "nowhere/inspect-"),
    ],
)
def test_names_that_lead_nowhere_are_errors(root, programs, change, words):
    given = {"solution": "double_python", "workload": "w0", "trace_set_path": str(root)} | change
    answer = flashinfer_bench_run_ncu(**given, ncu_path=str(programs / "ncu"))
    assert answer.startswith("ERROR: ")
    assert words in answer


@pytest.mark.skipif(sys.platform == "win32", reason="the programs are scripts of a shell")
def test_the_lists_of_ncu_are_handed_on(programs):
    answer = flashinfer_bench_list_ncu_options(ncu_path=str(programs / "ncu"))
    assert answer.splitlines() == ["Identifier Sections", "basic LaunchStats", "", "LaunchStats no wish"]


def test_a_long_answer_is_cut_and_says_so():
    answers = [tools._answer(lambda: "a\nb\nc", most) for most in (None, 3, 2, 0)]
    assert answers == ["a\nb\nc", "a\nb\nc", "a\n[2 more lines]", "[3 more lines]"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="inspect forks programs as Linux does")
@pytest.mark.usefixtures("_cpu_is_a_gpu")
def test_a_solution_and_a_workload_that_are_no_names_are_profiled(root, programs, tmp_path):
    save_json_file(make_workload("w9", axes={"n": 3}), tmp_path / "workload.json")
    answer = flashinfer_bench_run_ncu(
        make_solution("unsaved"),
        str(tmp_path / "workload.json"),
        trace_set_path=str(root),
        ncu_path=str(programs / "ncu"),
        tmpdir=str(tmp_path),
        max_lines=12,
    )
    lines = answer.splitlines()
    assert lines[0].startswith("ncu: unsaved on double, workload w9")
    assert lines[1] == "duration 2 us in all"
    assert lines[-1].endswith("more lines]")
    assert len(lines) == 12
