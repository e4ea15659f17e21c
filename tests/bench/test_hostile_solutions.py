"""Impossible in a real run: a solution reads leftovers of others, reaches them, knows a seed, or is fast without
working."""

import os
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from flashinfer_bench.bench.runner import job_seeds, sandbox
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.sandbox import landlock
from flashinfer_bench.sandbox.seccomp import can_filter
from tests.bench.small_runs import HONEST, judge, write_set

pytestmark = [pytest.mark.cpu, pytest.mark.slow]
HAS_SANDBOX = sys.platform == "linux" and landlock.version() >= 3 and can_filter()
needs_walls = pytest.mark.skipif(not HAS_SANDBOX, reason="this kernel has no walls")
DEVICES = [pytest.param("cpu"), pytest.param("0", marks=pytest.mark.gpu)]
RUNNERS = pytest.mark.parametrize("isolated", [False, True], ids=["persistent", "isolated"])


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    return tmp_path / "cache"


LEAVES_AND_LOOKS = """
import torch
seen = False
def run(x):
    global seen
    arena = torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())
    far = arena[arena.numel() // 2 :]
    if not seen and far.any():
        raise RuntimeError("another has left something here")
    seen = True
    far.fill_(1)
    return x * 2
"""
OVERWRITES = """
import glob
import os
own = os.path.dirname(os.path.abspath(__file__))
for path in glob.glob(f"{own}/../../../*/*/files/main.py"):
    if os.path.dirname(os.path.realpath(path)) != own:
        os.chmod(path, 0o644)
        with open(path, "w") as file:
            file.write("def run(x):\\n    return x\\n")
def run(x):
    return x * 2
"""


@pytest.mark.parametrize("device", DEVICES)
@RUNNERS
def test_a_worker_neither_reads_nor_changes_files_of_other_workers(tmp_path, device, isolated):
    sources = {
        name: f"# {name}{text}" for name, text in zip("abcd", [LEAVES_AND_LOOKS] * 3 + [OVERWRITES], strict=True)
    }
    run = judge(write_set(tmp_path, sources, sizes=(8, 9)), devices=[device], use_isolated_runner=isolated)
    assert {one.status.value for one in run.done.values()} == {"PASSED"}, run.logs
    assert len(run.done) == 8


TELLS_WHEN_IT_IS_THERE = """
import os, time
def tell():
    print(f"there {os.getpid()} {time.monotonic():017.6f}", flush=True)
tell()
def run(x):
    tell()
    return x * 2
"""
LOGS = """
import time
from pathlib import Path
def run(x):
    with Path({path!r}).open("a") as log:
        log.write(f"{{len(x)}} {{time.monotonic()}}\\n")
    return x * 2
"""


def test_baselines_are_timed_while_no_solution_is_loaded(tmp_path):
    log, sources = tmp_path / "calls", {name: f"# {name}{TELLS_WHEN_IT_IS_THERE}" for name in "ab"}
    trace_set = write_set(tmp_path / "set", sources, {"double": LOGS.format(path=str(log))}, sizes=(8, 9))
    # The reference writes its log, which the walls of its worker would refuse.
    run = judge(trace_set, use_isolated_runner=True, sandbox="off", warmup_runs=2, iterations=10)
    there = {}
    for one in run.done.values():
        for pid, at in re.findall(r"^there (\d+) (\d{10}\.\d{6})$", one.log, re.M):
            there.setdefault(pid, []).append(float(at))
    assert len(there) >= 2
    beside = Counter(
        (size, any(min(times) < float(at) < max(times) for times in there.values()))
        for size, at in map(str.split, log.read_text().splitlines())
    )
    for size in "89":
        assert beside[size, False] >= 12
        # For two solutions, the expectation of inputs, of compared calls, of odd calls and other stress cases.
        assert beside[size, True] <= 94


ROWS = "def run(x, table):\n    return x[table]\n"
RIGHT_FOR_ONE_TABLE = "first = []\ndef run(x, table):\n    first.append(table.clone())\n    return x[first[0]]\n"


def test_a_solution_that_is_right_for_the_first_trial_alone_is_found_among_the_timed_calls(tmp_path):
    parts = {"inputs": {"x": "float32[n]", "table": "int64[n]"}}
    sources = {"one_table": RIGHT_FOR_ONE_TABLE, "honest": ROWS}
    trace_set = write_set(tmp_path, sources, {"rows": ROWS}, sizes=(4096,), **parts)
    run = judge(trace_set, iterations=4, profile_baseline=False, num_trials=2)
    assert run.statuses == {"one_table": "INCORRECT_NUMERICAL", "honest": "PASSED"}
    assert run.logs["one_table"].startswith("in a call that was timed")


