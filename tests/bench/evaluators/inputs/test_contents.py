"""The inputs of single calls: their own content, from a secret, and always the same for a number."""

import math
import weakref

import pytest
import torch

from flashinfer_bench.bench.evaluators.compare.packed import unpack
from flashinfer_bench.bench.evaluators.inputs.contents import Contents, DealtContents, find_varied
from flashinfer_bench.bench.evaluators.inputs.custom import CustomInputs
from flashinfer_bench.bench.evaluators.inputs.rules import VariedInput
from flashinfer_bench.errors import DefinitionFault
from tests.bench.evaluators.judging import CPU, define, make
from tests.kit.make import make_workload

pytestmark = pytest.mark.cpu
BASE_NUMBER, NUMBERS = 3, [0, 1, 2, 4, 5, 6, 7, 8]
FLOATS = ["float32", "float16", "bfloat16"]
NARROW = ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1", "int8", "uint8"]
STORED = {"type": "safetensors", "path": "x.safetensors", "tensor_key": "x"}


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Let no function count as slow, however busy the machine is."""
    monkeypatch.setattr("flashinfer_bench.bench.evaluators.inputs.contents.SLOW_S", 60.0)


def open_contents(inputs, sources=None, *, seed=7, op_type="test", definition=None, **axes):
    """Return the contents of a definition's inputs, random unless sources say otherwise."""
    definition = definition or define(inputs, op_type=op_type)
    varied = find_varied(definition, make_workload(axes=axes, inputs=sources or {}), CPU)
    return DealtContents([Contents([*make(definition, sources, **axes).values()], varied, seed, BASE_NUMBER)])


def open_one(value, mode="scaled", **varied):
    return DealtContents([Contents([value], [VariedInput("x", mode, **varied)], 7, BASE_NUMBER)])


def make_each(contents):
    return [values[0] for values in contents.make_all(NUMBERS)]


def bytes_of(*values):
    return b"".join(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for value in values)


@pytest.mark.parametrize("dtype", ["float64", *FLOATS, *NARROW])
def test_a_number_has_one_content_and_shares_no_row_with_the_base(dtype):
    contents, other = (open_contents({"x": f"{dtype}[n, m]"}, seed=seed, n=4, m=64) for seed in (7, 8))
    base, made = bytes_of(contents.base[0]), make_each(contents)
    assert [bytes_of(one) for one in made] == [bytes_of(contents.make(number)[0]) for number in NUMBERS]
    rows = {bytes_of(row) for one in (contents.base[0], *made) for row in one.view(torch.uint8)}
    assert len(rows) == 4 * (len(made) + 1)
    assert bytes_of(contents.make(BASE_NUMBER)[0]) == base == bytes_of(contents.base[0])  # it is never written
    assert bytes_of(other.make(0)[0]) != bytes_of(made[0])


def test_structure_and_numbers_stay_as_they_are_and_probabilities_sum_to_one():
    inputs = {"kv_indptr": "int32[n]", "kv_indices": "int32[p]", "eps": "float32", "x": "float32[n]"}
    contents = open_contents(inputs, n=9, p=32)
    for *structure, eps, x in contents.make_all(NUMBERS):
        assert bytes_of(*structure) == bytes_of(*contents.base[:2])
        assert (eps, torch.equal(x, contents.base[-1])) == (contents.base[2], False)
    for made in make_each(open_contents({"probs": "float32[n, v]"}, op_type="sampling", n=4, v=512)):
        assert made.sum(dim=-1).tolist() == pytest.approx([1] * 4, abs=1e-5)


def test_floats_are_drawn_or_moved_and_multiplied_or_keep_the_form_of_their_rows():
    for made in make_each(open_contents({"logits": "float32[n]"}, op_type="sampling", n=4096)):
        assert made.std() == pytest.approx(3.0, rel=0.1)
    base = torch.arange(1.0, 1001)
    for made in make_each(open_one(base)):
        factors = made.sort().values / base
        assert 0.79 < factors.min() < factors.max() < 1.26
        assert (made.argsort() == torch.arange(1000)).double().mean() < 0.1
    for power in (1, 2):
        base = torch.rand(4, 512) - (power - 1) / 2
        for made in make_each(open_one(base, "redrawn")):
            assert base.norm(power, dim=-1).tolist() == pytest.approx(made.norm(power, dim=-1).tolist(), rel=1e-5)
            assert len((made.sort().values / base.sort().values).unique()) > 100  # one scale is not enough


