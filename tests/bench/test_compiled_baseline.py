"""The reference under torch.compile as a second baseline: its record, its refusals, and no traces of its compiler."""

import pytest

from tests.bench.small_runs import HONEST, judge, write_set

pytestmark = [pytest.mark.cpu, pytest.mark.timeout(600)]

BREAKS = "def run(x):\n    y = x + x\n    return y + 0 if y.sum() < 1e9 else x\n"
BEGINS_SLOWLY = """
import time
calls = []
def run(x):
    calls or time.sleep(0.3)
    calls.append(1)
    return x * 2
"""
WRONG = "import torch\ndef run(x):\n    return x * (3 if torch.compiler.is_compiling() else 2)\n"


def records(run):
    assert run.faults == []
    assert {*run.statuses.values()} == {"PASSED"}
    return {name: one.extra["baseline_compile"] for (name, _), one in run.done.items()}


def test_a_run_times_the_reference_a_second_time_only_if_it_is_asked_to(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # torch.compile returns the function itself
    trace_set = write_set(tmp_path / "set", {"a": HONEST, "b": HONEST}, {"double": BEGINS_SLOWLY})
    run = judge(trace_set, cache=tmp_path / "cache", baseline="compile:max-autotune")
    one, other = records(run).values()
    assert one == other  # solutions of a workload share it
    assert {name: one[name] for name in ("mode", "graphs", "graph_breaks")} == {
        "mode": "max-autotune",
        "graphs": 0,
        "graph_breaks": 0,
    }
    assert one["compile_s"] >= 0.3
    assert 0 < one["latency_ms"] < 300
    assert one["measurement"]["samples"] == 2
    (done,) = judge(trace_set, cache=tmp_path / "cache", solutions=["a"]).done.values()
    assert "baseline_compile" not in done.extra


@pytest.mark.slow
def test_graph_breaks_are_counted_and_a_compiled_reference_that_is_wrong_is_refused(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    for name in ("HOME", "TMPDIR"):
        monkeypatch.setenv(name, str(home))
    references = {"breaks": BREAKS, "wrong": WRONG}
    found = records(judge(write_set(tmp_path / "set", {"x": HONEST}, references), baseline="compile", cache=tmp_path))
    assert (found["x_breaks"]["graphs"], found["x_breaks"]["graph_breaks"]) == (2, 1)
    assert "its outputs are wrong: " in found["x_wrong"]["reason"]
    assert "latency_ms" not in found["x_wrong"]
    assert not [*home.rglob("*inductor*")]