SOFTCAP = "import torch\ndef run(x):\n    return 40 * torch.tanh(x / 40)\n"
SMALL = "def run(x):\n    return x * 1e-4\n"


def test_each_rule_besides_the_tolerance_rejects_outputs_within_it_with_rule_and_evidence(tmp_path):
    sources = {
        "honest_softcap": ("softcap", SOFTCAP),
        "identity": ("softcap", "def run(x):\n    return x.clone()\n"),
        "honest_small": ("small", SMALL),
        "zeros": ("small", "def run(x):\n    return x * 0\n"),
    }
    trace_set = write_set(tmp_path, sources, {"softcap": SOFTCAP, "small": SMALL}, sizes=(1 << 16,))
    settings = {"iterations": 5, "num_trials": 2, "profile_baseline": False}
    usual, without = judge(trace_set, **settings), judge(trace_set, **settings, norm_rule=False, regimes_rule=False)
    passed, wrong = dict.fromkeys(sources, "PASSED"), dict.fromkeys(("identity", "zeros"), "INCORRECT_NUMERICAL")
    assert (without.statuses, usual.statuses) == (passed, {**passed, **wrong})
    zeros, identity, honest = (usual.done[name, "w0"].extra for name in ("zeros", "identity", "honest_softcap"))
    assert (zeros["integrity"]["rule"], identity["integrity"]["rule"]) == ("norm", "regimes")
    assert zeros["integrity"]["evidence"]["error_norm"] == pytest.approx(1.0)
    regime = identity["integrity"]["evidence"]["regime"]
    assert regime in usual.logs["identity"]
    assert honest["regimes"][regime] == "judged"
    assert "regimes" not in without.done["honest_softcap", "w0"].extra


# Walls.

ATTACKS = """
import glob, os, socket
targets = {
    "data set": glob.glob(DATASET + "/**/*.json*", recursive=True),
    "artifacts": glob.glob(CACHE + "/artifacts/*/*/files/*"),
    "caches": glob.glob(CACHE + "/jit/*/*"),
    "baselines": glob.glob(CACHE + "/baselines/*"),
}
for kind, paths in targets.items():
    print("listed", kind, len(paths))
for act in (
    lambda: open(DATASET + "/definitions/new.json", "w"),
    lambda: os.chmod(DATASET + "/definitions", 0),
    lambda: os.mkdir(CACHE + "/jit/new"),
    lambda: open(CACHE + "/baselines/forged.json", "w"),
    lambda: os.rename(CACHE + "/baselines", os.environ["HOME"] + "/baselines"),
    lambda: open(os.path.dirname(os.path.abspath(__file__)) + "/main.py", "a"),
    lambda: open(LEFT, "w"),
    lambda: socket.create_connection(("127.0.0.1", 9), 1),
):
    try:
        act()
        print("done")
    except OSError as error:
        print("refused", error.errno)
"""
KEEPS = """
import os
from pathlib import Path
seen = []
for variable in ("TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "FLASHINFER_WORKSPACE_BASE"):
    folder = Path(os.environ[variable])
    folder.mkdir(parents=True, exist_ok=True)
    seen.append((folder / "kept").exists())
    (folder / "kept").write_text("x")
import tempfile
with tempfile.NamedTemporaryFile("w", dir=None) as file:
    print("kept", seen, file.name.startswith(os.environ["HOME"]), os.environ["USER"])
def run(x):
    return x * 2
"""
WALLED = {"sandbox": "strict", "iterations": 10, "profile_baseline": False}


@needs_walls
def test_attempts_against_other_processes_are_refused_and_the_run_continues(tmp_path, cache):
    root = tmp_path / "set"
    left = Path(f"/dev/shm/fib-left-{os.getpid()}")
    attacker = f"DATASET, CACHE, LEFT = {str(root)!r}, {str(cache)!r}, {str(left)!r}\n{ATTACKS}{HONEST}"
    (cache / "baselines").mkdir(parents=True)
    (cache / "baselines" / "kept.json").write_text("{}")
    trace_set = write_set(root, {"attacker": attacker, "honest": HONEST}, sizes=(4, 5))
    run = judge(trace_set, **WALLED)
    assert {one.status.value for one in run.done.values()} == {"PASSED"}
    said = [line.rsplit(" ", 1) for line in run.done["attacker", "w0"].log.splitlines()]
    assert [count for what, count in said if what.startswith("listed")] == ["0"] * 4
    refused = {count for what, count in said if what == "refused"} - {"18"}  # a home on another file system
    assert refused in ({"1", "13"}, {"13"})
    assert "done" not in run.done["attacker", "w0"].log
    for walls, expected in (
        (run, (["files", "calls", "root"], "walls")),
        (judge(trace_set, sandbox="off"), ([], "none")),
    ):
        record = walls.finished[0].trace.evaluation.extra["run"]
        assert (record["sandbox"]["reached"], record["fingerprint"]["sandbox"]) == expected
    left.unlink()  # of the run without walls


