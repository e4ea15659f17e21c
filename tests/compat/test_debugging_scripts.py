"""Scripts that call solutions, references and parts of the judge in their own process, without isolation."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

from flashinfer_bench.bench.evaluators import (  # noqa: E402 - torch is looked for first
    DsaSparseAttentionEvaluator,
    DsaTopkIndexerEvaluator,
    LowBitEvaluator,
    SamplingEvaluator,
    resolve_evaluator,
)
from flashinfer_bench.bench.evaluators.utils import allocate_outputs, normalize_result  # noqa: E402
from flashinfer_bench.bench.timing import time_runnable  # noqa: E402
from flashinfer_bench.bench.utils import gen_inputs, load_safetensors  # noqa: E402
from flashinfer_bench.compile import (  # noqa: E402
    Builder,
    BuilderRegistry,
    BuildError,
    Runnable,
    RunnableMetadata,
)
from flashinfer_bench.data import TraceSet  # noqa: E402
from tests.kit import make_definition, make_solution, make_workload  # noqa: E402
from tests.kit.make import DOUBLE_INTO  # noqa: E402

pytestmark = pytest.mark.cpu

DOUBLE = make_definition()
X = torch.arange(4.0)
TWO_OUTPUTS = {"outputs": {"y": "float32[n]", "z": "float32[n]"}}


@pytest.fixture
def registry(tmp_path):
    found = BuilderRegistry(Builder(tmp_path / "cache"))
    before = list(sys.path)
    yield found
    found.cleanup()
    assert sys.path == before
    assert not [name for name in sys.modules if name.startswith("flashinfer_bench_solution")]


@pytest.mark.parametrize(
    "source",
    ["def run(x):\n    return x * 2\n", "def run(*args):\n    return args[0] * 2\n", DOUBLE_INTO],
    ids=["value", "open", "destination"],
)
def test_a_solution_is_called_with_inputs_alone_whatever_its_style(registry, source):
    solution = make_solution(source=source)
    runnable = registry.build(DOUBLE, solution)
    assert runnable.call_value_returning(X).tolist() == [0, 2, 4, 6]
    metadata = runnable.metadata
    assert (isinstance(runnable, Runnable), isinstance(metadata, RunnableMetadata)) == (True, True)
    assert metadata.destination_passing_style == (source == DOUBLE_INTO)
    assert (metadata.solution_name, metadata.definition) == (solution.name, DOUBLE)
    assert registry.build(DOUBLE, solution) is runnable


def test_a_solution_is_called_in_its_own_style_by_position_and_by_name(registry):
    into = registry.build(DOUBLE, make_solution(source=DOUBLE_INTO, destination_passing_style=True))
    y = torch.empty(4)
    into(X, y)
    into.call_kwargs(y=y, x=y.clone())
    assert y.tolist() == [0, 4, 8, 12]
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        into.call_kwargs(x=X, z=y)


def test_setup_is_called_and_two_solutions_may_have_helpers_of_one_name(registry):
    main = "import helper\n\ndef setup(x):\n    return {'by': helper.BY}\n\ndef run(x, by):\n    return x * by\n"
    made = [make_solution(f"by_{n}", sources={"main.py": main, "helper.py": f"BY = {n}\n"}) for n in (3, 5)]
    assert [registry.build(DOUBLE, one).call_value_returning(X).tolist()[1] for one in made] == [3, 5]


def test_several_outputs_come_as_a_tuple_from_a_dict_too(registry):
    definition = make_definition(reference="def run(x):\n    return {'z': x + 1, 'y': x}\n", **TWO_OUTPUTS)
    y, z = registry.build_reference(definition).call_value_returning(X)
    assert (y.tolist(), z.tolist()) == ([0, 1, 2, 3], [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("solution", "words"),
    [
        (make_solution(source="import no_such_module\n\ndef run(x):\n    return x\n"), "no_such_module"),
        (make_solution(source="def other(x):\n    return x\n"), "other"),
        (make_solution(source="def run():\n    return 1\n"), "not the definition's arguments"),
        (make_solution(definition="triple"), "not of double"),
        (None, "no_such_module"),
    ],
    ids=["import", "entry", "arity", "definition", "reference"],
)
def test_what_cannot_be_built_is_a_build_error(registry, solution, words):
    broken = make_definition(reference="import no_such_module\ndef run(x): ...\n")
    with pytest.raises(BuildError, match=words):
        registry.build(DOUBLE, solution) if solution else registry.build_reference(broken)


def test_inputs_of_a_workload_follow_from_torchs_seed():
    made = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        made += gen_inputs(DOUBLE, make_workload(), "cpu")
    assert [list(tensor.shape) for tensor in made] == [[8]] * 3
    assert (torch.equal(made[0], made[1]), torch.equal(made[0], made[2])) == (True, False)


def test_stored_inputs_are_read_and_put_in_their_place(tmp_path):
    path = TraceSet(tmp_path, {"double": DOUBLE}).add_workload_blob_tensor("double", "w0", {"key": torch.arange(8.0)})
    workload = make_workload(inputs={"x": {"type": "safetensors", "path": path, "tensor_key": "key"}})
    stored = load_safetensors(DOUBLE, workload, tmp_path)
    assert stored["x"].tolist() == gen_inputs(DOUBLE, workload, "cpu", stored)[0].tolist() == list(range(8))
    with pytest.raises(ValueError, match="no stored tensor for x"):
        gen_inputs(DOUBLE, workload, "cpu")


def test_evaluators_are_found_by_definition():
    sparse = resolve_evaluator(make_definition("dsa", op_type="dsa_paged"))
    assert issubclass(sparse, (DsaSparseAttentionEvaluator, DsaTopkIndexerEvaluator))
    assert resolve_evaluator(make_definition("low", op_type="lowbit")) is LowBitEvaluator
    assert not SamplingEvaluator.can_evaluate(DOUBLE)


def test_outputs_are_allocated_for_inputs_or_axes():
    definition = make_definition(outputs={"y": "bfloat16[n]", "count": "int32[]"})
    for given in ([X], {"n": 4}):
        y, count = allocate_outputs(definition, given, "cpu")
        assert (tuple(y.shape), y.dtype, tuple(count.shape), count.dtype) == ((4,), torch.bfloat16, (), torch.int32)


def test_results_of_every_form_become_a_list_of_tensors():
    definition = make_definition(**TWO_OUTPUTS)
    assert [value.item() for value in normalize_result(definition, (torch.tensor(1.0), 2.0), "cpu")] == [1.0, 2.0]
    wrong = {"2 outputs": (definition, X), "outputs y, z, got w": (definition, {"w": X}), "NoneType": (DOUBLE, None)}
    for words, given in wrong.items():
        with pytest.raises((ValueError, TypeError), match=words):
            normalize_result(*given, "cpu")


def test_a_runnable_is_timed_with_a_warning_where_no_gpu_is(registry):
    with pytest.warns(UserWarning, match="no GPU") if not torch.cuda.is_available() else pytest.warns():
        assert time_runnable(registry.build_reference(DOUBLE), [X], 1, 3, "cpu") > 0


@pytest.mark.gpu
def test_a_script_on_a_gpu_builds_calls_and_times(registry):
    inputs = gen_inputs(DOUBLE, make_workload(axes={"n": 1 << 20}), "cuda:0")
    runnable = registry.build(DOUBLE, make_solution(source=DOUBLE_INTO, destination_passing_style=True))
    outputs = allocate_outputs(DOUBLE, inputs, "cuda:0")
    runnable(*inputs, *outputs)
    assert torch.equal(outputs[0], inputs[0] * 2)
    assert torch.equal(outputs[0], runnable.call_value_returning(*inputs))
    assert 0 < time_runnable(runnable, [*inputs, *outputs], 3, 10, "cuda:0") < 10
