"""What every part of the package uses: cores and memory by the limits of a container, bounded logs, words for ends."""

import gc
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.base import host
from flashinfer_bench.base.bounded_log import BoundedLog
from flashinfer_bench.base.exits import describe_exit
from flashinfer_bench.base.host import (
    collector_paused,
    cores_for_compilers,
    count_memory_kills,
    spare_cores,
    usable_cores,
    usable_memory,
)

pytestmark = pytest.mark.cpu
GIB = 1 << 30


def make_system(root, lines, files):
    files = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in {"proc/self/cgroup": lines, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("lines", "files", "expected"),
    [
        ("0::/\n", {"memory.max": f"{GIB}\n"}, GIB),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": f"{GIB}\n"}, GIB),
        ("0::/a/b\n", {"a/b/memory.max": f"{GIB // 2}\n", "a/memory.max": f"{GIB}\n"}, GIB // 2),
        ("5:memory:/box\n3:cpu:/box\n", {"memory/box/memory.limit_in_bytes": f"{GIB}\n"}, GIB),
        ("0::/\n", {"memory.max": "max\n"}, None),
        ("0::/\n", {"memory.max": ""}, None),
        ("0::/\n", {"memory.max": "9223372036854771712\n"}, None),
        ("", {}, None),
    ],
    ids=["own", "around", "the least", "version 1", "max", "empty", "version 1's none", "no groups"],
)
def test_a_containers_limit_counts_as_the_memory(tmp_path, lines, files, expected):
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert usable_memory(make_system(tmp_path, lines, files)) == (expected or physical)


@pytest.mark.parametrize(("text", "expected"), [("100000 100000\n", 1), ("50000 100000\n", 1), ("max 100000\n", None)])
def test_a_quota_of_time_counts_in_whole_cores(tmp_path, text, expected):
    cores = usable_cores(make_system(tmp_path, "0::/a\n", {"a/cpu.max": text}))
    assert cores == (expected or len(os.sched_getaffinity(0)))


def test_kills_for_want_of_memory_are_counted(tmp_path):
    assert count_memory_kills(tmp_path) == 0
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("oom_group 5\noom_kill 2\n")
    assert count_memory_kills(tmp_path) == 2


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_is_paused_for_a_step_and_is_then_as_it_was(was_enabled):
    (gc.enable if was_enabled else gc.disable)()
    try:
        with collector_paused(), pytest.raises(ValueError, match="wrong"), collector_paused():
            assert not gc.isenabled()
            raise ValueError("wrong")
        assert gc.isenabled() == was_enabled
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("cores", "spare", "first"), [(3, [], 13), (4, [15], 13), (11, [14, 15], 7), (16, [12, 13, 14, 15], 4)]
)
def test_work_beside_measurements_gets_the_last_quarter_of_the_cores_and_long_work_all_but_one(
    monkeypatch, cores, spare, first
):
    monkeypatch.setattr(host, "usable_cores", lambda: cores)
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: set(range(16)))
    assert spare_cores() == spare
    assert cores_for_compilers() == list(range(first, 16))


@given(st.lists(st.binary(max_size=50), max_size=30))
def test_a_log_keeps_its_ends_and_says_how_much_is_gone(chunks):
    log, whole = BoundedLog(head_bytes=8, tail_bytes=16), b"".join(chunks)
    for chunk in chunks:
        log.add(chunk)
    cut = whole
    if len(whole) > 24:
        cut = whole[:8] + b"\n[... %d bytes cut ...]\n" % (len(whole) - 24) + whole[-16:]
    assert log.take().encode() == cut.decode(errors="replace").encode()
    assert log.take() == ""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-9, "was killed by SIGKILL"),
        (-99, "was killed by signal 99"),
        (None, "ended (its exit code is not known)"),
    ],
)
def test_every_end_has_words(code, said):
    assert describe_exit(code) == said
