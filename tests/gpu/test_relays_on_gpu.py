"""Relays on a GPU: masks and digests are what they should be, and what honest calls cost is told.

Run by hand where there is a GPU: python -m pytest tests/gpu/test_relays_on_gpu.py
"""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.data import TraceSet
from flashinfer_bench.worker.gated_chain.kernels import (
    SMALL_BYTES,
    WORD_BYTES,
    ChainKernels,
    chain_image,
    count_groups,
    piece_of,
)
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set
from tests.kit.philox import philox

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
DEVICE = torch.device("cuda", 0)
KEY = 2**62 + 12_345
SIZES = [1, 15, 16, 17, 4_096, 70_000, (3 << 20) + 5]
MOST_CHANGES = 300


@pytest.fixture(scope="module")
def kernels():
    torch.cuda.set_device(DEVICE)
    torch.zeros(1, device=DEVICE)  # makes the context
    return ChainKernels(chain_image(), DEVICE)


def make_bytes(size, seed=0):
    """Return random bytes, none of them 0."""
    drawn = torch.randint(1, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return drawn.to(DEVICE)


def mask_of(words):
    masks = [number for place in range(words) for number in philox(place, KEY)]
    return torch.tensor(masks, dtype=torch.int64).to(torch.uint32).view(torch.uint8)


class Digests:
    """What the kernels commit to of some memory, time after time; read back together."""

    def __init__(self, kernels, count, pieces=1):
        self._kernels = kernels
        self._told = torch.zeros(count, 2 * count_groups(pieces), dtype=torch.int64, device=DEVICE)
        self._taken = 0

    def take(self, *held):
        self._kernels.commit([piece_of(one) for one in held], self._told[self._taken].data_ptr())
        self._taken += 1

    def read(self):
        assert self._taken == len(self._told)
        told = self._told.tolist()
        assert all(all(words) for words in told)
        return [tuple(words) for words in told]


@pytest.mark.parametrize("words", [1, 33, SMALL_BYTES // WORD_BYTES, SMALL_BYTES // WORD_BYTES + 1, 70_001])
def test_masks_are_philox_of_key_and_place(kernels, words):
    held = torch.randint(0, 256, ((words + 1) * WORD_BYTES,), dtype=torch.uint8, device=DEVICE)
    given, inputs = held.to("cpu", copy=True), held[: words * WORD_BYTES]
    key, ready = torch.tensor([KEY], device=DEVICE), torch.zeros(1, dtype=torch.int64, device=DEVICE)
    kernels.await_and_unmask(key.data_ptr(), piece_of(inputs), ready.data_ptr(), 7)
    assert int(ready) == 7
    assert torch.equal(inputs.cpu(), given[: inputs.nbytes] ^ mask_of(words))
    assert torch.equal(held[inputs.nbytes :].cpu(), given[inputs.nbytes :])
    kernels.unmask(piece_of(inputs), key.data_ptr())
    assert torch.equal(held.cpu(), given)


@pytest.mark.parametrize("size", SIZES)
def test_equal_memory_has_one_digest_and_any_changed_byte_another(kernels, size):
    held = make_bytes(size)
    elsewhere = torch.zeros(size + 3 * WORD_BYTES, dtype=torch.uint8, device=DEVICE)[2 * WORD_BYTES :][:size]
    elsewhere.copy_(held)
    changes = range(0, size, -(-size // MOST_CHANGES))
    digests = Digests(kernels, len(changes) + 4)
    for one in (held, elsewhere, held):
        digests.take(one)
    for at in [*changes, size - 1]:
        held[at] ^= 1 << at % 8
        digests.take(held)
        held[at] ^= 1 << at % 8
    same, other, again, *changed = digests.read()
    assert same == other == again
    assert len({same, *changed}) == 1 + len({*changes, size - 1})


def test_of_several_pieces_each_counts(kernels):
    held = [make_bytes(size, seed) for seed, size in enumerate([17, 1, 4_096, 15, 3 << 20, 70_000])]
    digests = Digests(kernels, 1 + len(held), len(held))
    digests.take(*held)
    for one in held:
        one[-1] ^= 1
        digests.take(*held)
        one[-1] ^= 1
    assert len({*digests.read()}) == 1 + len(held)


PLAIN = """
import torch
def run(x):
    return torch.sort(x, dim=-1).values
"""
SOURCES = {
    "plain": PLAIN,
    "destination": """
import torch
def run(x, y):
    y.copy_(torch.sort(x, dim=-1).values)
""",
    "same_buffer": """
import torch
kept = {}
def run(x):
    if x.shape not in kept:
        kept[x.shape] = torch.empty_like(x)
    return kept[x.shape].copy_(torch.sort(x, dim=-1).values)
""",
    "transposed": """
import torch
def run(x):
    return torch.sort(x, dim=-1).values.t().contiguous().t()
""",
    "queries": """
import torch
def run(x):
    y = torch.sort(x, dim=-1).values
    torch.cuda.current_stream().query()
    return y
""",
    "synchronises": """
import torch
def run(x):
    y = torch.sort(x, dim=-1).values
    torch.cuda.synchronize()
    return y
""",
    "prepared": """
import torch
def setup(x):
    return {"held": x}
def run(x, held):
    return torch.sort(held, dim=-1).values
""",
}
TWO_OUTPUTS = """
import torch
def run(x):
    return torch.sort(x, dim=-1).values, x[:3].amax(-1)
"""
SHAPE = {
    "axes": {"rows": None, "columns": 2_048, "few": 3},
    "inputs": {"x": "float32[rows, columns]"},
}


def judge(root, definition, solutions):
    """Run all solutions on four rows; return name → evaluation."""
    workload = make_workload(axes={"rows": 4})
    write_trace_set(
        root,
        definitions=[definition],
        solutions=solutions,
        workloads=[make_trace(definition=definition.name, workload=workload, solution=None)],
    )
    benchmark = Benchmark(TraceSet.from_path(root), BenchmarkConfig.default(devices=["0"]))
    events = benchmark.run(benchmark.plan(), save_results=False)
    judged = {event.job.solution.name: event.trace.evaluation for event in events if isinstance(event, JobFinished)}
    assert {*judged} == {solution.name for solution in solutions}
    return judged


def check_relayed(judged):
    """Assert that all passed, and that relays say what each costs."""
    for name, one in judged.items():
        measured = one.extra.get("measurement", {}) if one.extra else {}
        told = {key: measured.get(key) for key in ("relay_ms", "relay_calls", "claimed_ms", "why_unconfirmed", "flags")}
        print(name, one.status.value, one.performance and one.performance.latency_ms, told, flush=True)
    failed = {name: (one.status.value, one.log[-700:]) for name, one in judged.items() if one.status.value != "PASSED"}
    assert failed == {}
    relays_ms = {name: one.extra["measurement"].get("relay_ms") for name, one in judged.items()}
    assert [name for name, relay_ms in relays_ms.items() if relay_ms is None] == []
    long = [name for name, one in judged.items() if one.performance.latency_ms >= 0.01]
    assert [name for name in long if relays_ms[name] <= 0] == []


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_honest_calls_of_all_kinds_pass_with_what_they_cost_in_relays(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    sort = make_definition("sort", reference=PLAIN, outputs={"y": "float32[rows, columns]"}, **SHAPE)
    styles = {name: {"destination_passing_style": name == "destination"} for name in SOURCES}
    solutions = [
        make_solution(name, definition="sort", source=source, **styles[name]) for name, source in SOURCES.items()
    ]
    judged = judge(tmp_path / "sort", sort, solutions)
    check_relayed(judged)
    plain = judged["plain"]
    assert 0.7 < plain.extra["measurement"]["relay_ms"] / plain.performance.latency_ms < 1.15


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_two_outputs_of_which_one_is_short_pass_with_what_they_cost_in_relays(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    outputs = {"y": "float32[rows, columns]", "z": "float32[few]"}
    both = make_definition("sort_and_most", reference=TWO_OUTPUTS, outputs=outputs, **SHAPE)
    solution = make_solution(
        "two_outputs", definition="sort_and_most", source=TWO_OUTPUTS, destination_passing_style=False
    )
    check_relayed(judge(tmp_path / "two", both, [solution]))
