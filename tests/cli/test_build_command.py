"""`build` and `cache` as they are typed: results, exit codes, messages. Python solutions cost nothing to build."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from flashinfer_bench.bench.runner.baseline_cache import BaselineCache
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.compile.cache import ArtifactCache
from tests.bench.runner.test_baseline_cache import make_kept
from tests.kit.make import make_definition, make_solution, write_trace_set

DOUBLE_CPP = """
#include <tvm/ffi/tvm_ffi.h>
void run(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
"""
GOOD = "set/solutions/alice/test/double/good.json"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Work in a folder with a set and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    solutions = [
        make_solution("good"),
        make_solution("broken", source="def run(x, y):\n    return (\n"),
        make_solution("narrow", source="def run(): ...\n"),
        make_solution("needy", dependencies=["no-such-package-xyz"]),
        make_solution("cpp", sources={"a.cpp": DOUBLE_CPP}, language="cpp", entry_point="a.cpp::run"),
    ]
    (tmp_path / "draft.py").write_text("def twice(x, y): ...\n")
    write_trace_set(tmp_path / "set", definitions=[make_definition()], solutions=solutions)
    return tmp_path


@pytest.fixture
def call(capsys):
    """Type a command; returns its exit code, and its JSON."""

    def start(line):
        capsys.readouterr()
        code = main([*line.split(), "--format", "json"])
        return code, json.loads(capsys.readouterr().out)

    return start


def test_a_second_build_finds_the_first_with_and_without_a_set(call):
    for line, result in (
        ("--local set --solutions good", "built"),
        ("--local set --authors alice --solutions good", "cached"),
        (GOOD, "cached"),
        ("draft.py --local set --definition double --entry twice", "built"),
    ):
        code, document = call(f"build {line} --arch sm_90a sm_80 90a")
        assert (code, [row["result"] for row in document["solutions"]]) == (0, [result])
        assert document["architectures"] == ["sm_90a", "sm_80"]


def test_what_cannot_be_built_is_told_with_the_reason(call, capsys):
    line = "build --local set --solutions good broken narrow needy"
    assert main(line.split()) == 1
    out, err = capsys.readouterr()
    assert ("1 built, 2 failed, 1 skipped" in out, "[4/4]" in err) == (True, True), err
    assert "main.py" in out.partition("broken: failed")[2]
    rows = {row["name"]: row for row in call(line)[1]["solutions"]}
    wanted = {"broken": "failed", "narrow": "failed", "needy": "skipped", "good": "cached"}
    assert {name: row["result"] for name, row in rows.items()} == wanted
    assert "cannot be called" in rows["narrow"]["message"]
    assert "no-such-package-xyz" in rows["needy"]["message"]
    needy = "build --local set --solutions needy --quiet"
    assert (main(needy.split()), main([*needy.split(), "--require-built"])) == (0, 1)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_a_library_is_built_and_its_artifact_named(here, call):
    code, document = call("build --local set --solutions cpp --build-jobs 1")
    [row] = document["solutions"]
    assert (code, row["result"], row["binding"]) == (0, "built", "tvm-ffi")
    assert Path(row["artifact"]).is_relative_to(here / "cache")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--local set --solutions god", "did you mean 'good'?"),
        ("--local set --arch sm_9x", "is no GPU architecture"),
        (f"{GOOD} --authors alice", "no trace set: give --local PATH"),
        ("draft.py", "no trace set: give --local PATH"),
        (f"{GOOD} --entry run", "no trace set: give --local PATH"),
        (f"{GOOD} --entry run --local set", "sets this itself, so --entry is refused"),
        (GOOD, "FIB_CACHE_PATH"),
    ],
)
def test_misuse_and_a_cache_that_cannot_be_written_build_nothing(here, capsys, line, message):
    (here / "cache").write_text("a file")
    assert main(["build", *line.split()]) == 2
    assert message in capsys.readouterr().err


def test_what_runs_compiled_counts_is_cleared_and_stays_under_a_run(here, call):
    judge = here / "cache/judge/triton-3/kernel.cubin"
    for name, age_s in (("old", 500), ("new", 100)):
        for file in (here / f"cache/jit/ab/ab{name}/triton/kernel.cubin", judge):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"x" * 3000)
        (note := here / f"cache/jit/ab/ab{name}.solution").write_text(f"{name} one")
        os.utime(note, (time.time() - age_s,) * 2)
    shown = call("cache show")[1]
    assert [one["solution"] for one in shown["compiled_at_run"]] == ["new one", "old one"]
    with ArtifactCache(here / "cache").used():
        assert call("cache clear")[1]["kept_bytes"] == 9000
    assert call("cache clear --failed")[1]["kept_bytes"] == 9000
    assert call("cache clear --keep-gb 0.000004")[1]["removed_bytes"] == 3000
    assert call("cache clear")[1]["kept_bytes"] == 0


def test_the_times_of_references_are_listed_and_removed(here, call, capsys):
    cache = BaselineCache(here / "cache")
    cache.write(make_kept())
    (cache.folder / "strange").mkdir()
    entries = call("cache baselines")[1]["entries"]
    assert {entry.get("definition"): entry.get("latency_ms") for entry in entries} == {"double": 2.0, None: None}
    main(["cache", "baselines"])
    assert "2 baselines, 1 that cannot be used, " in capsys.readouterr().out
    assert call("cache baselines --clear") == (0, {"baselines": str(cache.folder), "removed": 2})
