"""Solutions and references in the shapes that published ones have get the right verdict, in both runners."""

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.data import TraceSet
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

INPUTS = {"a": "float32[n]", "b": "float32[n]"}
OPTIONAL = {"shape": ["n"], "dtype": "float32", "optional": True}
DEFINITIONS = [
    make_definition("mix", inputs=INPUTS, reference="def run(a, b):\n    return {'y': a + 2 * b}\n"),
    make_definition(
        "pair",
        inputs=INPUTS,
        outputs={"y": "float32[n]", "z": "float32[n]"},
        reference="def run(a, b):\n    return {'z': a - b, 'y': a + 2 * b}\n",
    ),
    make_definition(
        "buffered",
        inputs={"x": "float32[n]", "buffer": OPTIONAL},
        reference="def run(x, buffer=None):\n    if buffer is not None:\n        buffer += x\n    return x * 2\n",
    ),
]
STAR = "def run(*args, **kwargs):\n    a, b = args\n    assert not kwargs\n    "
BUFFERED = "def run(x, buffer=None):\n    {}\n    return x * 2\n"
BY_CALL = "a call with its inputs alone "
SHAPES = {
    "mix": {
        "the reference": (DEFINITIONS[0].reference, "PASSED", "value", "the number of its parameters"),
        "a tensor": (f"{STAR}return a + 2 * b\n", "PASSED", "value", f"{BY_CALL}returned a value"),
        "a dict": (f"{STAR}return dict(y=a + 2 * b)\n", "PASSED", "value", f"{BY_CALL}returned a value"),
        "nothing": (
            "def run(*args, **kwargs):\n    a, b, y = args\n    y.copy_(a + 2 * b)\n",
            "PASSED",
            "dps",
            f"{BY_CALL}failed",
        ),
        "by another": (
            "def mix(a, b):\n    return a + 2 * b\nrun = lambda *args: mix(*args)\n",
            "PASSED",
            "value",
            f"{BY_CALL}returned a value",
        ),
        "passed on": (
            "def mix(a, b):\n    return a + 2 * b\ndef run(*args, **kwargs):\n    return mix(*args, **kwargs)\n",
            "PASSED",
            "value",
            f"{BY_CALL}returned a value",
        ),
        "behind a decorator": (
            "def plain(f):\n    return lambda *args: f(*args)\n@plain\ndef run(a, b, y):\n    y.copy_(a + 2 * b)\n",
            "PASSED",
            "dps",
            f"{BY_CALL}failed",
        ),
        "passed on into": (
            "def mix(a, b, y):\n    y.copy_(a + 2 * b)\ndef run(*args):\n    return mix(*args)\n",
            "PASSED",
            "dps",
            f"{BY_CALL}failed",
        ),
        "into another": (
            "def mix(a, b, y):\n    y.copy_(a + 2 * b)\nrun = lambda *args: mix(*args)\n",
            "PASSED",
            "dps",
            f"{BY_CALL}failed",
        ),
        "a wrong one": (f"{STAR}return a + b\n", "INCORRECT_NUMERICAL", "value", f"{BY_CALL}returned a value"),
        "an input": (f"{STAR}a += 2 * b\n    return a\n", "INCORRECT_NUMERICAL", "value", f"{BY_CALL}returned a value"),
    },
    "pair": {
        "the reference": (DEFINITIONS[1].reference, "PASSED", "value", "the number of its parameters"),
        "a tuple": (f"{STAR}return a + 2 * b, a - b\n", "PASSED", "value", f"{BY_CALL}returned a value"),
        "a dict": (f"{STAR}return dict(z=a - b, y=a + 2 * b)\n", "PASSED", "value", f"{BY_CALL}returned a value"),
        "named": (
            "def run(a, b, *args, **kwargs):\n    made = {'z': a - b}\n    made['y'] = a + 2 * b\n    return made\n",
            "PASSED",
            "value",
            "its parameters are the inputs",
        ),
        "other keys": (f"{STAR}return dict(y=a, lse=b)\n", "INCORRECT_SHAPE", "value", f"{BY_CALL}returned a value"),
    },
    "buffered": {
        "the reference": (DEFINITIONS[2].reference, "PASSED", "value", "the number of its parameters"),
        "left alone": (BUFFERED.format("pass"), "PASSED", "value", "the number of its parameters"),
        "x changed": (
            BUFFERED.format("buffer += x; x += 1; x -= 1; x[0] = 0"),
            "INCORRECT_NUMERICAL",
            "value",
            "the number of its parameters",
        ),
    },
}
WORKLOADS = {
    "mix": dict.fromkeys(INPUTS, "random"),
    "pair": dict.fromkeys(INPUTS, "random"),
    "buffered": dict.fromkeys(["x", "buffer"], "random"),
}


@pytest.fixture(scope="module")
def trace_set(tmp_path_factory):
    root = write_trace_set(
        tmp_path_factory.mktemp("set"),
        definitions=DEFINITIONS,
        solutions=[
            make_solution(f"{definition}: {name}", definition=definition, source=shape[0])
            for definition, shapes in SHAPES.items()
            for name, shape in shapes.items()
        ],
        workloads=[
            make_trace(
                definition=definition,
                workload=make_workload(f"{definition}{size}", axes={"n": size}, inputs=inputs),
                solution=None,
            )
            for definition, inputs in WORKLOADS.items()
            for size in (64, 96)
        ],
    )
    return TraceSet.from_path(root)


@pytest.mark.parametrize("isolated", [False, True], ids=["persistent", "isolated"])
def test_each_shape_gets_its_verdict_and_its_trace_says_how_it_is_called(trace_set, isolated):
    config = BenchmarkConfig.default(
        devices=["cpu"], warmup_runs=1, iterations=2, num_trials=1, use_isolated_runner=isolated
    )
    benchmark = Benchmark(trace_set, config)
    events = list(benchmark.run(benchmark.plan(), save_results=False))
    traces = [event.trace for event in events if isinstance(event, JobFinished)]
    found = {(trace.solution, trace.workload.uuid): trace.evaluation for trace in traces}
    wanted = {
        (f"{definition}: {name}", f"{definition}{size}"): shape[1:]
        for definition, shapes in SHAPES.items()
        for name, shape in shapes.items()
        for size in (64, 96)
    }
    assert {key: (one.status.value, one.log) for key, one in found.items() if one.status.value != wanted[key][0]} == {}
    assert found.keys() == wanted.keys()
    for key, (_, style, told_by) in wanted.items():
        assert found[key].extra["calling_style"] == {"style": style, "told_by": told_by}, key
        changed = ["buffer"] if key[0].startswith("buffered") else None
        assert found[key].extra.get("in_out_inputs") == changed
