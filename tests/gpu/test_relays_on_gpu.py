"""Relays on a GPU: masks and digests are what they should be, and what honest calls cost is told.

Run by hand where there is a GPU: python -m pytest tests/gpu/test_relays_on_gpu.py
"""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.worker.gated_chain.kernels import (
    SMALL_BYTES,
    WORD_BYTES,
    ChainKernels,
    chain_image,
    count_groups,
    piece_of,
)
from tests.gpu.runs import judge, write_set
from tests.kit import make_definition, make_solution

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


class Digests:
    """What the kernels commit to of some memory, time after time; read back together."""

    def __init__(self, kernels, count, pieces=1):
        self._kernels = kernels
        self._reported = torch.zeros(count, 2 * count_groups(pieces), dtype=torch.int64, device=DEVICE)
        self._taken = 0

    def take(self, *held):
        self._kernels.commit([piece_of(one) for one in held], self._reported[self._taken].data_ptr())
        self._taken += 1

    def read(self):
        assert self._taken == len(self._reported)
        reported = self._reported.tolist()
        assert all(all(words) for words in reported)
        return [tuple(words) for words in reported]


@pytest.mark.parametrize("words", [1, 33, SMALL_BYTES // WORD_BYTES, SMALL_BYTES // WORD_BYTES + 1, 70_001])
def test_a_mask_is_taken_off_as_it_is_put_on_and_has_no_word_twice(kernels, words):
    size, ready = words * WORD_BYTES, torch.zeros(1, dtype=torch.int64, device=DEVICE)
    keys = torch.tensor([KEY, KEY ^ 1 << 40], device=DEVICE)
    masks = torch.zeros(2, size + WORD_BYTES, dtype=torch.uint8, device=DEVICE)
    kernels.await_and_unmask(keys[:1].data_ptr(), piece_of(masks[0, :size]), ready.data_ptr(), 7)
    kernels.unmask(piece_of(masks[1, :size]), keys[1:].data_ptr())
    assert int(ready) == 7
    assert (masks[:, size:] == 0).all()
    made = masks[:, :size].clone().view(torch.int64)
    assert len(made.unique()) == made.numel()
    held = make_bytes(size)
    given = held.clone()
    kernels.unmask(piece_of(held), keys[:1].data_ptr())
    assert torch.equal(held, given ^ masks[0, :size])
    kernels.unmask(piece_of(held), keys[:1].data_ptr())
    assert torch.equal(held, given)


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


ROWS = [{"rows": 4}]


def check_relayed(judged):
    """Assert that all passed, and that relays say what each costs."""
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
    judged = judge(write_set(tmp_path / "sort", solutions, definition=sort, axes=ROWS), counts={})
    check_relayed(judged)
    plain = judged["plain", "w0"]
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
    check_relayed(judge(write_set(tmp_path / "two", [solution], definition=both, axes=ROWS), counts={}))
