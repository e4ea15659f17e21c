"""Many builds at once: bounded, the longest first, once each, also across processes; a killed one leaves nothing."""

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from flashinfer_bench.compile import BuildFarm, find_toolchain
from flashinfer_bench.compile.cache import ArtifactCache
from flashinfer_bench.compile.compilers import StepLimits
from tests.kit.make import make_solution
from tests.kit.native import EXPORT, make_native, pretend_compiler, processes_in, until_there

TOOLCHAIN = find_toolchain()
pytestmark = pytest.mark.skipif(TOOLCHAIN.cxx is None or TOOLCHAIN.tvm_ffi is None, reason="needs g++ and tvm-ffi")


def make_sized(name, size):
    """Make a solution whose sources have so many bytes."""
    return make_native(name, main=f"// {name} {'x' * size}\n{EXPORT}")


def test_what_is_guessed_to_take_longest_is_started_first(tmp_path, runs):
    toolchain = pretend_compiler(tmp_path)
    solutions = [make_sized(name, size) for name, size in (("small", 10), ("large", 90_000), ("middle", 20_000))]
    with BuildFarm(tmp_path / "cache", jobs=1, toolchain=toolchain) as farm:
        assert all(built.artifact for built in farm.build_all(solutions))
    assert runs.sources == ["large", "middle", "small"]


def test_where_several_are_begun_at_once_the_quickest_is_among_them_so_that_a_gpu_has_work_soon(tmp_path, runs):
    toolchain = pretend_compiler(tmp_path)
    solutions = [make_sized(f"s{size}", size) for size in (10, 90_000, 60_000, 40_000, 20_000)]
    with BuildFarm(tmp_path / "cache", jobs=2, toolchain=toolchain) as farm:
        assert all(built.artifact for built in farm.build_all(solutions))
    assert set(runs.sources[:2]) == {"s10", "s90000"}
    assert len(runs.sources) == 5


@pytest.mark.parametrize("jobs", [1, 3])
def test_no_more_compilers_run_than_are_allowed(tmp_path, runs, jobs):
    solutions = [make_sized(f"s{number}", number) for number in range(5)]
    with BuildFarm(tmp_path / "cache", jobs=jobs, toolchain=pretend_compiler(tmp_path, action="sleep 0.05")) as farm:
        assert len(list(farm.build_all(solutions))) == 5
    assert runs.most == jobs


def test_the_files_of_a_lone_solution_are_compiled_at_once(tmp_path, runs):
    solution = make_native(headers={f"unit{number}.cpp": "" for number in range(5)})
    with BuildFarm(tmp_path / "cache", jobs=4, toolchain=pretend_compiler(tmp_path)) as farm:
        assert next(farm.build_all([solution])).artifact
    assert runs.most == 4


def test_what_failed_and_what_python_needs_are_ready_at_once(tmp_path, runs):
    broken = make_native("broken", compile_options={"cflags": ["-o x"]})
    with BuildFarm(tmp_path, toolchain=TOOLCHAIN) as farm:
        farm.add([make_native(), broken])
        assert [farm.is_ready(one) for one in (make_native(), broken, make_solution())] == [False, True, True]
        assert "'-o' is not allowed" in str(farm.built(broken).error)
        assert farm.built(make_solution()).artifact.kind == "python"
        assert farm.open_builds == 1
    assert runs.sources == []


def test_the_same_sources_under_two_names_are_compiled_once(tmp_path, runs):
    names = [make_native("one"), make_native("two", author="bob"), make_native("three", definition="other")]
    with BuildFarm(tmp_path / "cache", jobs=3, toolchain=pretend_compiler(tmp_path)) as farm:
        built = list(farm.build_all(names))
    assert {one.solution.name for one in built} == {"one", "two", "three"}
    assert len({one.artifact for one in built}) == 1
    assert len(runs.sources) == 1


@pytest.mark.parametrize("jobs", [1, 3])
def test_what_does_not_compile_is_compiled_once_in_a_run_and_not_in_the_next(tmp_path, runs, jobs):
    action = 'case "$*" in *main.cpp*) echo "main.cpp:1: error: no" >&2; exit 1;; esac'
    broken = [make_native("one"), make_native("two", author="bob"), make_native("three", definition="other")]
    toolchain, seen = pretend_compiler(tmp_path, action=action), []
    for _ in range(2):
        with BuildFarm(tmp_path / "cache", jobs=jobs, toolchain=toolchain) as farm:
            built = list(farm.build_all(broken))
            farm.add(broken)
            assert farm.open_builds == 0
        assert {one.solution.name for one in built} == {"one", "two", "three"}
        seen += {(one.error, one.was_cached) for one in built}  # an error is made once for each digest
    assert sorted(was_cached for _, was_cached in seen) == [False, True, True, True]
    assert len(runs.steps) == 2  # the sources, and ours


