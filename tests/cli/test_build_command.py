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
from tests.bench.runner.test_baseline_cache import make_kept
from tests.kit.make import make_definition, make_solution

DEFINITION = make_definition()
PLACE = f"alice/{DEFINITION.op_type}/{DEFINITION.name}"
DOUBLE_CPP = """
#include <tvm/ffi/tvm_ffi.h>
void run(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
"""


def save(name, **parts):
    solution = make_solution(name, definition=DEFINITION.name, **parts)
    save_json_file(solution, f"set/solutions/{PLACE}/{name}.json")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Work in a folder with a set and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    save_json_file(DEFINITION, f"set/definitions/{DEFINITION.op_type}/{DEFINITION.name}.json")
    save("good")
    return tmp_path


@pytest.fixture
def call(capsys):
    """Type a command; returns its exit code, and its JSON."""

    def start(line):
        capsys.readouterr()
        code = run_command_line([*line.split(), "--format", "json"])
        return code, json.loads(capsys.readouterr().out)

    return start


@pytest.fixture
def show(capsys):
    """Type a command; returns its exit code, stdout and stderr."""

    def start(line):
        capsys.readouterr()
        return run_command_line(line.split()), *capsys.readouterr()

    return start


def test_a_second_build_finds_the_first_with_and_without_a_set(call):
    for line, result in (
        ("--local set", "built"),
        ("--local set", "cached"),
        (f"set/solutions/{PLACE}/good.json", "cached"),
    ):
        code, document = call(f"build {line}")
        assert (code, [row["result"] for row in document["solutions"]]) == (0, [result])


def test_what_cannot_be_built_is_told_with_the_reason(call, show):
    save("broken", source="def run(x, y):\n    return (\n")
    save("narrow", source="def run(): ...\n")
    save("needy", dependencies=["no-such-package-xyz"])
    code, out, err = show("build --local set")
    assert (code, "1 built, 2 failed" in out, "[4/4]" in err) == (1, True, True), err
    assert "main.py" in out.partition("broken: failed")[2]
    rows = {row["name"]: row for row in call("build --local set")[1]["solutions"]}
    wanted = {"broken": "failed", "narrow": "failed", "needy": "skipped", "good": "cached"}
    assert {name: row["result"] for name, row in rows.items()} == wanted
    assert "cannot be called" in rows["narrow"]["message"]
    assert "no-such-package-xyz" in rows["needy"]["message"]
    for flags, code in ("", 0), (" --require-built", 1):
        assert show(f"build --local set --solutions needy --quiet{flags}")[0] == code


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_a_library_is_built_and_its_artifact_named(here, call):
    save("cpp", sources={"a.cpp": DOUBLE_CPP}, language="cpp", entry_point="a.cpp::run")
    code, document = call("build --local set --solutions cpp --build-jobs 1")
    [row] = document["solutions"]
    assert (code, row["result"], row["binding"]) == (0, "built", "tvm-ffi")
    assert Path(row["artifact"]).is_relative_to(here / "cache")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--local set --solutions god", "did you mean 'good'?"),
        ("--local set --arch sm_9x", "is no GPU architecture"),
        (f"set/solutions/{PLACE}/good.json --authors alice", "leave out either these"),
    ],
)
def test_misuse_builds_nothing(here, show, line, message):
    code, _, err = show(f"build {line}")
    assert (code, message in err) == (2, True), err
    assert not (here / "cache").exists()


def test_architectures_are_read_with_and_without_their_prefix():
    assert choose_target(["sm_90a", "sm_80", "90a"]).architectures == ("90a", "80")


def test_a_cache_that_cannot_be_written_is_told_with_the_variable_to_set(here, show):
    (here / "cache").write_text("a file")
    code, _, err = show("build --local set")
    assert (code, "FIB_CACHE_PATH" in err) == (2, True)


def test_the_cache_is_shown_and_cleared(call, show):
    show("build --local set --quiet")
    [artifact] = call("cache show")[1]["artifacts"]
    assert artifact["solution"] == "good"
    assert "1 artifact and " in show("cache show")[1]
    assert call("cache clear --keep-gb 1")[1]["removed"] == 0
    cleared = call("cache clear")[1]
    assert (cleared["removed"], cleared["removed_bytes"]) == (1, artifact["size_bytes"])


def test_the_kernels_that_judge_are_cleared_but_not_under_a_run(here, call, show):
    made, kept = here / "cache/judge/triton-3/kernel.cubin", "kept_bytes"
    made.parent.mkdir(parents=True)
    made.write_bytes(b"x" * 1500)
    with ArtifactCache(here / "cache").used():
        assert call("cache clear")[1][kept] == 1500
        assert "0 bytes; 0 left, 1.5 kB\na run uses what is left" in show("cache clear")[1]
    assert call("cache clear --failed")[1][kept] == 1500
    assert "1.5 kB" in show("cache show")[1]
    assert call("cache clear")[1][kept] == 0
    assert not made.exists()


def test_what_solutions_compiled_when_they_ran_counts_in_the_cache_and_its_limit(here, call):
    jit = here / "cache" / "jit" / "ab"
    for name, age_s in (("old", 500), ("new", 100)):
        (jit / f"ab{name}" / "triton").mkdir(parents=True)
        (jit / f"ab{name}" / "triton" / "kernel.cubin").write_bytes(b"x" * 3000)
        (note := jit / f"ab{name}.solution").write_text(f"{name} one")
        os.utime(note, (time.time() - age_s,) * 2)
    shown = call("cache show")[1]
    assert [(one["solution"], one["size_bytes"]) for one in shown["compiled_at_run"]] == [
        ("new one", 3000),
        ("old one", 3000),
    ]
    with ArtifactCache(here / "cache").used():
        assert call("cache clear")[1]["kept_bytes"] == 6000
    assert call("cache clear --keep-gb 0.000004")[1]["removed_bytes"] == 3000
    assert sorted(path.name for path in jit.iterdir()) == ["abnew", "abnew.solution"]


def test_the_times_of_references_are_listed_and_removed(here, call, show):
    cache = BaselineCache(here / "cache")
    cache.write(make_kept())
    (cache.folder / "strange").mkdir()
    entries = call("cache baselines")[1]["entries"]
    assert {entry.get("definition"): entry.get("latency_ms") for entry in entries} == {"double": 2.0, None: None}
    assert "2 baselines, 1 that cannot be used, " in show("cache baselines")[1]
    assert call("cache baselines --clear") == (0, {"baselines": str(cache.folder), "removed": 2})
    assert call("cache baselines")[1]["entries"] == []


def test_a_damaged_artifact_is_found_and_removed(call):
    [row] = call("build --local set --quiet")[1]["solutions"]
    source = Path(row["artifact"], "main.py")
    assert call("cache verify")[0] == 0
    source.chmod(0o644)
    source.write_text("# changed\n")
    code, document = call("cache verify")
    assert (code, document["problems"][0]["solution"]) == (1, "good")
    assert call("cache verify --remove")[0] == 0
    assert call("cache show")[1]["artifacts"] == []
