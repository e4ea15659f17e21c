"""Inputs that a function of the definition makes: how it is called, what it may give, and how calls differ."""

from __future__ import annotations

import random

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.contents import Contents, find_varied
from flashinfer_bench.bench.evaluators.inputs.make import InputMaker
from flashinfer_bench.errors import DefinitionFault
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu
CPU = torch.device("cpu")
CUSTOM = {"type": "custom"}
DRAWN = "{'x': torch.rand(n, device=device), 'i': torch.arange(n, dtype=torch.int32)}"


def definition_with(made, signature="axes_and_scalars, device", before="n = axes_and_scalars['n']", **changes):
    function = f"def make({signature}):\n    {before}\n    return {made}\n"
    return make_definition(
        inputs={"x": "float32[n]", "i": "int32[n]", "s": "float32"},
        outputs={"y": "float32[n]"},
        reference=f"import random\nimport torch\n\n{function}\ndef run(x, i, s):\n    return x + i * s\n",
        **{"custom_inputs_entrypoint": "make", **changes},
    )


def workload_with(**inputs):
    return make_workload(axes={"n": 4}, inputs={"x": CUSTOM, "i": CUSTOM, "s": 2.0, **inputs})


def inputs_of(definition, tmp_path, seed=1, **inputs):
    return InputMaker(definition, workload_with(**inputs), CPU, tmp_path).make(seed)


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
def test_the_function_gets_axes_and_numbers_as_it_asks_for_them(tmp_path, signature, before):
    drawn = "torch.rand(n, device=device)", "torch.arange(n, dtype=torch.int32)"
    for made in (DRAWN, f"({', '.join(drawn)})", f"[{', '.join(drawn)}, 5]"):
        x, i, s = inputs_of(definition_with(made, signature, before), tmp_path)
        assert (x.shape, i.tolist(), s) == ((4,), [0, 1, 2, 3], 2.0)


def test_an_equal_seed_gives_equal_inputs_and_leaves_generators_alone(tmp_path):
    made = "{'x': torch.rand(n) + random.random(), 'i': torch.arange(n, dtype=torch.int32)}"
    torch.manual_seed(5)
    random.seed(5)
    expected = torch.rand(2), random.random()
    torch.manual_seed(5)
    random.seed(5)
    first, again, other = (inputs_of(definition_with(made), tmp_path, seed)[0] for seed in (1, 1, 2))
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
def test_what_it_gives_is_checked_and_an_error_is_the_definitions(tmp_path, made, words):
    with pytest.raises(DefinitionFault, match=words):
        inputs_of(definition_with(made), tmp_path)
    for entry in ("absent", "torch"):
        with pytest.raises(DefinitionFault, match=f"has no function '{entry}'"):
            inputs_of(definition_with(DRAWN, custom_inputs_entrypoint=entry), tmp_path)


def contents_of(definition, tmp_path):
    base = inputs_of(definition, tmp_path)
    return Contents(base, find_varied(definition, workload_with(), CPU), 7, base_number=0)


def test_each_call_gets_inputs_that_the_function_made_together_in_one_draw(tmp_path):
    drawn = "p = torch.softmax(torch.randn(n), 0)\n    return {'x': p, 'z': 1 - p}"
    definition = make_definition(
        inputs={"x": "float32[n]", "z": "float32[n]"},
        reference=f"import torch\ndef make(n):\n    {drawn}\ndef run(x, z): 1",
        custom_inputs_entrypoint="make",
    )
    workload = make_workload(axes={"n": 4}, inputs={"x": CUSTOM, "z": CUSTOM})
    base = InputMaker(definition, workload, CPU, tmp_path).make(1)
    contents = Contents(base, find_varied(definition, workload, CPU), 7, base_number=0)
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
def test_inputs_that_cannot_be_made_anew_are_varied_as_stored_ones(tmp_path, monkeypatch, made, slow_s):
    monkeypatch.setattr("flashinfer_bench.bench.evaluators.inputs.contents.SLOW_S", slow_s)
    contents = contents_of(definition_with(made), tmp_path)
    x, i, _ = contents.make(1)
    assert not torch.equal(x, contents.base[0])
    assert bool(((x[:, None] / contents.base[0]).abs().log().abs() < 0.23).any())  # scaled
    assert torch.equal(i, contents.base[1])


@pytest.mark.gpu
def test_a_function_draws_on_a_gpu_and_leaves_its_generator_alone(tmp_path):
    cuda = torch.device("cuda")
    torch.cuda.manual_seed(5)
    expected = torch.rand(2, device=cuda)
    torch.cuda.manual_seed(5)
    first, again = (InputMaker(definition_with(DRAWN), workload_with(), cuda, tmp_path).make(1) for _ in range(2))
    assert torch.equal(first[0], again[0])
    assert {first[0].device.type, first[1].device.type} == {"cuda"}
    assert torch.equal(torch.rand(2, device=cuda), expected)