def test_a_function_that_a_library_lacks_is_held_against_nobody_else(tmp_path):
    asks = [make_native("first", entry_point="main.cpp::absent"), make_native("second")]
    with BuildFarm(tmp_path / "cache", jobs=1, toolchain=pretend_compiler(tmp_path)) as farm:
        errors = {one.solution.name: one.error for one in farm.build_all(asks)}
    assert "exports no function 'absent'" in str(errors["first"])
    assert errors["second"] is None


BUILD = """
import sys
from pathlib import Path
from flashinfer_bench.compile import BuildFarm
from tests.kit.native import make_native, toolchain_of
toolchain = toolchain_of(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
with BuildFarm(Path(sys.argv[2]), jobs=1, toolchain=toolchain) as farm:
    for built in farm.build_all([make_native()]):
        print("cached" if built.was_cached else "made" if built.artifact else built.error, flush=True)
"""


def start_builder(toolchain, cache):
    """Start a process that builds the solution of the kit once it is told to."""
    command = [sys.executable, "-c", BUILD, str(toolchain.cxx.path), str(cache)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def test_two_processes_that_build_the_same_at_once_compile_it_once(tmp_path):
    toolchain = pretend_compiler(tmp_path, action="sleep 0.5")
    builders = [start_builder(toolchain, tmp_path / "cache") for _ in range(2)]
    for builder in builders:
        builder.stdin.write("\n")
        builder.stdin.flush()
    assert sorted(builder.communicate()[0] for builder in builders) == ["cached\n", "made\n"]


def wait_for(condition, limit_s=60.0):
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_kill_9_during_a_build_ends_the_compilers_and_leaves_nothing_that_is_trusted(tmp_path):
    cache = tmp_path / "cache"
    builder = start_builder(pretend_compiler(tmp_path, action="sleep 1000"), cache)
    builder.stdin.write("\n")
    builder.stdin.flush()
    assert wait_for(lambda: len(processes_in(cache)) > 1)
    builder.kill()
    builder.communicate()
    assert wait_for(lambda: not processes_in(cache))
    assert not ArtifactCache(cache).entries()
    assert len(list((cache / "staging").iterdir())) == 1
    with BuildFarm(cache, toolchain=pretend_compiler(tmp_path)) as farm:
        assert next(farm.build_all([make_native()])).artifact
    assert not list((cache / "staging").iterdir())
    assert not ArtifactCache(cache).verify()


def state_of(pid):
    """The letter for what a process does: T where it is stopped."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def compilers_in(folder):
    """Return the processes of compilers whose working folder is below a folder."""
    names = {pid: Path(f"/proc/{pid}/comm") for pid in processes_in(folder)}
    return [pid for pid, name in names.items() if name.exists() and not name.read_text().startswith("python")]


def is_still(folder):
    """Whether compilers are stopped, or have ended, or (D) wait in `vfork` for a child that is stopped."""
    states = {state_of(pid) for pid in compilers_in(folder)}
    return "T" in states and states <= {"T", "D", "Z"}


def test_compilers_are_held_still_and_their_time_does_not_pass(tmp_path):
    cache, toolchain = tmp_path / "cache", pretend_compiler(tmp_path, action=until_there(tmp_path / "go"))
    with BuildFarm(cache, jobs=1, toolchain=toolchain, limits=StepLimits(2.0, 4 << 30)) as farm:
        farm.add([make_native()])
        farm.poll()
        assert wait_for(lambda: compilers_in(cache))
        farm.hold()
        (tmp_path / "go").touch()
        farm.add([make_sized("another", 10)])
        assert wait_for(lambda: is_still(cache))
        time.sleep(2.0)
        assert (farm.poll(), farm.open_builds) == ([], 2)
        assert is_still(cache)
        farm.release()
        while farm.open_builds:
            farm.wait()
            farm.poll()
        assert farm.built(make_native()).artifact


@pytest.mark.parametrize("is_held", [False, True])
def test_a_farm_that_is_closed_ends_its_compilers(tmp_path, is_held):
    cache = tmp_path / "cache"
    with BuildFarm(cache, jobs=2, toolchain=pretend_compiler(tmp_path, action="sleep 1000")) as farm:
        farm.add([make_sized("a", 1), make_sized("b", 2)])
        farm.poll()
        assert wait_for(lambda: len(processes_in(cache)) >= 4)
        if is_held:
            farm.hold()
    assert wait_for(lambda: not processes_in(cache))  # killed; whoever inherits them reaps them
    assert [path for path in cache.rglob("*") if path.is_file()] == []
