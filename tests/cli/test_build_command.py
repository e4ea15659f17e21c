"""`build` and `cache` as they are typed: results, exit codes, messages. Python solutions cost nothing to build."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from flashinfer_bench.bench.runner.baseline_cache import BaselineCache
from flashinfer_bench.cli.entry import run_command_line
from flashinfer_bench.cli.machine.build import choose_target
from flashinfer_bench.compile.cache import ArtifactCache
from flashinfer_bench.data import save_json_file
from flashinfer_bench.errors import Misuse
from tests.bench.runner.test_baseline_cache import make_kept
from tests.kit.make import make_definition, make_solution

DEFINITION = make_definition()
PLACE = f"alice/{DEFINITION.op_type}/{DEFINITION.name}"
DOUBLE_CPP = """
#include <tvm/ffi/tvm_ffi.h>
void run(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
"""


def save(solution):
    save_json_file(solution, f"set/solutions/{PLACE}/{solution.name}.json")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Work in a folder with a set and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    save_json_file(DEFINITION, f"set/definitions/{DEFINITION.op_type}/{DEFINITION.name}.json")
    save(make_solution("good", definition=DEFINITION.name))
    return tmp_path


def call(capsys, *argv):
    """Run a command; return its exit code, and its JSON."""
    capsys.readouterr()
    code = run_command_line([*argv, "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def results(document):
    return {row["name"]: row["result"] for row in document["solutions"]}


def test_a_second_build_finds_the_first(capsys):
    assert results(call(capsys, "build", "--local", "set")[1]) == {"good": "built"}
    code, document = call(capsys, "build", "--local", "set")
    assert code == 0
    assert results(document) == {"good": "cached"}


def test_a_failure_is_told_with_its_place_and_is_exit_code_1(capsys):
    save(make_solution("broken", definition=DEFINITION.name, source="def run(x, y):\n    return (\n"))
    assert run_command_line(["build", "--local", "set"]) == 1
    out, err = capsys.readouterr()
    assert "main.py" in out.partition("broken: FAILED")[2]
    assert "[2/2]" in err
    assert "1 built, 1 FAILED" in out


def test_what_cannot_be_built_is_told_with_the_reason(capsys):
    save(make_solution("narrow", definition=DEFINITION.name, source="def run(): ...\n"))
    save(make_solution("needy", definition=DEFINITION.name, dependencies=["no-such-package-xyz"]))
    code, document = call(capsys, "build", "--local", "set")
    assert (code, results(document)) == (1, {"narrow": "failed", "needy": "skipped", "good": "built"})
    told = {row["name"]: row["message"] for row in document["solutions"]}
    assert ("cannot be called" in told["narrow"], "no-such-package-xyz" in told["needy"]) == (True, True)
    for flags, code in ((), 0), (("--require-built",), 1):
        assert run_command_line(["build", "--local", "set", "--solutions", "needy", "--quiet", *flags]) == code


def test_files_are_built_without_a_set(capsys):
    code, document = call(capsys, "build", f"set/solutions/{PLACE}/good.json")
    assert code == 0
    assert results(document) == {"good": "built"}


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_a_library_is_built_and_its_artifact_named(here, capsys):
    save(make_solution("cpp", definition=DEFINITION.name, sources={"a.cpp": DOUBLE_CPP}, language="cpp",
                       entry_point="a.cpp::run"))  # fmt: skip
    code, document = call(capsys, "build", "--local", "set", "--solutions", "cpp", "--build-jobs", "1")
    [row] = document["solutions"]
    assert (code, row["result"], row["binding"]) == (0, "built", "tvm-ffi")
    assert os.path.commonpath([row["artifact"], str(here / "cache")]) == str(here / "cache")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["gone.json"], "gone.json"),
        (["--local", "set", "--solutions", "god"], "did you mean 'good'?"),
        (["--local", "set", "--arch", "sm_9x"], "is no GPU architecture"),
        (["--local", "set", "--build-jobs", "0"], "build"),
        ([f"set/solutions/{PLACE}/good.json", "--authors", "alice"], "leave out one or the other"),
        ([], "no trace set"),
    ],
    ids=["file", "name", "architecture", "jobs", "both", "nothing"],
)
def test_misuse_builds_nothing(here, argv, message, capsys, monkeypatch):
    monkeypatch.delenv("FIB_DATASET_PATH", raising=False)
    assert run_command_line(["build", *argv]) == 2
    assert message in capsys.readouterr().err
    assert not (here / "cache").exists()


def test_architectures_are_read_with_and_without_their_prefix():
    assert choose_target(["sm_90a", "sm_80", "90a"]).architectures == ("90a", "80")
    with pytest.raises(Misuse, match="did you mean 'sm_90a'"):
        choose_target(["sm90a"])


def test_a_cache_that_cannot_be_written_is_told_with_the_variable_to_set(here, capsys):
    (here / "cache").write_text("a file")
    assert run_command_line(["build", "--local", "set"]) == 2
    assert "FIB_CACHE_PATH" in capsys.readouterr().err


def test_the_cache_is_shown_and_cleared(here, capsys):
    assert call(capsys, "cache", "show")[1]["artifacts"] == []
    run_command_line(["build", "--local", "set", "--quiet"])
    [artifact] = call(capsys, "cache", "show")[1]["artifacts"]
    assert artifact["solution"] == "good"
    assert run_command_line(["cache", "show"]) == 0
    assert "1 artifact, " in capsys.readouterr().out
    assert call(capsys, "cache", "clear", "--keep-gb", "1")[1]["removed"] == 0
    code, document = call(capsys, "cache", "clear")
    assert (code, document["removed"], document["kept"]) == (0, 1, 0)
    assert document["removed_bytes"] == artifact["size_bytes"]


@pytest.mark.parametrize(
    ("file", "kept", "stays"),
    [
        (
            "jit/ab/abcd/triton/kernel.cubin",
            "jit_kept_bytes",
            "what solutions compile when they run stays: a run uses it",
        ),
        ("judge/triton-3/kernel.cubin", "judge_kept_bytes", "the kernels that judge stay (1.5 kB): a run uses them"),
    ],
)
def test_what_is_no_artifact_is_cleared_but_not_under_a_run(here, capsys, file, kept, stays):
    made = here / "cache" / file
    made.parent.mkdir(parents=True)
    made.write_bytes(b"x" * 1500)
    with ArtifactCache(here / "cache").used():
        assert call(capsys, "cache", "clear")[1][kept] == 1500
        assert run_command_line(["cache", "clear"]) == 0
        assert stays in capsys.readouterr().out
    assert call(capsys, "cache", "clear", "--failed")[1][kept] == 1500
    run_command_line(["cache", "show"])
    assert "1.5 kB" in capsys.readouterr().out
    assert call(capsys, "cache", "clear")[1][kept] == 0
    assert not (here / "cache" / file.partition("/")[0]).exists()


def test_what_solutions_compiled_when_they_ran_counts_in_the_cache_and_its_limit(here, capsys):
    for name, age_s in (("old", 500), ("new", 100)):
        folder = here / "cache" / "jit" / "ab" / f"ab{name}" / "triton"
        folder.mkdir(parents=True)
        (folder / "kernel.cubin").write_bytes(b"x" * 3000)
        note = here / "cache" / "jit" / "ab" / f"ab{name}.solution"
        note.write_text(f"{name} one")
        os.utime(note, (time.time() - age_s,) * 2)
    shown = call(capsys, "cache", "show")[1]
    assert shown["size_bytes"] == 6000
    assert [(one["solution"], one["size_bytes"]) for one in shown["compiled_at_run"]] == [
        ("new one", 3000),
        ("old one", 3000),
    ]
    run_command_line(["cache", "show"])
    assert "old one" in capsys.readouterr().out
    with ArtifactCache(here / "cache").used():
        assert call(capsys, "cache", "clear", "--keep-gb", "0.000004")[1]["jit_removed_bytes"] == 0
    assert call(capsys, "cache", "clear", "--keep-gb", "0.000004")[1]["jit_removed_bytes"] == 3000
    assert [path.name for path in sorted((here / "cache" / "jit" / "ab").iterdir())] == ["abnew", "abnew.solution"]


def test_the_times_of_references_are_listed_and_removed(here, capsys):
    assert call(capsys, "cache", "baselines")[1]["entries"] == []
    cache = BaselineCache(here / "cache")
    cache.write(make_kept())
    (cache.folder / "strange").mkdir()
    entries = call(capsys, "cache", "baselines")[1]["entries"]
    assert {entry.get("definition"): entry.get("latency_ms") for entry in entries} == {"double": 2.0, None: None}
    assert run_command_line(["cache", "baselines"]) == 0
    text = capsys.readouterr().out
    assert "double" in text
    assert "2 baselines, 1 that cannot be used, " in text
    assert call(capsys, "cache", "baselines", "--clear") == (0, {"baselines": str(cache.folder), "removed": 2})
    assert cache.files() == []


def test_a_damaged_artifact_is_found_and_removed(capsys):
    run_command_line(["build", "--local", "set", "--quiet"])
    [row] = call(capsys, "build", "--local", "set", "--quiet")[1]["solutions"]
    source = Path(row["artifact"], "main.py")
    assert call(capsys, "cache", "verify")[0] == 0
    source.chmod(0o644)
    with source.open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    code, document = call(capsys, "cache", "verify")
    assert code == 1
    assert document["problems"][0]["solution"] == "good"
    assert call(capsys, "cache", "verify", "--remove")[0] == 0
    assert call(capsys, "cache", "show")[1]["artifacts"] == []
