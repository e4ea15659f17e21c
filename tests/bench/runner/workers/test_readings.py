"""Which claims of a worker are believed."""

import pytest

from flashinfer_bench.bench.runner.workers.readings import (
    CALL_SLACK_NS,
    ReadingsAsked,
    check_readings,
    find_contradiction,
    find_implausible,
)
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.settings import TimingSettings
from flashinfer_bench.worker.protocol import Sampled

pytestmark = pytest.mark.cpu
CPU, GPU = ReadingsAsked("cpu", 2), ReadingsAsked("cuda", 2)
BY_EVENTS = ReadingsAsked("cuda", 2, TimingSettings(clock="cuda_events"))
ON_CPU = {"method": "wall", "cache_state": "warm", "calls": 5}
ON_GPU = {"method": "cupti", "cache_state": "cold", "calls": 5, "launch": "stream", "spin_ns": 6_000}
EVENTS = {**ON_GPU, "method": "cuda_events", "fallback": "no CUPTI", "empty_pair_ns": 1_700}
SEEN = {"busy_ns": [900, 900], "operations": [1, 1]}


def make_sampled(facts, *, busy_ns=None, operations=None, span_ns=(1_000, 1_000)):
    spans = list(span_ns)
    others = {"busy_ns": busy_ns, "operations": operations, "late": [False] * len(spans), "stop": "count"}
    return Sampled(id=1, span_ns=spans, enqueue_ns=spans, facts=facts, **others)


@pytest.mark.parametrize(
    ("wanted", "facts", "series"),
    [
        (CPU, ON_CPU, {}),
        (GPU, ON_GPU, SEEN),
        (GPU, {**ON_GPU, "launch": "graph", "graphs": 8, "output_places": 8, "lead_ns": 900}, SEEN),
        (GPU, EVENTS, {}),
        (
            BY_EVENTS,
            {**EVENTS, "fallback": "CUDA events were asked for"},
            {},
        ),
        (ReadingsAsked("cuda", 2, TimingSettings(l2_cache="warm")), {**ON_GPU, "cache_state": "warm"}, SEEN),
        (ReadingsAsked("cuda", 1), {**ON_GPU, "extra_samples": 1}, SEEN),
    ],
)
def test_what_an_honest_worker_answers_is_believed(wanted, facts, series):
    check_readings(make_sampled(facts, **series), wanted, wall_ns=1e9)


@pytest.mark.parametrize(
    ("wanted", "facts", "series", "said"),
    [
        (CPU, {**ON_CPU, "method": "cupti"}, SEEN, "method 'cupti'"),
        (CPU, {**ON_CPU, "cache_state": "cold"}, {}, "cache state 'cold'"),
        (CPU, ON_CPU, SEEN, "operations that the clock cannot see"),
        (CPU, {**ON_CPU, "launch": "graph"}, {}, "facts that only a GPU has"),
        (CPU, {**ON_CPU, "calls": 1}, {}, "fewer calls than readings"),
        (GPU, {**ON_GPU, "method": "wall"}, SEEN, "method 'wall'"),
        (GPU, ON_GPU, {}, "no operations"),
        (GPU, {**EVENTS, "fallback": None}, {}, "no reason for its fall-back"),
        (GPU, {**ON_GPU, "cache_state": "warm"}, SEEN, "cache state 'warm'"),
        (GPU, {**ON_GPU, "extra_samples": 7}, SEEN, "false count"),
        (
            ReadingsAsked("cuda", 2, TimingSettings(cuda_graphs=False)),
            {**ON_GPU, "launch": "graph"},
            SEEN,
            "a graph that was not asked for",
        ),
        (BY_EVENTS, ON_GPU, SEEN, "method 'cupti'"),
    ],
)
def test_a_claim_that_contradicts_what_was_asked_for_is_found(wanted, facts, series, said):
    sampled = make_sampled(facts, **series)
    assert said in find_contradiction(sampled, wanted)
    with pytest.raises(SolutionFailure, match="answered out of protocol") as failure:
        check_readings(sampled, wanted, wall_ns=1e9)
    assert failure.value.status == "RUNTIME_ERROR"


@pytest.mark.parametrize(("wanted", "facts"), [(CPU, ON_CPU), (GPU, EVENTS)])
def test_a_latency_of_nothing_is_refused(wanted, facts):
    with pytest.raises(SolutionFailure, match="less than an empty call takes"):
        check_readings(make_sampled(facts, span_ns=(0, 0)), wanted, wall_ns=1e9)


def test_texts_of_a_worker_move_no_cursor():
    assert make_sampled({**EVENTS, "fallback": "no\x1b[2J\nCUPTI"}).facts.fallback == "no [2J CUPTI"


@pytest.mark.parametrize(
    ("claimed_ns", "walls_ns", "moved_bytes", "is_found"),
    [
        (1_000, [CALL_SLACK_NS + 30_000], 0, True),
        (2_000, [CALL_SLACK_NS + 30_000], 0, False),
        (1_000, [CALL_SLACK_NS + 30_000, CALL_SLACK_NS], 0, False),
        (1_000, [CALL_SLACK_NS + 30_000], 15_000, False),
        (1_000, [], 0, False),
    ],
    ids=["too fast", "within the ratio", "one call was quick", "bytes to move", "nothing was called"],
)
def test_a_latency_far_below_what_every_clocked_call_took_is_found(claimed_ns, walls_ns, moved_bytes, is_found):
    assert (find_implausible(claimed_ns, walls_ns, moved_bytes) is not None) == is_found
