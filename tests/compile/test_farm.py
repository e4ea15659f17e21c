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


def make_sized(size):
    """Make a solution whose sources have this many bytes; the larger, the longer its build is expected to take."""
    return make_native(f"s{size}", main=f"// s{size} {'x' * size}\n{EXPORT}")


def build_all(folder, solutions, jobs=1, action=""):
    folder.mkdir(exist_ok=True)
    with BuildFarm(folder / "cache", jobs=jobs, toolchain=pretend_compiler(folder, action=action)) as farm:
        built = list(farm.build_all(solutions))
    assert all(one.artifact for one in built)
    return built


def test_the_longest_build_starts_first_and_beside_it_the_shortest_so_that_a_gpu_has_work_soon(tmp_path, runs):
    sizes = (10, 90_000, 60_000, 40_000, 20_000)
    build_all(tmp_path / "one", map(make_sized, sizes))
    assert runs.sources == [f"s{size}" for size in sorted(sizes, reverse=True)]
    runs.sources.clear()
    build_all(tmp_path / "two", map(make_sized, sizes), jobs=2)
    assert set(runs.sources[:2]) == {"s10", "s90000"}
    assert len(runs.sources) == 5


@pytest.mark.parametrize("jobs", [1, 3])
def test_no_more_compilers_run_than_are_allowed_and_a_lone_solution_uses_all(tmp_path, runs, jobs):
    build_all(tmp_path / "many", map(make_sized, range(5)), jobs, action="sleep 0.05")
    assert runs.most == jobs
    runs.most = 0
    build_all(tmp_path / "lone", [make_native(headers={f"unit{number}.cpp": "" for number in range(5)})], jobs)
    assert runs.most == jobs


def test_what_failed_and_what_python_needs_are_ready_at_once(tmp_path, runs):
    broken = make_native("broken", compile_options={"cflags": ["-o x"]})
    with BuildFarm(tmp_path, toolchain=TOOLCHAIN) as farm:
        farm.add([make_native(), broken])
        assert [farm.is_ready(one) for one in (make_native(), broken, make_solution())] == [False, True, True]
        assert "'-o' is not allowed" in str(farm.built(broken).error)
        assert farm.built(make_solution()).artifact.kind == "python"
        assert farm.open_builds == 1
    assert runs.sources == []


NAMES = [make_native("one"), make_native("two", author="bob"), make_native("three", definition="other")]


@pytest.mark.parametrize("jobs", [1, 3])
def test_the_same_sources_under_several_names_are_compiled_once_in_this_run_and_the_next(tmp_path, runs, jobs):
    built = build_all(tmp_path / "good", NAMES, jobs)
    assert {one.solution.name for one in built} == {"one", "two", "three"}
    assert len({one.artifact for one in built}) == len(runs.steps) == 1
    action = 'case "$*" in *main.cpp*) echo "main.cpp:1: error: no" >&2; exit 1;; esac'
    toolchain = pretend_compiler(tmp_path, action=action)
    for _ in range(2):
        with BuildFarm(tmp_path / "cache", jobs=jobs, toolchain=toolchain) as farm:
            built = list(farm.build_all(NAMES))
            farm.add(NAMES)
            assert farm.open_builds == 0
        assert {one.solution.name for one in built if one.error} == {"one", "two", "three"}
    assert len(runs.steps) == 3  # with our own source, after which the solution is blamed


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


def wait_for(condition, limit_s=60.0):
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_two_processes_that_build_the_same_at_once_compile_it_once(tmp_path):
    builders = start_builders(pretend_compiler(tmp_path, action="sleep 0.5"), tmp_path / "cache", 2)
    assert sorted(builder.communicate()[0] for builder in builders) == ["cached\n", "made\n"]


def test_kill_9_during_a_build_ends_the_compilers_and_leaves_nothing_that_is_trusted(tmp_path):
    cache = tmp_path / "cache"
    (builder,) = start_builders(pretend_compiler(tmp_path, action="sleep 1000"), cache, 1)
    assert wait_for(lambda: len(processes_in(cache)) > 1)
    builder.kill()
    builder.communicate()
    assert wait_for(lambda: not processes_in(cache))
    assert not ArtifactCache(cache).entries()
    assert len(list((cache / "staging").iterdir())) == 1
    build_all(tmp_path, [make_native()])
    assert not list((cache / "staging").iterdir())
    assert not ArtifactCache(cache).verify()


def states_in(folder):
    """Return what the compilers do whose working folder is below a folder: T if stopped."""
    found = set()
    for pid in processes_in(folder):
        with suppress(OSError):
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
            found |= set() if "(python" in name else {rest.split()[0]}
    return found


def is_still(folder):
    """Whether compilers are stopped, or have ended, or (D) wait in `vfork` for a child that is stopped."""
    states = states_in(folder)
    return "T" in states and states <= {"T", "D", "Z"}


def test_compilers_are_held_still_and_their_time_does_not_pass(tmp_path):
    cache, toolchain = tmp_path / "cache", pretend_compiler(tmp_path, action=until_there(tmp_path / "go"))
    with BuildFarm(cache, jobs=1, toolchain=toolchain, limits=StepLimits(2.0, 4 << 30)) as farm:
        farm.add([make_native()])
        farm.poll()
        assert wait_for(lambda: states_in(cache))
        farm.hold()
        (tmp_path / "go").touch()
        farm.add([make_sized(10)])
        assert wait_for(lambda: is_still(cache))
        time.sleep(2.0)
        assert (farm.poll(), farm.open_builds) == ([], 2)
        assert is_still(cache)
        farm.release()
        while farm.open_builds:
            farm.wait()
            farm.poll()
        assert farm.built(make_native()).artifact


def test_a_farm_that_is_closed_ends_its_compilers_also_those_that_it_holds(tmp_path):
    cache = tmp_path / "cache"
    with BuildFarm(cache, jobs=2, toolchain=pretend_compiler(tmp_path, action="sleep 1000")) as farm:
        farm.add([make_sized(1), make_sized(2)])
        farm.poll()
        assert wait_for(lambda: len(processes_in(cache)) >= 4)
        farm.hold()
    assert wait_for(lambda: not processes_in(cache))  # killed; whoever inherits them reaps them
    assert [path for path in cache.rglob("*") if path.is_file()] == []
