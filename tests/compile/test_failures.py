"""Sources that do not compile are remembered, and nothing else that went wrong is."""

import json

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.compile import BuildFailure, BuildFarm, find_toolchain
from flashinfer_bench.compile import cache as cache_module
from flashinfer_bench.compile.cache import ArtifactCache
from flashinfer_bench.compile.compilers import StepLimits
from tests.kit.native import make_native, pretend_compiler

TOOLCHAIN = find_toolchain()
pytestmark = pytest.mark.skipif(TOOLCHAIN.cxx is None or TOOLCHAIN.tvm_ffi is None, reason="needs g++ and tvm-ffi")
PLAIN = 'echo "main.cpp:1:1: error: no"; exit 1'


def fail_on_main(then):
    """Return a script that does something when it compiles a solution, and not with our probe."""
    return f'case "$*" in *main.cpp*) {then};; esac'


def build(folder, action, solution=None, **settings):
    """Build with a compiler that does something first; return the outcome."""
    toolchain = pretend_compiler(folder, action=action)
    with BuildFarm(folder / "cache", jobs=1, toolchain=toolchain, **settings) as farm:
        return next(farm.build_all([solution or make_native()]))


def test_sources_that_do_not_compile_have_the_same_log_again_without_a_compiler(tmp_path):
    toolchain = pretend_compiler(tmp_path, action=fail_on_main(PLAIN))
    with BuildFarm(tmp_path / "cache", toolchain=toolchain) as farm:
        (failed,) = farm.build_all([make_native()])
    with BuildFarm(tmp_path / "cache", toolchain=toolchain) as farm:
        other = make_native("other", author="bob", definition="another")
        farm.add([other])
        again = farm.built(other)  # it is ready at once
    assert isinstance(again.error, BuildFailure)
    assert not failed.was_cached
    assert again.was_cached
    log, _, remedy = str(again.error).rpartition("\n")
    assert log == str(failed.error)
    assert "cache clear --failed" in remedy


def test_changing_a_source_a_flag_or_the_compiler_compiles_it_again(tmp_path):
    toolchain = pretend_compiler(tmp_path, action=fail_on_main(PLAIN))
    ones = [make_native(), make_native(main="// other\n"), make_native(compile_options={"cflags": ["-O2"]})]
    for one in ones:
        with BuildFarm(tmp_path / "cache", toolchain=toolchain) as farm:
            assert not next(farm.build_all([one])).was_cached
    assert build(tmp_path, "", ones[0]).error is None


@pytest.mark.parametrize(
    "action",
    [
        "kill -9 $$",
        "sleep 30",
        'echo "main.cpp:1: error: x"; echo "No space left on device"; exit 1',
        'echo "main.cpp:1: error: x"; echo "virtual memory exhausted: Cannot allocate memory"; exit 1',
        'echo "main.cpp:1: fatal error: gone.h: No such file or directory"; exit 1',
        'echo "main.cpp:1: error: /opt/x.h: Permission denied"; exit 1',
        'echo "main.cpp:1:1: internal compiler error: no"; exit 1',
        'echo "g++: fatal error: CPU time limit exceeded signal terminated program cc1plus"; exit 1',
        "exit 1",
    ],
    ids=["killed", "too long", "disk", "memory", "missing", "denied", "internal", "processor time", "silent"],
)
def test_a_failure_that_is_not_the_sources_is_forgotten(tmp_path, action):
    built = build(tmp_path, fail_on_main(action), limits=StepLimits(1.0, 4 << 30))
    assert built.error is not None
    assert ArtifactCache(tmp_path / "cache").entries() == []


def test_what_does_not_link_is_tried_again_since_a_library_may_be_there_then(tmp_path):
    action = 'case "$*" in *-shared*) [ -e ../src/main.cpp ] && echo "ld: error: no" && exit 1;; esac'
    assert isinstance(build(tmp_path, action).error, BuildFailure)
    assert ArtifactCache(tmp_path / "cache").entries() == []


def test_failures_are_shown_and_forgotten_alone(tmp_path, monkeypatch, capsys):
    build(tmp_path, fail_on_main(PLAIN))
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    build(tmp_path, "", make_native(main="// right\n"))
    main(["cache", "show"])
    (row,) = [line for line in capsys.readouterr().out.splitlines() if " failed " in line]
    assert row.startswith("native ")
    assert main(["cache", "verify"]) == 0
    main(["cache", "clear", "--failed"])
    capsys.readouterr()
    main(["cache", "show", "--format", "json"])
    (left,) = json.loads(capsys.readouterr().out)["artifacts"]
    assert left["failure"] is None


def test_no_more_failures_are_kept_than_are_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "MOST_FAILURES", 2)
    for number in range(4):
        build(tmp_path, fail_on_main(PLAIN), make_native(main=f"// {number}\n"))
    assert len(ArtifactCache(tmp_path / "cache").entries()) == 2