DIFFERING = [(torch.tensor(2.0), "scaled"), (torch.arange(8.0), "rolled"), (torch.full((4, 2), 0.5), "redrawn")]
SAME = [(torch.zeros(8), "scaled"), (torch.ones(8), "rolled"), (torch.ones(4, 1), "redrawn"), (None, "scaled")]


def test_inputs_that_cannot_differ_are_detected():
    assert [open_one(*one).differs for one in (*DIFFERING, *SAME)] == [True] * 3 + [False] * 4
    for value, mode in SAME:
        assert Contents([value, torch.ones(3)], [VariedInput("x", mode), VariedInput("y", "scaled")], 7, 0).differs


def test_calls_get_the_sets_of_inputs_in_turn_and_no_two_the_same():
    bases = [torch.full((64,), 10.0**at) for at in range(3)]
    dealt = DealtContents([Contents([base], [VariedInput("x", "scaled")], at, 1) for at, base in enumerate(bases)])
    made = [values[0] for values in dealt.make_all(range(12))]
    assert [round(float(one.abs().log10().mean())) for one in made] == [dealt.set_of(at) for at in range(12)]
    assert [number for number in range(12) if dealt.is_base(number)] == [3, 4, 5]
    assert all(map(torch.equal, made[3:6], bases))
    assert len(set(map(bytes_of, made))) == 12


BOUND = {"constraints": ["x.max() <= 1"]}
VARIED = [  # name, dtype, whether it is stored, further settings; whether it is nudged, deviation if it is drawn
    *(("x", dtype, True, {}, True, None) for dtype in ("float8_e4m3fn", "float4_e2m1fn_x2", "int8")),
    ("x", "float8_e4m3fn", False, {}, False, None),  # any of its bits are flipped
    *(("x", dtype, True, {}, False, None) for dtype in ("float8_e8m0fnu", "uint8", "float16")),
    *((name, "int8", True, {}, False, None) for name in ("block_table", "w_scales")),
    ("x", "float8_e4m3fn", True, BOUND, False, None),
    ("x", "bfloat16", False, {}, False, 1.0),
    ("logits", "float32", False, {"op_type": "sampling"}, False, 3.0),
    ("gemm1_weights", "bfloat16", False, {"op_type": "moe"}, False, 1 / 64),
]


@pytest.mark.parametrize(("name", "dtype", "is_stored", "others", "is_perturbed", "deviation"), VARIED)
def test_stored_quantised_numbers_change_a_little_and_random_normal_numbers_are_drawn(
    name, dtype, is_stored, others, is_perturbed, deviation
):
    definition = define({name: f"{dtype}[n]"}, **others)
    workload = make_workload(axes={"n": 4096}, inputs={name: STORED} if is_stored else {})
    (varied,) = find_varied(definition, workload, CPU)
    assert (varied.is_perturbed, varied.deviation, varied.remake is None) == (is_perturbed, deviation, is_stored)
    if deviation is not None:
        (made,) = make(definition, n=4096).values()
        assert made.float().std() == pytest.approx(deviation, rel=0.05)


EVERY_BYTE = torch.arange(256, dtype=torch.int16).to(torch.uint8).repeat(4)
NORMAL = torch.randn(1024, generator=torch.Generator().manual_seed(0)) * 7
CODES = torch.cartesian_prod(*[torch.arange(3)] * 4) @ torch.tensor([1, 4, 16, 64])  # four codes of 0 to 2 in a byte
INDICES, LABELS = (torch.tensor(one, dtype=torch.int8) for one in ([-1, 0, 1, 2, 77], [*range(10), -100]))


