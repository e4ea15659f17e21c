"""Inputs of other regimes: which inputs are changed, how, when, and who is judged on them."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Accepted, JudgedCall, Rejected
from flashinfer_bench.bench.evaluators.inputs.regimes.choose import (
    FEWEST_LARGE,
    FOR_CONSTANTS_ALONE,
    FOR_FLOATS,
    IN_ALL_JOBS,
    OTHERS,
    PART_CALLS,
    Regimes,
    why_no_regimes,
)
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

OF_ALL_FLOATS = [*FOR_FLOATS, *["part_of_columns"] * PART_CALLS]
"""Those that each trial of one input of floats has."""
REGIMES = (*IN_ALL_JOBS, *OTHERS, "one_row", *dict.fromkeys(OF_ALL_FLOATS), "part_of_rows")
"""Those that floats are judged in."""
SOFTCAP = "import torch\ndef run(x):\n    return 30 * torch.tanh(x / 30)\n"
NORM = "import torch\ndef run(x):\n    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6)\n"
RELU = "def run(x):\n    return x.clamp(min=0)\n"
TINY = "def run(x):\n    return x * 1e-4\n"
SOFTMAX = "import torch\ndef run(x):\n    return torch.softmax(x * 8, dim=-1)\n"


def judge(reference, regime, solution, *, seed=1, n=8, columns=4096, outputs=None, **settings):
    outputs = outputs or {"y": "float32[n, 4096]"}
    definition = make_definition(inputs={"x": f"float32[n, {columns}]"}, outputs=outputs, reference=reference)
    job = Judging(definition, make_workload(axes={"n": n}, inputs={}), seed=seed, **settings)
    inputs = job.baseline().inputs[0]
    Regimes(definition, job.workload, seed).change(regime, 0, inputs)
    got = solution(*inputs)
    call = JudgedCall(inputs, [got] if isinstance(got, torch.Tensor) else list(got), job.context.reference(inputs))
    return job.evaluator.judge_regime(definition, regime, call, job.config, job.context)


def sampled_norm(x):
    return x * torch.rsqrt(x[:, ::16].pow(2).mean(dim=-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize(
    ("reference", "regime", "wrong"),
    [
        (SOFTCAP, "larger", torch.clone),
        (SOFTCAP, "few_large", torch.clone),
        (NORM, "larger", torch.clone),
        (NORM, "smaller", torch.clone),
        (NORM, "few_large", torch.clone),
        (NORM, "heavy_tails", torch.clone),
        (NORM, "few_large", sampled_norm),
        (SOFTCAP, "fewest_large", torch.clone),
        (SOFTCAP, "fewest_large", lambda x: torch.addcmul(x, x * x, x, value=-1 / 2700)),
        (RELU, "fewest_large", lambda x: x.clamp(0, 6)),
    ],
)
def test_what_holds_for_usual_inputs_only_is_rejected(reference, regime, wrong):
    verdict = judge(reference, regime, wrong)
    assert isinstance(verdict, Rejected)
    assert verdict.integrity["rule"] == "regimes"
    assert verdict.integrity["evidence"]["regime"] == regime
    assert regime in verdict.message


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("reference", [SOFTCAP, NORM, SOFTMAX], ids=["softcap", "norm", "softmax"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_honest_solutions_of_low_precision_pass(reference, regime, dtype):
    space = {}
    exec(reference, space)
    assert isinstance(judge(reference, regime, lambda x: space["run"](coarse(x, dtype))), Accepted)


def coarse(values, dtype):
    scale = values.abs().amax(dim=-1, keepdim=True) / 448 if dtype.itemsize == 1 else torch.ones(())
    return (values / scale).to(dtype).float() * scale


SIZES = "import torch\ndef run(x):\n    return torch.linalg.vector_norm(torch.tanh(x), dim=-1)\n"
MEANS = "import torch\ndef run(x):\n    return x.mean(dim=-1)\n"
LOGS = "import torch\ndef run(x):\n    return torch.logsumexp(x, dim=-1)\n"
SMALL = {"sizes": SIZES, "means": MEANS, "logs": LOGS}


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("reference", SMALL.values(), ids=SMALL)
def test_outputs_too_small_for_rows_are_judged(reference, regime):
    def unrelated(x):
        return torch.arange(3.0, 7.0)

    verdict = judge(reference, regime, unrelated, n=4, outputs={"y": "float32[n]"})
    assert isinstance(verdict, Rejected)
    assert verdict.integrity["rule"] == "regimes"


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("reference", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_honest_small_outputs_of_low_precision_pass(reference, regime, dtype):
    space = {}
    exec(reference, space)
    for seed in range(8):  # means are what is left of a sum, and some are near zero
        one = judge(
            reference, regime, lambda x: space["run"](coarse(x, dtype)), seed=seed, n=1, outputs={"y": "float32[n]"}
        )
        assert isinstance(one, Accepted), one.message


def test_a_small_output_may_be_anything_where_usual_inputs_are_judged_by_elements():
    definition = make_definition(inputs={"x": "float32[n]"}, outputs={"y": "float32[n]"}, reference=TINY)
    job = Judging(definition, make_workload(axes={"n": 4}, inputs={}))
    verdict = job.check(lambda x: x * 2e-4)
    assert isinstance(verdict, Accepted)
    assert "error_norm" not in verdict.correctness.extra["outputs"]["y"]


@pytest.mark.parametrize(
    "part", [slice(0, 2048), slice(0, 4096, 2), slice(0, 4096, 4)], ids=["half", "second", "fourth"]
)
def test_a_part_of_a_row_does_not_tell_its_size_where_large_values_are_capped(part):
    def of_part(x):
        seen = x[:, part]
        return torch.linalg.vector_norm(torch.tanh(seen), dim=-1) * (x.shape[1] / seen.shape[1]) ** 0.5

    for rows, most in ((1, 60), (4, 35)):
        verdicts = [
            judge(SIZES, "smaller", of_part, seed=seed, n=rows, outputs={"y": "float32[n]"}) for seed in range(99)
        ]
        assert sum(isinstance(one, Accepted) for one in verdicts) < most  # so there are more calls than one
    rows_of_many = judge(SIZES, "smaller", of_part, n=64, outputs={"y": "float32[n]"})
    assert isinstance(rows_of_many, Rejected)


def test_all_but_a_few_columns_and_rows_are_smaller_still_the_same_of_inputs_that_share_them():
    regimes = open_regimes({"x": "float32[n, m]", "w": "bfloat16[k, m]", "v": "float32[m, k]"}, n=400, m=1000, k=8)
    x, w, v = torch.ones(400, 1000), torch.ones(8, 1000).bfloat16(), torch.ones(1000, 8)
    regimes.change("smaller", 0, [x, w, v])
    assert 1 / 32 <= float(x.amax()) <= 1 / 16
    columns, rows = (x == x.amax()).any(dim=0), (x == x.amax()).any(dim=1)
    assert (int(columns.sum()), int(rows.sum())) == (15, 15)
    assert torch.equal(x == x.amax(), rows[:, None] & columns)
    assert torch.equal((w == w.amax()).any(dim=0), columns)
    assert torch.equal((v == v.amax()).any(dim=1), columns)
    quiet = x.masked_fill(columns, 0).square().sum(dim=1) / x.square().sum(dim=1)
    assert quiet.tolist() == pytest.approx([1 / 400] * 400, rel=0.02)
    assert float(x[~rows].square().sum() / x.square().sum()) == pytest.approx(1 / 400, rel=0.1)
    again = torch.ones(400, 1000)
    regimes.change("smaller", 1, [again, None, None])
    assert not torch.equal((again == again.amax()).any(dim=0), columns)
    few = torch.ones(15, 15)
    regimes.change("smaller", 0, [few, None, None])
    assert len(few.unique()) == 1
    many = torch.ones(100_000, 1)
    regimes.change("smaller", 0, [many, None, None])
    assert float(many.amax() / many.amin()) == pytest.approx(256)


ALL = "import torch\ndef run(x):\n    return x.square().mean()\n"
SUMS = "import torch\ndef run(x):\n    return torch.tanh(x).square().sum(dim=0)\n"


@pytest.mark.parametrize("share", [2, 100])
@pytest.mark.parametrize(("reference", "output"), [(ALL, "float32[]"), (SUMS, "float32[64]")], ids=["all", "sums"])
def test_some_of_the_rows_do_not_tell_what_all_of_them_do(reference, output, share):
    space = {}
    exec(reference, space)

    def of_some(x):
        told = space["run"](x[::share].contiguous())
        return told if told.ndim == 0 else told * (len(x) / len(x[::share]))

    settings = {"n": 1500, "columns": 64, "outputs": {"y": output}}
    verdicts = [judge(reference, "smaller", of_some, seed=seed, **settings) for seed in range(20)]
    accepted = sum(isinstance(one, Accepted) for one in verdicts)
    assert accepted <= (14 if (share, output) == (2, "float32[]") else 0)  # of a single number there are ten such calls


LOSS = "import torch\ndef run(x):\n    return torch.logsumexp(x.float(), dim=-1).mean()\n"
ABSOLUTE = "import torch\ndef run(x):\n    return x.float().abs().mean()\n"


@pytest.mark.parametrize("reference", [LOSS, ABSOLUTE, ALL], ids=["loss", "absolute", "squares"])
@pytest.mark.parametrize("share", [2, 3])
def test_one_row_tells_who_looks_at_some_rows_of_a_mean_that_each_is_near(reference, share):
    space = {}
    exec(reference, space)
    settings = {"n": 1500, "columns": 64, "outputs": {"y": "float32[]"}}
    verdicts = [judge(reference, "one_row", lambda x: space["run"](x[::share]), seed=s, **settings) for s in range(20)]
    accepted = sum(isinstance(one, Accepted) for one in verdicts)
    assert accepted == 0  # also the one whose row it sees: that one counts twice
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        for per_row in (True, False):
            one = judge(reference, "one_row", lambda x: space["run"](coarse_by(x, dtype, per_row)), **settings)  # noqa: B023
            assert isinstance(one, Accepted), one.message


def coarse_by(values, dtype, per_row):
    return coarse(values, dtype) if per_row else coarse(values.view(1, -1), dtype).view_as(values)


def test_floats_beside_whole_numbers_are_judged_by_themselves():
    reference = "import torch\ndef run(x):\n    return 30 * torch.tanh(x / 30), torch.full((len(x),), 7)\n"
    outputs = {"y": "float32[n, 4096]", "count": "int64[n]"}

    def wrong(x):
        return x - x**3 / 2700, torch.full((len(x),), 7)

    def right(x):
        return 30 * torch.tanh(coarse(x, torch.bfloat16) / 30), torch.full((len(x),), 7)

    assert isinstance(judge(reference, "larger", wrong, outputs=outputs), Rejected)
    for regime in REGIMES:
        assert isinstance(judge(reference, regime, right, outputs=outputs), Accepted)


def open_regimes(inputs, sources=None, *, op_type="test", **axes):
    definition = make_definition(
        op_type=op_type, axes=dict.fromkeys(axes), inputs=inputs, outputs={"y": "float32[n]"}, reference="def run(): 1"
    )
    return Regimes(definition, make_workload(axes=axes, inputs=sources or {}), seed=3)


def test_only_random_values_without_a_meaning_are_free():
    inputs = {
        "x": "bfloat16[n, m]",
        "scale": "float32[n]",
        "q": "float8_e4m3fn[n, m]",
        "kv_indices": "int32[n]",
        "cos_sin_cache": "float32[n, m]",
        "stored": "float32[n, m]",
        "number": "float32",
        "image": "uint8[n, m]",
        "weights": "int8[n, m]",
        "mask": "bool[n, m]",
        "exponents": "float8_e8m0fnu[n, m]",
        "count": "int32[n, m]",
        "kept": "bool[n, m]",
    }
    kept = {"type": "safetensors", "path": "a.safetensors", "tensor_key": "kept"}
    free = open_regimes(inputs, {"stored": kept, "kept": kept}, n=4, m=8).free
    assert [one and one.kind for one in free] == [
        *("float", None, "float8", None, None, None, None),
        *("bytes", "bytes", "bools", None, None, None),
    ]


@pytest.mark.parametrize(("shape", "count"), [((256, 4096), 8), ((1 << 22,), 33), ((64, 4), 4)])
def test_the_fewest_large_values_lie_in_one_row_and_are_seldom_seen_in_part_of_it(shape, count):
    seen = 0
    for number in range(20):
        axes = dict(zip("nm", shape, strict=False))
        x = torch.zeros(shape)
        open_regimes({"x": f"float32[{', '.join(axes)}]"}, **axes).change(FEWEST_LARGE, number, [x])
        rows = x.view(-1, shape[-1])
        assert int(rows.any(dim=1).sum()) == 1
        assert 1 <= int((x != 0).sum()) <= count
        assert 0.7 * 80 <= float(x.abs().max()) <= 80
        seen += bool(rows[:, : shape[-1] // 64].any())
    assert seen < 15


def test_the_few_large_values_of_a_row_outweigh_it_and_are_few():
    regimes = open_regimes({"x": "float32[n, m]"}, n=256, m=4096)
    before = torch.randn(256, 4096, generator=torch.Generator().manual_seed(0))
    after = before.clone()
    regimes.change("few_large", 0, [after])
    changed = (after != before).sum(dim=1)
    assert 1 <= int((changed > 0).sum()) <= 4
    assert int(changed.max()) <= 8
    assert float(after.abs().max()) <= 100
    row = int(changed.argmax())
    assert after[row].square().sum() > 2 * before[row].square().sum()


@pytest.mark.parametrize(("n", "more"), [(1, 3), (15, 3), (16, 0)])
def test_where_outputs_have_few_numbers_there_are_more_calls_of_smaller_ones_and_of_one_row(n, more):
    regimes = open_regimes({"x": "float32[n, m]"}, n=n, m=8)
    for name, others in (("smaller", 1), ("one_row", 0)):
        assert [regimes.choose(trial, 3).count(name) >= more for trial in range(3)] == [True] * 3
        assert sum(regimes.choose(trial, 3).count(name) for trial in range(3)) == others + 3 * more
    assert ("one_row" in regimes.names) is bool(more)


@pytest.mark.parametrize(
    ("dtype", "rows", "columns", "size", "is_whole"),
    [
        (torch.float32, 400, 4, 32 * 400, False),
        (torch.bfloat16, 400, 64, 32 * 400 * 8, False),
        (torch.float16, 200, 4, 32 * 200, False),
        (torch.float16, 200, 64, 32 * 200, True),
        (torch.float16, 300, 64, 6550.4, True),
        (torch.float16, 500, 4, 1, True),
        (torch.float32, 1 << 20, 64, 1 << 28, False),
        (torch.float32, 1, 64, 1, True),
    ],
    ids=str,
)
def test_a_few_values_of_one_row_or_all_of_it_outweigh_the_others(dtype, rows, columns, size, is_whole):
    regimes = open_regimes({"x": "float32[n, m]", "v": "float32[n]"}, n=rows, m=columns)
    x = torch.ones(rows, columns, dtype=dtype)
    regimes.change("one_row", 0, [x, None])
    loud = (x != 1).any(dim=1)
    assert int(loud.sum()) == (size > 1)
    largest = float(x.abs().max())
    assert (largest == pytest.approx(size, rel=0.01)) if is_whole else (0.69 * size <= largest <= size * 1.01)
    assert int((x != 1).sum()) <= (columns if is_whole else 8)


def test_inputs_with_the_same_rows_have_the_same_one_larger_and_another_in_the_next_call():
    regimes = open_regimes({"x": "float32[n, m]", "v": "float32[n, k]"}, n=4000, m=4, k=6)
    places = []
    for number in range(3):
        x, v = torch.ones(4000, 4), torch.ones(4000, 6)
        regimes.change("one_row", number, [x, v])
        assert torch.equal((x != 1).any(dim=1), (v != 1).any(dim=1))
        places.append(int((x != 1).any(dim=1).int().argmax()))
    assert len(set(places)) == 3


@pytest.mark.parametrize("trials", [1, 2, 3, 5])
def test_few_large_values_and_an_offset_come_in_every_job_and_no_regime_twice(trials):
    regimes = open_regimes({"x": "float32[n]"}, n=40)
    all_chosen = [name for trial in range(trials) for name in regimes.choose(trial, trials)]
    chosen = [name for name in all_chosen if name not in OF_ALL_FLOATS]
    assert len(chosen) == len(set(chosen)) == min(trials + 2, len({*regimes.names} - {*OF_ALL_FLOATS}))
    assert len(all_chosen) == len(chosen) + trials * len(OF_ALL_FLOATS)
    assert {"few_large", "offset"} <= set(chosen)
    assert all(regimes.choose(trial, trials) for trial in range(min(trials, 3)))


@pytest.mark.parametrize(
    ("shape", "counts"),
    [
        ((1, 4000), [1, 0, 0]),
        ((4000,), [1, 0, 0]),
        ((2, 64), [1, 0, 1]),
        ((3, 64), [1, 1, 1]),
        ((16, 64), [3, 3, 10]),
        ((3, 100, 8), [50, 50, 200]),
    ],
    ids=str,
)
def test_a_sixth_of_the_rows_lies_to_one_side_and_a_sixth_far_to_the_same(shape, counts):
    regimes = open_regimes({"x": "float32[n]"}, n=4)
    signs = set()
    for number in range(12):
        x = torch.zeros(shape)
        regimes.change("offset", number, [x])
        rows = x.view(-1, shape[-1])
        assert torch.equal(rows, rows[:, :1].expand_as(rows))
        sizes = rows[:, 0].abs()
        near, far = ((low <= sizes) & (sizes <= high) for low, high in ((0.899, 1.201), (2.499, 4.501)))
        assert [int(one.sum()) for one in (near, far, sizes == 0)] == counts
        assert len({float(one) for one in rows[:, 0].sign() if one}) == 1
        signs.add(bool((rows > 0).any()))
    assert signs == {True, False}


def test_of_very_many_rows_two_thirds_stay():
    regimes = open_regimes({"x": "float32[n, m]"}, n=4, m=1)
    x = torch.zeros(100_000, 1)
    regimes.change("offset", 0, [x])
    assert len(x.unique()) == 3
    assert int((x == 0).sum()) == pytest.approx(66_667, rel=0.05)


GATES = "import torch\ndef run(x):\n    return torch.sigmoid(x).mean(dim=-1)\n"
ALL_GATES = "import torch\ndef run(x):\n    return torch.sigmoid(x).mean()\n"
CENTRED = (
    "import torch\ndef run(x):\n    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()\n"
)


@pytest.mark.parametrize(
    ("reference", "output", "wrong"),
    [
        (GATES, "float32[n]", lambda x: torch.full((len(x),), 0.5)),
        (ALL_GATES, "float32[]", lambda x: torch.tensor(0.5)),
        (CENTRED, "float32[n, 512]", lambda x: x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()),
    ],
    ids=["rows", "all", "centred"],
)
@pytest.mark.parametrize("n", [1, 4, 48])
def test_who_leaves_out_what_averages_out_is_always_found(reference, output, wrong, n):
    space = {}
    exec(reference, space)
    settings = {"n": n, "columns": 512, "outputs": {"y": output}}
    for seed in range(12):
        assert isinstance(judge(reference, "offset", wrong, seed=seed, **settings), Rejected)
        for dtype in (torch.bfloat16, torch.float8_e4m3fn):
            one = judge(reference, "offset", lambda x: space["run"](coarse(x, dtype)), seed=seed, **settings)  # noqa: B023
            assert isinstance(one, Accepted), one.message


def test_who_looks_at_one_row_to_tell_whether_rows_are_moved_is_found():
    def centred_if_seen(x):
        mean = x.mean(-1, keepdim=True) if abs(x[0].mean()) > 1 else 0.0
        return (x - mean) / (x.var(-1, keepdim=True) + 1e-5).sqrt()

    settings = {"n": 48, "columns": 512, "outputs": {"y": "float32[n, 512]"}}
    verdicts = [judge(CENTRED, "offset", centred_if_seen, seed=seed, **settings) for seed in range(30)]
    assert sum(isinstance(one, Rejected) for one in verdicts) >= 12  # twenty are expected


@pytest.mark.parametrize(
    ("reference", "more"),
    [
        ("def run(x):\n    return (x > 8).sum()\n", ["spike", "far", "offset", "spike", "spike", "spike"]),
        (
            "import torch\ndef run(x):\n    return torch.isnan(x).any()\n",
            ["spike", "nonfinite", "far", "offset", "nonfinite", "spike", "nonfinite"],
        ),
    ],
)
def test_where_an_output_is_constant_each_trial_has_strong_inputs(reference, more):
    definition = make_definition(inputs={"x": "float32[n]"}, outputs={"y": "int64[]"}, reference=reference)
    usual, tried = (
        Regimes(definition, make_workload(axes={"n": 64}, inputs={}), seed=3, has_constants=has)
        for has in (False, True)
    )
    for trial in range(3):
        others = [name for name in usual.choose(trial, 3) if name != "nonfinite"]
        assert sorted(tried.choose(trial, 3)) == sorted([*more, *others])
    assert set(tried.names) == {*usual.names, *more}
    for trials in (1, 2, 5, 20):
        chosen = [name for trial in range(trials) for name in tried.choose(trial, trials)]
        assert 12 <= chosen.count("spike") + max(0, chosen.count("nonfinite") - trials) <= 20
    assert {*more} - {"offset", "nonfinite"} <= FOR_CONSTANTS_ALONE


@pytest.mark.parametrize(("n", "more"), [(1 << 24, 6), (1 << 27, 2), (1 << 28, 1), (1 << 34, 1)])
def test_of_large_inputs_fewer_strong_ones_are_kept(n, more):
    reference = "def run(x):\n    return (x > 8).sum()\n"
    definition = make_definition(inputs={"x": "float32[n]"}, outputs={"y": "int64[]"}, reference=reference)
    tried = Regimes(definition, make_workload(axes={"n": n}, inputs={}), seed=3, has_constants=True)
    strong = ["spike", "far", "offset", "spike", "spike", "spike"][:more]
    assert not Counter(strong) - Counter(tried.choose(0, 3))
    room = (1 << 30) // (4 * n)
    asked = min(len(OF_ALL_FLOATS), room) if room >= len(set(OF_ALL_FLOATS)) else 1
    assert len(tried.choose(0, 3)) == more + 1 + asked


def test_strong_inputs_are_strong_and_a_spike_is_one_element_of_any_sign():
    regimes = open_regimes({"x": "float16[n, m]"}, n=100, m=100)
    spikes = []
    for number in range(8):
        x = torch.ones(100, 100, dtype=torch.float16)
        regimes.change("spike", number, [x])
        assert int((x != 1).sum()) == 1
        spikes.append(x[x != 1].item())
        assert 9.9 <= abs(spikes[-1]) <= 65504
    assert min(spikes) < 0 < max(spikes)
    y, z = (torch.ones(100, 100, dtype=torch.float16) for _ in range(2))
    regimes.change("far", 0, [y])
    assert 99 <= y.unique().item() <= 1001
    regimes.change("nonfinite", 0, [z])
    assert int((~z.isfinite()).sum()) == 1
    one = torch.ones(1, 1, dtype=torch.float16)
    for name in (*FOR_CONSTANTS_ALONE, "nonfinite"):
        regimes.change(name, 0, [one])


@pytest.mark.parametrize(
    ("changes", "is_judged"),
    [
        ({}, True),
        ({"op_type": "moe"}, True),
        ({"outputs": {"y": "int32[n]"}}, False),
        ({"outputs": {"y": "float32[n]", "count": "int32[n]"}}, True),
        ({"reference": "def run(x):\n    return x[x.argmax()] + x\n"}, True),
    ],
    ids=["plain", "moe", "integers", "integers beside floats", "a reference that chooses"],
)
def test_only_outputs_without_a_float_are_judged_on_usual_inputs_only(changes, is_judged):
    definition = make_definition(**changes)
    job = Judging(definition, make_workload())
    assert (why_no_regimes(definition) is None) is is_judged
    assert job.evaluator.takes_regimes(definition, job.config) is is_judged
    off = Judging(definition, make_workload(), regimes_rule=False)
    assert not off.evaluator.takes_regimes(definition, off.config)
