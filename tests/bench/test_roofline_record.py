"""The roofline in a trace: whose ceiling it has, and the flag of a time below its floor. The interval of a time."""

import json

import pytest

from flashinfer_bench.bench import harness
from flashinfer_bench.roofline.cost import Cost
from flashinfer_bench.roofline.measured import find_peaks_file
from tests.bench.played import PlayedSession, on_gpu, play_engine
from tests.kit.make import make_solution
from tests.roofline.test_roofline import MEASURED

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("latency_ms", "moved", "peak", "flags"),
    [  # 4.8e9 bytes take 1 ms, or 2 ms as measured; 4.8e7 bytes fit the L2
        (1.5, 4.8e9, "H200 (measured 2026-11-30)", ["noisy", "below_floor"]),
        (1.5, 4.8e9, "H200 SXM (vendor)", ["noisy"]),
        (0.005, 4.8e7, "H200 (measured 2026-11-30)", ["noisy"]),
        (0.005, 4.8e7, "H200 SXM (vendor)", ["noisy"]),
    ],
)
def test_a_trace_names_its_ceiling_and_flags_a_time_below_the_floor(
    monkeypatch, tmp_path, latency_ms, moved, peak, flags
):
    bounds = [0.95 * latency_ms, 1.05 * latency_ms]
    record = {"interval95_ms": bounds, "interval": "workers", "flags": ["noisy"]}
    monkeypatch.setattr(harness, "cost_of_workload", lambda *_: Cost(0, moved, "fp16"))
    engine = play_engine(monkeypatch, tmp_path)
    on_gpu(engine.context, "NVIDIA H200")
    if "measured" in peak:
        file = find_peaks_file(tmp_path / "cache", "GPU-0")
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(MEASURED))
    performance = {"latency_ms": latency_ms, "reference_latency_ms": 8.0, "speedup_factor": 5.0}
    monkeypatch.setattr(
        PlayedSession,
        "evaluate",
        staticmethod(lambda job, name: {"extra": {"measurement": record}, "performance": performance}),
    )
    PlayedSession.gate.set()
    try:
        (trace,) = engine.submit(make_solution("mine"), ["d0"]).result(60)
    finally:
        engine.close()
    extra = trace.evaluation.extra
    assert (extra["roofline"]["peak"], extra["measurement"]["flags"]) == (peak, flags)


def test_the_time_of_a_wrong_solution_has_an_interval_and_a_flag_if_it_is_noisy(monkeypatch, tmp_path):
    record = {"median_ms": 1.0, "interval95_ms": [0.5, 1.5]}
    engine = play_engine(monkeypatch, tmp_path)
    found = {"status": "INCORRECT_NUMERICAL", "extra": {"measurement": record}}
    monkeypatch.setattr(PlayedSession, "evaluate", staticmethod(lambda job, name: dict(found)))
    PlayedSession.gate.set()
    try:
        (trace,) = engine.submit(make_solution("mine"), ["d0"]).result(60)
    finally:
        engine.close()
    kept = trace.evaluation.extra["measurement"]
    assert (kept["flags"], kept["interval"]) == (["noisy"], "one worker, widened")