@pytest.mark.parametrize(
    ("value", "least"),
    [
        *((EVERY_BYTE.view(one), 0.3) for one in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float4_e2m1fn_x2)),
        *((NORMAL.to(dtype), 0.3) for dtype in (torch.float8_e4m3fn, torch.int8)),
        (CODES.to(torch.uint8).view(torch.int8).repeat(9), 0.01),
        *((one, 0) for one in (INDICES, LABELS, torch.tensor([0.0, math.inf, math.nan]).to(torch.float8_e5m2))),
    ],
)
def test_quantised_numbers_become_other_numbers_of_the_tensor_and_special_numbers_stay(value, least):
    codes = value.view(torch.uint8)
    numbers = (unpack(value) if value.dtype is torch.float4_e2m1fn_x2 else value.double()).view(len(value), -1)
    is_special = (~numbers.isfinite() | (numbers == 0)).any(1)
    for made in make_each(open_one(value, "rolled", is_perturbed=True)):
        held = made.view(torch.uint8)
        assert {*held.tolist()} <= {*codes.tolist()}
        changed = torch.stack([held != codes.roll(by) for by in range(len(codes))])
        changed = changed[changed.double().mean(1).argmin()]
        assert least < changed.double().mean() < 0.7 if least else not changed.any()
        assert torch.equal(*(codes[is_special].sort().values, held[torch.isin(held, codes[is_special])].sort().values))


# Inputs that a function of the definition makes.

CUSTOM = {"type": "custom"}
SOURCES = {"x": CUSTOM, "i": CUSTOM, "s": 2.0}
DRAWN = "{'x': torch.rand(n, device=device), 'i': torch.arange(n, dtype=torch.int32)}"
IN_ORDER = "[torch.rand(n, device=device), torch.arange(n, dtype=torch.int32), 5]"
GIVEN = "axes_and_scalars, device", "n = axes_and_scalars['n']"


def customised(made, signature=GIVEN[0], before=GIVEN[1], entry="make"):
    function = f"import random\ndef make({signature}):\n    {before}\n    return {made}"
    inputs = {"x": "float32[n]", "i": "int32[n]", "s": "float32"}
    return define(inputs, "return x + i * s", before=function, custom_inputs_entrypoint=entry)


def draw(definition, **others):
    return [*make(definition, SOURCES, n=4, **others).values()]


@pytest.mark.parametrize(
    ("signature", "before"),
    [
        GIVEN,
        ("values, where", "n, device = values['n'], where"),
        ("values, device='cpu'", "n = int(values['n'] * values['s'] / 2)"),
        ("n, device", "pass"),
        ("*given", "n, device = given[0]['n'], given[1]"),
        ("*, n, s, device='cuda', seed=0", "pass"),
        ("device, **axes", "n = int(axes['n'] * axes['s'] / 2)"),
        ("values, device, **others", "n = int(values['n'] * values['s'] / 2)"),
        ("values, *, device='cpu', seed=0", "n = values['n']"),
        ("values, *, seed=0", "n, device = values['n'], 'cpu'"),
        ("", "n, device = 4, 'cpu'"),
    ],
)
def test_the_function_gets_axes_and_numbers_as_it_asks_for_them(signature, before):
    for made in (DRAWN, IN_ORDER):
        x, i, s = draw(customised(made, signature, before))
        assert (x.shape, i.tolist(), s) == ((4,), [0, 1, 2, 3], 2.0)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_an_equal_seed_gives_equal_inputs_and_leaves_generators_alone(device):
    drawn = customised(
        DRAWN.replace("device)", "device=device) + random.random()").replace("device=device=", "device=")
    )
    torch.manual_seed(5)
    expected = torch.rand(2, device=device)
    torch.manual_seed(5)
    first, again, other = (draw(drawn, seed=seed, device=torch.device(device))[0] for seed in (1, 1, 2))
    assert (torch.equal(first, again), torch.equal(first, other), first.device.type) == (True, False, device)
    assert torch.equal(torch.rand(2, device=device), expected)


