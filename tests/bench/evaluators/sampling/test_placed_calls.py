"""Where draws of several calls lie, each on rows of its own."""

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import JudgedCall, Rejected
from flashinfer_bench.bench.evaluators.sampling import calls as calls_module
from flashinfer_bench.bench.evaluators.sampling.calls import place_calls
from flashinfer_bench.data import Definition
from tests.kit.make import make_definition

pytestmark = pytest.mark.cpu
EXPECTED = [torch.zeros(2, dtype=torch.int64)]


def definition() -> Definition:
    return make_definition(
        name="top_p_sampling_from_probs",
        op_type="sampling",
        axes={"rows": {"type": "var"}, "vocab": {"type": "const", "value": 50}},
        inputs={
            "probs": {"shape": ["rows", "vocab"], "dtype": "float32"},
            "top_p": {"shape": ["rows"], "dtype": "float32"},
        },
        outputs={"samples": {"shape": ["rows"], "dtype": "int64"}},
    )


def on_rows_of_their_own(count, *, top_p=1.0):
    """Return calls that each draw from two rows that no other call has."""
    chance = torch.Generator().manual_seed(count)
    made = []
    for _ in range(count):
        probs = (3 * torch.randn(2, 50, generator=chance)).softmax(dim=-1)
        drawn = torch.multinomial(probs, 1, generator=chance)[:, 0]
        made.append(JudgedCall([probs, torch.full((2,), top_p)], [drawn], EXPECTED))
    return made


@pytest.mark.parametrize("most", [1 << 23, 250, 1], ids=["all at once", "two calls at once", "each alone"])
def test_a_place_lies_in_the_stretch_of_the_token_that_its_own_call_drew_from_its_own_row(monkeypatch, most):
    monkeypatch.setattr(calls_module, "CHUNK_ELEMENTS", most)
    made = on_rows_of_their_own(9)
    made += [JudgedCall(made[8].inputs, made[8].got, EXPECTED)]  # two calls on one input
    placed = place_calls(definition(), made, torch.Generator().manual_seed(1))
    places = placed.places["by_id"]
    assert places.shape == placed.peaks.shape == (10, 2)
    assert torch.equal(placed.peaks, torch.stack([call.inputs[0].amax(dim=-1) for call in made]))
    for call, found in zip(made, places, strict=True):
        ends = call.inputs[0].double().cumsum(dim=-1)
        ends = ends / ends[:, -1:]
        for row, token in enumerate(call.got[0].tolist()):
            begin = 0.0 if token == 0 else float(ends[row, token - 1])
            assert begin - 1e-6 <= float(found[row]) <= float(ends[row, token]) + 1e-6


def test_a_draw_that_is_not_allowed_is_told_with_its_row_and_what_is_wrong_with_it():
    made = on_rows_of_their_own(7, top_p=0.5)
    for call in made:
        call.got[0][:] = call.inputs[0].argmax(dim=-1)
    least = int(made[4].inputs[0][1].argmin())
    made[4].got[0][1] = least
    verdict = place_calls(definition(), made, torch.Generator())
    assert isinstance(verdict, Rejected)
    assert f"1 of 2 draws are not allowed; the first is token {least} in call 0, row 1" in verdict.message


def test_what_has_not_the_form_of_draws_is_rejected():
    made = on_rows_of_their_own(3)
    made[1] = JudgedCall(made[1].inputs, [torch.zeros(3, dtype=torch.int64)], EXPECTED)
    assert isinstance(place_calls(definition(), made, torch.Generator()), Rejected)


def test_draws_that_are_wrong_beside_those_of_other_calls_alone_are_no_fault(monkeypatch):
    """As where sums over other numbers of rows round otherwise on a GPU, at the edge of what is allowed."""
    made = on_rows_of_their_own(3, top_p=0.5)
    for call in made:
        call.got[0][:] = call.inputs[0].argmin(dim=-1)
    monkeypatch.setattr(calls_module, "_find_forbidden_alone", lambda *_: None)
    places = place_calls(definition(), made, torch.Generator()).places
    assert {found.shape for found in places.values()} == {(3, 2)}
