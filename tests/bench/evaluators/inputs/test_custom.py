"""Inputs that a function of the definition makes: how it is called, what it may give, and how calls differ."""

from __future__ import annotations

import random

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.contents import Contents, find_varied
from flashinfer_bench.errors import DefinitionFault
from tests.bench.evaluators.inputs.making import CPU, define, make
from tests.kit.make import make_workload

pytestmark = pytest.mark.cpu
CUSTOM = {"type": "custom"}
DRAWN = "{'x': torch.rand(n, device=device), 'i': torch.arange(n, dtype=torch.int32)}"
SOURCES = {"x": CUSTOM, "i": CUSTOM, "s": 2.0}


def describe(made, signature="axes_and_scalars, device", before="n = axes_and_scalars['n']", entry="make"):
    function = f"import random\ndef make({signature}):\n    {before}\n    return {made}"
    inputs = {"x": "float32[n]", "i": "int32[n]", "s": "float32"}
    return define(inputs, "return x + i * s", before=function, custom_inputs_entrypoint=entry)


def draw(definition, **told):
    return [*make(definition, SOURCES, n=4, **told).values()]


def open_contents(definition, sources=SOURCES):
    varied = find_varied(definition, make_workload(axes={"n": 4}, inputs=sources), CPU)
    return Contents([*make(definition, sources, n=4).values()], varied, 7, base_number=0)


@pytest.mark.parametrize(
    ("signature", "before"),
    [
        ("axes_and_scalars, device", "n = axes_and_scalars['n']"),
        ("values, where", "n, device = values['n'], where"),
        ("values, device='cpu'", "n = int(values['n'] * values['s'] / 2)"),
        ("n, device", "pass"),
        ("*, n, device", "pass"),
        ("*given", "n, device = given[0]['n'], given[1]"),
        ("*, n, s, device='cuda', seed=0", "pass"),
        ("device", "n = 4"),
        ("device, **axes", "n = int(axes['n'] * axes['s'] / 2)"),
        ("**given", "n, device = given['n'], 'cpu'"),
        ("", "n, device = 4, 'cpu'"),
    ],
)
def test_the_function_gets_axes_and_numbers_as_it_asks_for_them(signature, before):
    drawn = "torch.rand(n, device=device)", "torch.arange(n, dtype=torch.int32)"
    for made in (DRAWN, f"({', '.join(drawn)})", f"[{', '.join(drawn)}, 5]"):
        x, i, s = draw(describe(made, signature, before))
        assert (x.shape, i.tolist(), s) == ((4,), [0, 1, 2, 3], 2.0)


def test_an_equal_seed_gives_equal_inputs_and_leaves_generators_alone():
    made = "{'x': torch.rand(n) + random.random(), 'i': torch.arange(n, dtype=torch.int32)}"
    torch.manual_seed(5)
    random.seed(5)
    expected = torch.rand(2), random.random()
    torch.manual_seed(5)
    random.seed(5)
    first, again, other = (draw(describe(made), seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.rand(2), expected[0])
    assert random.random() == expected[1]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("{'x': torch.rand(n)}", "x, i are wanted"),
        ("torch.rand(n)", "it gives 1 values; x, i are wanted"),
        ("{'x': torch.rand(n + 1), 'i': 0}", r"input 'x' is float32\[5\]; it should be float32\[4\]"),
        ("{'x': torch.rand(n).half(), 'i': 0}", r"input 'x' is float16\[4\]"),
        ("{'x': 3, 'i': 0}", "input 'x' is a int, not a tensor"),
        ("1 / 0", r"ZeroDivisionError: division by zero \(line 6: `return 1 / 0`\)"),
    ],
)
def test_what_it_gives_is_checked_and_an_error_is_the_definitions(made, words):
    with pytest.raises(DefinitionFault, match=words):
        draw(describe(made))
    for entry in ("absent", "torch"):
        with pytest.raises(DefinitionFault, match=f"has no function '{entry}'"):
            draw(describe(DRAWN, entry=entry))


def test_each_call_gets_inputs_that_the_function_made_together_in_one_draw():
    made = "def make(n):\n    p = torch.softmax(torch.randn(n), 0)\n    return {'x': p, 'z': 1 - p}"
    inputs = {"x": "float32[n]", "z": "float32[n]"}
    contents = open_contents(define(inputs, before=made, custom_inputs_entrypoint="make"), {"x": CUSTOM, "z": CUSTOM})
    calls = contents.make_all([1, 2, 3])
    assert len({tuple(x.tolist()) for x, _ in calls}) == 3
    assert all(abs(float(x.sum()) - 1) < 1e-5 and torch.equal(z, 1 - x) for x, z in calls)
    assert contents.differs


@pytest.mark.parametrize(
    ("made", "slow_s"),
    [
        (DRAWN, 0.0),  # it is too slow for each call
        ("{'x': torch.ones(n) * 3, 'i': torch.arange(n, dtype=torch.int32)}", 60.0),  # no chance in it
        ("{'x': torch.rand(n), 'i': torch.randperm(n).int()}", 60.0),  # structure changes
    ],
)
def test_inputs_that_cannot_be_made_anew_are_varied_as_stored_ones(monkeypatch, made, slow_s):
    monkeypatch.setattr("flashinfer_bench.bench.evaluators.inputs.contents.SLOW_S", slow_s)
    contents = open_contents(describe(made))
    x, i, _ = contents.make(1)
    assert not torch.equal(x, contents.base[0])
    assert bool(((x[:, None] / contents.base[0]).abs().log().abs() < 0.23).any())  # scaled
    assert torch.equal(i, contents.base[1])


@pytest.mark.gpu
def test_a_function_draws_on_a_gpu_and_leaves_its_generator_alone():
    cuda = torch.device("cuda")
    torch.cuda.manual_seed(5)
    expected = torch.rand(2, device=cuda)
    torch.cuda.manual_seed(5)
    first, again = (draw(describe(DRAWN), device=cuda) for _ in range(2))
    assert torch.equal(first[0], again[0])
    assert {first[0].device.type, first[1].device.type} == {"cuda"}
    assert torch.equal(torch.rand(2, device=cuda), expected)