@needs_walls
def test_compiled_files_of_a_solution_stay_its_own_and_exist_in_the_next_run(tmp_path):
    trace_set = write_set(tmp_path / "set", {name: f"# {name}\n{KEEPS}" for name in "ab"})
    for known in (False, True):
        run = judge(trace_set, **WALLED)
        assert set(run.logs.values()) == {f"kept {[known] * 3} True worker"}


@needs_walls
def test_strict_is_refused_if_a_part_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox.landlock, "version", lambda: 1)
    with pytest.raises(ConfigError, match="Landlock is of version 1, and version 3"):
        judge(write_set(tmp_path / "set", {"a": HONEST}), **WALLED)


# Seeds: a recorded job is judged again on its inputs, and no solution reads a seed before.

KNOWN = 0x2F1E3D4C5B6A7988
LOOKS_FOR_THE_SEED = """
import os
from pathlib import Path
seed = 0x2F1E3D4C5B6A7988 ^ int("0")
forms = [str(seed).encode(), hex(seed)[2:].encode(), seed.to_bytes(8, "little"), seed.to_bytes(8, "big")]
own = Path(__file__).resolve().parent
def candidates():
    run_directory = Path(os.environ["HOME"]).parent
    places = [run_directory, Path(os.environ["TMPDIR"]), Path.cwd(), own.parent]
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            yield from (process / name for name in ("environ", "cmdline"))
    for place in places:
        try:
            yield from (path for path in place.rglob("*") if path.is_file() and own not in path.resolve().parents)
        except OSError:
            pass
def look():
    for path in candidates():
        try:
            content = path.read_bytes()
        except OSError:
            continue
        if any(form in content for form in forms):
            raise RuntimeError(f"the seed stands in {path}")
LEAK
look()
calls = 0
def run(x):
    global calls
    calls += 1
    if calls < 4:
        look()
    return x * 2
"""
"""The seed stands in its own text, so it does not look there."""


@pytest.mark.parametrize(
    ("leak", "isolated", "status"),
    [
        ('Path(os.environ["HOME"], "leak").write_text(str(seed))', False, "COMPILE_ERROR"),
        ("", False, "PASSED"),
        ("", True, "PASSED"),
    ],
    ids=["would be found", "persistent", "isolated"],
)
def test_no_memory_or_file_of_a_worker_holds_the_seed(tmp_path, monkeypatch, leak, isolated, status):
    monkeypatch.setattr(job_seeds.secrets, "randbits", lambda bits: KNOWN)
    trace_set = write_set(tmp_path / "set", {"looks": LOOKS_FOR_THE_SEED.replace("LEAK", leak)})
    (done,) = judge(trace_set, use_isolated_runner=isolated).done.values()
    assert (done.status.value, "the seed stands in" in done.log) == (status, bool(leak))
    assert done.extra["run"]["seed"] == KNOWN


FORMS = {
    "keywords": "def run(*, b, a):\n    return a - b\n",
    "mixed": "def run(a, /, *, b):\n    return a - b\n",
    "rest": "def run(*rest, b):\n    return rest[0] - b\n",
    "partial": "import functools\nrun = functools.partial(lambda k, b, a: a * k - b, 1)\n",
    "instance": "class Model:\n    def __call__(self, b, a):\n        return a - b\n\nrun = Model()\n",
    "imported": "from torch import sub as run\n",
    "own_setup": "def setup(*given):\n    return {'c': 1}\n\nrun = lambda *given: given[0] - given[1]\n",
}


def test_every_form_of_a_reference_is_judged_and_timed(tmp_path):
    parts = {"inputs": {"a": "float32[n]", "b": "float32[n]"}}
    trace_set = write_set(tmp_path, {"s": "def run(a, b):\n    return a - b\n"}, FORMS, **parts)
    run = judge(trace_set)
    assert run.statuses == {f"s_{name}": "PASSED" for name in FORMS}
    assert all(one.performance.reference_latency_ms > 0 for one in run.done.values())
