"""Many builds at once: bounded, the longest first, once each, also across processes; a killed build leaves nothing."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from flashinfer_bench.compile import BuildPool, find_toolchain
from flashinfer_bench.compile.cache import ArtifactCache
from tests.compile.conftest import is_quiet, wait_for
from tests.kit.native import EXPORT, make_native, pretend_compiler, processes_in

TOOLCHAIN = find_toolchain()
pytestmark = pytest.mark.skipif(TOOLCHAIN.cxx is None or TOOLCHAIN.tvm_ffi is None, reason="needs g++ and tvm-ffi")


def make_sized(size):
    """Make a solution whose sources have this many bytes; the larger, the longer its build is expected to take."""
    return make_native(f"s{size}", main=f"// s{size} {'x' * size}\n{EXPORT}")


def build_all(folder, solutions, jobs=1, action=""):
    folder.mkdir(exist_ok=True)
    with BuildPool(folder / "cache", jobs=jobs, toolchain=pretend_compiler(folder, action=action)) as build_pool:
        built = list(build_pool.build_all(solutions))
    assert all(one.artifact for one in built)
    return built


def name_of(pid):
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()


def test_no_more_compilers_run_than_are_allowed_and_a_lone_solution_uses_all(tmp_path):
    lone, go = make_native(headers={f"unit{number}.cpp": "" for number in range(5)}), tmp_path / "go"
    toolchain = pretend_compiler(tmp_path, action=f"[ -e '{go}' ] || sleep 1000")

    def sleepers():
        return [pid for pid in processes_in(tmp_path / "cache") if name_of(pid) == "sleep"]

    for solutions in ([make_sized(number) for number in range(5)], [lone]):
        go.unlink(missing_ok=True)
        with BuildPool(tmp_path / "cache", jobs=3, toolchain=toolchain) as build_pool:
            build_pool.add(solutions)
            assert wait_for(lambda: len(sleepers()) >= 3)
            time.sleep(0.3)  # a fourth would begin now
            assert len(sleepers()) == 3
            go.touch()
            for pid in sleepers():
                os.kill(pid, signal.SIGTERM)
            while build_pool.open_builds:
                build_pool.wait()
                build_pool.poll()


NAMES = [make_native("one"), make_native("two", author="bob"), make_native("three", definition="other")]


def test_the_same_sources_under_several_names_are_compiled_once_in_this_run_and_the_next(tmp_path, runs):
    built = build_all(tmp_path / "good", NAMES, jobs=3)
    assert {one.solution.name for one in built} == {"one", "two", "three"}
    assert len({one.artifact for one in built}) == len(runs.sources) == 1
    action = 'case "$*" in *main.cpp*) echo "main.cpp:1: error: no" >&2; exit 1;; esac'
    toolchain = pretend_compiler(tmp_path, action=action)
    for _ in range(2):
        with BuildPool(tmp_path / "cache", jobs=3, toolchain=toolchain) as build_pool:
            built = list(build_pool.build_all(NAMES))
            build_pool.add(NAMES)
            assert build_pool.open_builds == 0
        assert {one.solution.name for one in built if one.error} == {"one", "two", "three"}
    assert len(runs.sources) == 2


BUILD = """
import sys
from pathlib import Path
from flashinfer_bench.compile import BuildPool
from tests.kit.native import make_native, toolchain_of
toolchain = toolchain_of(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
with BuildPool(Path(sys.argv[2]), jobs=1, toolchain=toolchain) as build_pool:
    for built in build_pool.build_all([make_native()]):
        print("cached" if built.was_cached else "made" if built.artifact else built.error, flush=True)
"""


def start_builders(toolchain, cache, count):
    """Start processes that build the solution of the kit, all at once."""
    command = [sys.executable, "-c", BUILD, str(toolchain.cxx.path), str(cache)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    builders = [subprocess.Popen(command, **pipes) for _ in range(count)]
    assert [builder.stdout.readline() for builder in builders] == ["ready\n"] * count
    for builder in builders:
        builder.stdin.write("\n")
        builder.stdin.flush()
    return builders


def test_two_processes_that_build_the_same_at_once_compile_it_once(tmp_path):
    builders = start_builders(pretend_compiler(tmp_path, action="sleep 0.5"), tmp_path / "cache", 2)
    assert sorted(builder.communicate()[0] for builder in builders) == ["cached\n", "made\n"]


def test_kill_9_during_a_build_ends_the_compilers_and_leaves_no_trusted_files(tmp_path):
    cache = tmp_path / "cache"
    (builder,) = start_builders(pretend_compiler(tmp_path, action="sleep 1000"), cache, 1)
    assert wait_for(lambda: len(processes_in(cache)) > 1)
    builder.kill()
    builder.communicate()
    assert is_quiet(cache)
    assert not ArtifactCache(cache).entries()
    assert len(list((cache / "staging").iterdir())) == 1
    build_all(tmp_path, [make_native()])
    assert not (cache / "staging").exists()
    assert not ArtifactCache(cache).verify()