@pytest.mark.parametrize(
    ("made", "entry", "words"),
    [
        ("{'x': torch.rand(n)}", "make", "x, i are wanted"),
        ("torch.rand(n)", "make", "it gives 1 values; x, i are wanted"),
        ("{'x': torch.rand(n + 1), 'i': 0}", "make", r"input 'x' is float32\[5\]; it should be float32\[4\]"),
        ("{'x': torch.rand(n).half(), 'i': 0}", "make", r"input 'x' is float16\[4\]"),
        ("{'x': 3, 'i': 0}", "make", "input 'x' is a int, not a tensor"),
        ("1 / 0", "make", r"ZeroDivisionError: division by zero \(line 6: `return 1 / 0`\)"),
        *((DRAWN, entry, f"has no function '{entry}'") for entry in ("absent", "torch")),
    ],
)
def test_the_result_is_checked_and_an_error_is_the_definitions(made, entry, words):
    with pytest.raises(DefinitionFault, match=words):
        draw(customised(made, entry=entry))


def test_each_call_gets_inputs_that_the_function_made_together_in_one_draw():
    made = "def make(n):\n    p = torch.softmax(torch.randn(n), 0)\n    return {'x': p, 'z': 1 - p}"
    inputs = {"x": "float32[n]", "z": "float32[n]"}
    definition = define(inputs, before=made, custom_inputs_entrypoint="make")
    calls = open_contents({}, dict.fromkeys(inputs, CUSTOM), definition=definition, n=4).make_all([1, 2, 4])
    assert len({tuple(x.tolist()) for x, _ in calls}) == 3
    assert all(abs(float(x.sum()) - 1) < 1e-5 and torch.equal(z, 1 - x) for x, z in calls)


@pytest.mark.parametrize(
    ("made", "slow_s"),
    [
        (DRAWN, 0.0),  # it is too slow for each call
        ("{'x': torch.ones(n) * 3, 'i': torch.arange(n, dtype=torch.int32)}", 60.0),  # no chance in it
        ("{'x': torch.rand(n), 'i': torch.randperm(n).int()}", 60.0),  # structure changes
    ],
)
def test_inputs_that_cannot_be_made_anew_vary_like_stored_inputs(monkeypatch, made, slow_s):
    monkeypatch.setattr("flashinfer_bench.bench.evaluators.inputs.contents.SLOW_S", slow_s)
    contents = open_contents({}, SOURCES, definition=customised(made), n=4)
    x, i, _ = contents.make(1)
    assert (torch.equal(x, contents.base[0]), torch.equal(i, contents.base[1])) == (False, True)
    assert bool(((x[:, None] / contents.base[0]).abs().log().abs() < 0.23).any())  # scaled


def test_a_function_that_waits_for_a_processor_is_not_slow():
    whole = "{'x': torch.randint(1, 99, (n,)).float(), 'i': torch.ones(n, dtype=torch.int32)}"
    made = f"__import__('time').sleep(0.06) or {whole}"  # a solution's processes could make it wait
    x, *_ = open_contents({}, SOURCES, definition=customised(made), n=4).make(1)
    assert torch.equal(x, x.round())  # drawn, not scaled


def test_inputs_of_one_function_are_made_together_and_not_kept(monkeypatch):
    drawn = []

    def draw(self, seed, really=CustomInputs.draw):
        made = really(self, seed)
        drawn.append(weakref.WeakSet(value for value in made.values() if isinstance(value, torch.Tensor)))
        return made

    monkeypatch.setattr(CustomInputs, "draw", draw)
    both = "{'x': torch.rand(n, device=device), 'i': torch.rand(n).int(), 'z': torch.rand(n)}"
    function = f"def make({GIVEN[0]}):\n    {GIVEN[1]}\n    return {both}"
    definition = define(
        {"x": "float32[n]", "i": "int32[n]", "z": "float32[n]"},
        "return x + i * z",
        before=function,
        custom_inputs_entrypoint="make",
    )
    contents = open_contents({}, dict.fromkeys("xiz", CUSTOM), definition=definition, n=4)
    drawn.clear()
    contents.make_all([1, 2])
    assert [len(one) for one in drawn] == [0, 0]
