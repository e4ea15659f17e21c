"""What attention costs: which pairs are seen, and what is not known."""

from __future__ import annotations

import pytest

from flashinfer_bench.roofline.definitions import count_pairs, find_causal, find_cost
from tests.kit.make import make_definition

AXES = {"total_q": 5, "total_kv": 7, "num_qo_heads": 2, "num_kv_heads": 1, "head_dim": 8, "len_indptr": 3}
INPUTS = {
    "q": "bfloat16[total_q, num_qo_heads, head_dim]",
    "k": "bfloat16[total_kv, num_kv_heads, head_dim]",
    "v": "bfloat16[total_kv, num_kv_heads, head_dim]",
    "qo_indptr": "int32[len_indptr]",
    "kv_indptr": "int32[len_indptr]",
}
VALUES = {"qo_indptr": [0, 3, 5], "kv_indptr": [0, 4, 7]}  # 3 of 4 and 2 of 3
ALL, SEEN = 3 * 4 + 2 * 3, (2 + 3 + 4) + (2 + 3)


def prefill(name, tags=()):
    outputs = {"output": INPUTS["q"]}
    reference = "def run(*a):\n    return a\n"
    return make_definition(
        name, op_type="gqa_ragged", axes=AXES, inputs=INPUTS, outputs=outputs, reference=reference, tags=list(tags)
    )


def test_causal_pairs_leave_out_what_comes_later():
    assert count_pairs([3], [5], causal=True) == 3 + 4 + 5
    assert count_pairs([3, 1], [5, 2], causal=False) == 15 + 2
    assert count_pairs([9], [2], causal=True) == 1 + 2  # the first seven see nothing


@pytest.mark.parametrize(
    ("name", "tags", "pairs"),
    [
        ("gqa_ragged_prefill_causal_h2", (), SEEN),
        ("gqa_ragged_prefill_h2", ("stage:prefill", "mask:causal"), SEEN),
        ("gqa_ragged_prefill_noncausal_h2", (), ALL),
        ("gqa_ragged_prefill_non_causal_h2", (), ALL),
        ("gqa_ragged_prefill_h2", ("causal:false",), ALL),
        ("gqa_ragged_prefill_h2", ("stage:prefill",), None),
        ("acausal_h2", (), None),
    ],
)
def test_prefill_is_causal_where_its_definition_says_so(name, tags, pairs):
    found = find_cost(prefill(name, tags), AXES, VALUES)
    assert (found.flops if found else None) == (pairs and 2 * pairs * 2 * 16)


def test_a_mask_that_hides_nothing_need_not_be_known():
    axes = {**AXES, "total_q": 2}
    assert find_cost(prefill("prefill"), axes, {**VALUES, "qo_indptr": [0, 1, 2]}).flops == 2 * 7 * 2 * 16


@pytest.mark.parametrize(
    "offsets", [[0, 3, 6], [0, 5], [3, 0, 5], [0, 6, 5]], ids=["too_many", "too_few", "backwards", "negative"]
)
def test_lengths_that_contradict_the_queries_have_no_cost(offsets):
    assert find_cost(prefill("prefill_causal"), AXES, {**VALUES, "qo_indptr": offsets}) is None


def test_the_name_counts_before_the_tags():
    assert find_causal(prefill("prefill_causal", ["non-causal"])) is True
