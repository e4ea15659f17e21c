"""Small definitions of every kind, each with right and wrong solutions, in one run.

Spec: spec/engine.md ("Which status", "The result", "Evaluators"), spec/trace-format.md ("Definition", "Solution",
"Workload and Trace": dtypes, shapes, calling styles, kinds of inputs); docs/trace-set.md ("Fields of the files"),
docs/solutions.md ("How it is called", "Setup"), docs/evaluators.md (the table of evaluators).
"""

from __future__ import annotations

import json

import pytest
import torch

from tests.golden.face import QUICK, Face, SmallSet, assert_has, assert_subset, is_noise, spec, statuses

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(600)]
FLOATS = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7, "float8_e4m3fn": 3, "float8_e5m2": 2}
"""Each format → bits of its fraction: above 1 the next number is 1 + 2**-bits."""
WHOLE = ["int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"]
DTYPES = [*FLOATS, "float8_e8m0fnu", "float4_e2m1", *WHOLE, "bool"]
RIGHT: dict[str, str] = {}
"""Solution → PASSED or the status that it must get; filled by the functions below."""
REASONS: dict[str, tuple[str, ...]] = {}
"""Solution → what its reason says, as documents quote it."""


def expect(name, status="PASSED", *reason):
    RIGHT[name], REASONS[name] = status, reason
    return name


def add_dtypes(small):
    """Every dtype is passed in and out, value-returning and destination-passing by turns."""
    for place, dtype in enumerate(DTYPES):
        name = f"copy_{dtype}"
        small.definition(
            name, "def run(x):\n    return x.clone()\n", {"x": spec(["n"], dtype)}, {"y": spec(["n"], dtype)}
        )
        small.workload(name, "w1")
        if place % 2:
            small.solution(name, expect(f"fill_{dtype}"), "def run(x, y):\n    y.copy_(x)\n", dps=True)
        else:
            small.solution(name, expect(f"return_{dtype}"), "def run(x):\n    return x.clone()\n")


def add_edges(small, config):
    """One element of 64 is off by just what is allowed, or by the next number: absolute and relative, for each format.

    An element fails if its error is larger than atol AND its relative error is larger than rtol; what is expected is 1.
    """
    source = (
        "import torch\n\n\ndef run(x):\n"
        "    y = torch.ones(x.shape, device=x.device, dtype=torch.float64)\n"
        "    y[3] += {}\n"
        "    return y.to(torch.{})\n"
    )
    for dtype, bits in FLOATS.items():
        step = 2.0**-bits
        for kind, allowed in {"atol": (step, 1e-30), "rtol": (1e-30, step)}.items():
            name = f"edge_{kind}_{dtype}"
            small.definition(name, source.format(0, dtype), {"x": spec(["n"], "float32")}, {"y": spec(["n"], dtype)})
            small.workload(name, "w1")
            small.solution(name, expect(f"at_{kind}_{dtype}"), source.format(step, dtype))
            wrong = expect(f"over_{kind}_{dtype}", "INCORRECT_NUMERICAL", "1 of 64 elements differ")
            small.solution(name, wrong, source.format(2 * step, dtype))
            config[name] = {"atol": allowed[0], "rtol": allowed[1]}
    for dtype in WHOLE:
        name = f"edge_whole_{dtype}"
        small.definition(name, source.format(0, dtype), {"x": spec(["n"], "float32")}, {"y": spec(["n"], dtype)})
        small.workload(name, "w1")
        wrong = expect(f"one_off_{dtype}", "INCORRECT_NUMERICAL", "1 of 64 elements differ")
        small.solution(name, wrong, source.format(1, dtype))
        config[name] = {"atol": 10.0, "rtol": 10.0}  # whole numbers have no tolerance


def add_ratios(small, config):
    """Of 64 elements 8 may be wrong under a ratio of 0.875, and 9 may not."""
    source = "import torch\n\n\ndef run(x):\n    y = torch.ones_like(x)\n    y[::7][:{}] += 0.03125\n    return y\n"
    name = "edge_ratio"
    small.definition(name, source.format(0), {"x": spec(["n"], "float32")}, {"y": spec(["n"], "float32")})
    small.workload(name, "w1")
    small.solution(name, expect("eight_of_64"), source.format(8))
    wrong = expect(
        "nine_of_64", "INCORRECT_NUMERICAL", "9 of 64 elements differ", "matched ratio 0.859375", "required 0.875"
    )
    small.solution(name, wrong, source.format(9))
    config[name] = {"required_matched_ratio": 0.875}


STORED_REFERENCE = "def run(x):\n    return x * 2\n"


def add_stored(small):
    """Inputs from a file, whose error figures are known by value."""
    name = "stored"
    axes = {"m": {"type": "var"}, "n": {"type": "const", "value": 64}}
    small.definition(
        name, STORED_REFERENCE, {"x": spec(["m", "n"], "float32")}, {"y": spec(["m", "n"], "float32")}, axes=axes
    )
    values = 1 + torch.arange(256, dtype=torch.float32).reshape(4, 64) / 256
    small.workload(name, "w1", small.stored(name, "w1", {"x": values}), {"m": 4})
    small.solution(name, expect("stored_right"), "def run(x):\n    return x + x\n")
    source = "def run(x):\n    y = x * 2\n    y[0, 4] += 0.5\n    y[2, 10] -= 0.25\n    return y\n"
    small.solution(name, expect("stored_two_off", "INCORRECT_NUMERICAL", "2 of 256 elements differ"), source)
    small.solution(
        name,
        expect("stored_last_row", "INCORRECT_NUMERICAL", "64 of 256", "only the last row"),
        "def run(x):\n    y = x * 2\n    y[-1] = 0\n    return y\n",
    )
    small.solution(
        name,
        expect("stored_twice", "INCORRECT_NUMERICAL", "256 of 256", "got is expected times 2"),
        "def run(x):\n    return x * 4\n",
    )


def add_lowbit(small):
    """Op type lowbit: a share of 0.95 has to match, and the matched ratio is recorded."""
    name = "lowbit_double"
    axes = {"m": {"type": "const", "value": 4}, "n": {"type": "const", "value": 64}}
    small.definition(
        name,
        STORED_REFERENCE,
        {"x": spec(["m", "n"], "float32")},
        {"y": spec(["m", "n"], "float32")},
        axes=axes,
        op_type="lowbit",
    )
    values = 1 + torch.arange(256, dtype=torch.float32).reshape(4, 64) / 256
    small.workload(name, "w1", small.stored(name, "w1", {"x": values}))
    source = "def run(x):\n    y = x * 2\n    y.view(-1)[5::17][:{}] += 0.125\n    return y\n"
    small.solution(name, expect("lowbit_six_off"), source.format(6))
    wrong = expect("lowbit_fifteen_off", "INCORRECT_NUMERICAL", "15 of 256 elements differ", "required 0.95")
    small.solution(name, wrong, source.format(15))


def add_numbers(small):
    """Python numbers and 0-d tensors, in and out."""
    name = "numbers"
    reference = (
        "def run(x, scale, count, is_on, shift):\n"
        "    assert type(scale) is float and type(count) is int and type(is_on) is bool and shift.shape == ()\n"
        "    y = x * scale * count + shift if is_on else x\n"
        "    return y, y.sum(), count + 1\n"
    )
    inputs = {
        "x": spec(["n"], "float32"),
        "scale": spec(None, "float32"),
        "count": spec(None, "int32"),
        "is_on": spec(None, "bool"),
        "shift": spec([], "float32"),
    }
    outputs = {"y": spec(["n"], "float32"), "total": spec([], "float32"), "next": spec(None, "int64")}
    small.definition(name, reference, inputs, outputs)
    numbers = {"scale": 0.5, "count": 3, "is_on": True, "shift": 1.5}
    small.workload(name, "w1", {key: {"type": "scalar", "value": value} for key, value in numbers.items()})
    small.solution(name, expect("numbers_right"), reference)
    wrong = expect("numbers_next_wrong", "INCORRECT_NUMERICAL", "output 'next'")
    small.solution(name, wrong, reference.replace("count + 1", "count + 2"))


TWO = "def run(x):\n    return x * 2, x + 1\n"


def add_outputs(small):
    """Several outputs: how they may be returned, and what is wrong with too few and too many."""
    name = "two_outputs"
    small.definition(
        name, TWO, {"x": spec(["n"], "float32")}, {"double": spec(["n"], "float32"), "more": spec(["n"], "float32")}
    )
    small.workload(name, "w1")
    for solution, returned, *expected in [
        ("as_list", "[x * 2, x + 1]"),
        ("as_dict", "{'more': x + 1, 'double': x * 2}"),
        ("one_missing", "x * 2", "INCORRECT_SHAPE"),
        ("one_too_many", "x * 2, x + 1, x", "INCORRECT_SHAPE"),
        ("wrong_key", "{'more': x + 1, 'twice': x * 2}", "INCORRECT_SHAPE", "twice"),
        ("swapped", "x + 1, x * 2", "INCORRECT_NUMERICAL"),
        ("wrong_shape", "x * 2, (x + 1)[:5]", "INCORRECT_SHAPE", "more"),
        ("wrong_dtype", "x * 2, (x + 1).double()", "INCORRECT_DTYPE", "more"),
        ("no_tensor", "x * 2, 'text'", "INCORRECT_DTYPE"),
        ("none", "None", "INCORRECT_SHAPE"),
    ]:
        small.solution(name, expect(f"two_{solution}", *expected), f"def run(x):\n    return {returned}\n")
    source = "import torch\n\n\ndef run(x, double, more):\n    torch.mul(x, 2, out=double)\n"
    small.solution(name, expect("two_filled"), source + "    torch.add(x, 1, out=more)\n", dps=True)
    small.solution(name, expect("two_one_not_written", "INCORRECT_NUMERICAL", "more"), source, dps=True)


def add_styles(small):
    """Calling styles that are not declared, and entry functions that fit none."""
    name = "styles"
    small.definition(
        name, "def run(x):\n    return x * 2\n", {"x": spec(["n"], "float32")}, {"y": spec(["n"], "float32")}
    )
    small.workload(name, "w1")
    for solution, source, *expected in [
        ("by_arity_value", "def run(x):\n    return x * 2\n"),
        ("by_arity_filled", "def run(x, y):\n    y.copy_(x * 2)\n"),
        ("any_arguments_value", "def run(*args, **kwargs):\n    return args[0] * 2\n"),
        ("any_arguments_filled", "def run(*args):\n    args[1].copy_(args[0] * 2)\n"),
        ("by_keyword_only", "def run(**kwargs):\n    return kwargs['x'] * 2\n", "COMPILE_ERROR"),
        ("three_arguments", "def run(x, y, z):\n    return x * 2\n", "COMPILE_ERROR"),
    ]:
        small.solution(name, expect(f"style_{solution}", *expected), source, dps=None)
    for solution, source, *expected in [
        ("raises", "def run(x):\n    raise ValueError('on purpose')\n", "RUNTIME_ERROR", "ValueError", "on purpose"),
        ("exits", "import sys\n\n\ndef run(x):\n    sys.exit(3)\n", "RUNTIME_ERROR"),
        (
            "raises_at_import",
            "raise ValueError('too early')\n\n\ndef run(x):\n    return x\n",
            "COMPILE_ERROR",
            "too early",
        ),
        ("no_entry", "def walk(x):\n    return x\n", "COMPILE_ERROR", "run"),
        ("changes_input", "def run(x):\n    x.mul_(2)\n    return x.clone()\n", "INCORRECT_NUMERICAL", "input"),
        ("prints", "def run(x):\n    print('hello from the solution')\n    return x * 2\n"),
        ("setup", "def setup(x):\n    return {'factor': 2.0}\n\n\ndef run(x, factor):\n    return x * factor\n"),
        ("zeros", "def run(x):\n    return x * 0\n", "INCORRECT_NUMERICAL"),
    ]:
        small.solution(name, expect(f"style_{solution}", *expected), source)


def add_special(small):
    """NaN and infinities of the reference, an input that it writes, an axis of 0, expressions, optional inputs."""
    name = "special"
    reference = "def run(x):\n    y = x.clone()\n    y[0] = float('nan')\n    y[1] = float('-inf')\n    return y\n"
    small.definition(name, reference, {"x": spec(["n"], "float32")}, {"y": spec(["n"], "float32")})
    small.workload(name, "w1")
    small.solution(name, expect("special_same"), reference)
    small.solution(name, expect("special_finite", "INCORRECT_NUMERICAL"), "def run(x):\n    return x.clone()\n")
    small.solution(
        name,
        expect("special_more_nan", "INCORRECT_NUMERICAL"),
        reference.replace("y[1]", "y[2] = float('nan')\n    y[1]"),
    )

    name = "in_out"
    reference = "def run(state, x):\n    state.add_(x)\n    return state * 2\n"
    small.definition(
        name, reference, {"state": spec(["n"], "float32"), "x": spec(["n"], "float32")}, {"y": spec(["n"], "float32")}
    )
    small.workload(name, "w1")
    small.solution(name, expect("in_out_right"), reference)

    name = "forms"
    axes = {"m": {"type": "var"}, "n": {"type": "const", "value": 8}, "k": {"type": "expr", "expression": "n * 2"}}
    inputs = {"x": spec(["m", "k"], "float32"), "bias": spec(["k"], "float32", optional=True)}
    small.definition(
        name,
        "def run(x, bias):\n    return x * 2 if bias is None else x * 2 + bias\n",
        inputs,
        {"y": spec(["m", "k"], "float32")},
        axes=axes,
    )
    small.workload(name, "empty", axes={"m": 0})
    small.workload(name, "some", {"bias": {"type": "random"}}, {"m": 3})
    small.solution(name, expect("forms_right"), "def run(x, bias):\n    return x * 2 + (0 if bias is None else bias)\n")

    name = "custom_inputs"
    reference = (
        "import torch\n\n\ndef make(axes, device):\n"
        "    return {'x': torch.rand(axes['n'], device=device) + 3}\n\n\n"
        "def run(x):\n    assert x.min() >= 3\n    return x.log()\n"
    )
    small.definition(
        name, reference, {"x": spec(["n"], "float32")}, {"y": spec(["n"], "float32")}, custom_inputs_entrypoint="make"
    )
    small.workload(name, "w1", {"x": {"type": "custom"}})
    small.solution(name, expect("custom_right"), "import torch\n\n\ndef run(x):\n    return torch.log(x)\n")


def add_choices(small, config):
    """Evaluators of op types: samplers, renormalised probabilities, and the k largest as a set."""
    axes = {
        "b": {"type": "const", "value": 4},
        "v": {"type": "const", "value": 128},
        "k": {"type": "const", "value": 8},
    }
    name = "small_sampler"
    reference = (
        "import torch\n\n\ndef run(probs, top_k):\n"
        "    kept = probs.topk(8, dim=-1)\n"
        "    drawn = torch.multinomial(kept.values, 1)\n"
        "    return kept.indices.gather(1, drawn).squeeze(1).to(torch.int64)\n"
    )
    inputs = {"probs": spec(["b", "v"], "float32"), "top_k": spec(["b"], "int32")}
    small.definition(name, reference, inputs, {"samples": spec(["b"], "int64")}, axes=axes, op_type="sampling")
    torch.manual_seed(0)
    tensors = {"probs": torch.softmax(torch.randn(4, 128), -1), "top_k": torch.full((4,), 8, dtype=torch.int32)}
    small.workload(name, "w1", small.stored(name, "w1", tensors))
    small.solution(name, expect("sampler_right"), reference)
    config[name] = {"extra": {"sampling_false_alarm_rate": 2.0**-30}}  # else it is refused once in 10,000 runs
    small.solution(
        name, expect("sampler_argmax", "INCORRECT_NUMERICAL"), "def run(probs, top_k):\n    return probs.argmax(-1)\n"
    )
    wrong = expect("sampler_worst", "INCORRECT_NUMERICAL", "not allowed")
    small.solution(name, wrong, "def run(probs, top_k):\n    return probs.argmin(-1)\n")

    name = "small_top_k"
    reference = "import torch\n\n\ndef run(scores):\n    return scores.topk(8, dim=-1).indices.to(torch.int32)\n"
    small.definition(
        name,
        reference,
        {"scores": spec(["b", "v"], "float32")},
        {"indices": spec(["b", "k"], "int32")},
        axes=axes,
        op_type="top_k",
    )
    small.workload(name, "w1")
    small.solution(name, expect("top_k_other_order"), reference.replace(".indices", ".indices.flip(-1)"))
    small.solution(
        name, expect("top_k_smallest", "INCORRECT_NUMERICAL"), reference.replace("dim=-1", "dim=-1, largest=False")
    )
    same = reference.replace(".topk(8, dim=-1).indices", ".argmax(-1, keepdim=True).expand(-1, 8)")
    small.solution(name, expect("top_k_one_index", "INCORRECT_NUMERICAL"), same)

    name = "small_top_p_renorm"
    reference = (
        "import torch\n\n\ndef run(probs, top_k):\n"
        "    kept = probs >= probs.topk(8, dim=-1).values[:, -1:]\n"
        "    return probs * kept / (probs * kept).sum(-1, keepdim=True)\n"
    )
    small.definition(name, reference, inputs, {"renormed": spec(["b", "v"], "float32")}, axes=axes, op_type="sampling")
    small.workload(name, "w1", small.stored(name, "w1", tensors))
    small.solution(name, expect("renorm_right"), reference)
    small.solution(
        name, expect("renorm_keeps_all", "INCORRECT_NUMERICAL"), "def run(probs, top_k):\n    return probs.clone()\n"
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    small = SmallSet(tmp_path_factory.mktemp("kinds") / "set")
    config = {}
    add_dtypes(small)
    add_edges(small, config)
    add_ratios(small, config)
    add_stored(small)
    add_lowbit(small)
    add_numbers(small)
    add_outputs(small)
    add_styles(small)
    add_special(small)
    add_choices(small, config)
    (small.root / "config.yaml").write_text(json.dumps({"definition_config": config}))  # JSON is YAML
    return small


@pytest.fixture(scope="module")
def done(small, shared_cache):
    face = Face(shared_cache, small.root.parent)
    return face("run", "--local", small.root, "--config", small.root / "config.yaml", *QUICK, "--format", "json")


@pytest.fixture(scope="module")
def jobs(done):
    return {job["solution"]: job for job in done.json["jobs"]}


@pytest.fixture(scope="module")
def recorded(small, done):
    assert done.code == 0, done
    return {trace["solution"]: trace["evaluation"] for trace in small.traces()}


def test_the_run_has_a_verdict_for_each_job(done):
    assert done.code == 0, done
    document = done.json
    assert document["faults"] == []
    assert document["data_errors"] == []
    assert document["plan"]["jobs"] == len(document["jobs"]) == len(RIGHT) + 1  # forms_right has two workloads


def test_a_job_of_the_document_has_its_keys(jobs):
    keys = "definition solution workload status quick reason latency_ms interval95_ms interval reference_latency_ms"
    for job in jobs.values():
        assert_has(job, f"{keys} speedup correctness device")
        if job["status"] == "PASSED":
            assert job["speedup"] == pytest.approx(job["reference_latency_ms"] / job["latency_ms"])


def test_every_solution_has_its_status(done):
    found = statuses(done.json)
    told = {job["solution"]: job["reason"] for job in done.json["jobs"] if job["status"] != "PASSED"}
    wrong = {name: (status, told.get(name)) for name, status in found.items() if RIGHT[name] != status}
    assert wrong == {}
    assert set(RIGHT) - set(found) <= {job["solution"] for job in done.json["jobs"] if is_noise(job)}


def test_reasons_say_what_documents_quote(jobs):
    missing = [
        (name, part, jobs[name]["reason"])
        for name, parts in REASONS.items()
        for part in parts
        if part not in jobs[name]["reason"]
    ]
    assert missing == []


def test_parts_of_an_evaluation_follow_its_status(recorded):
    for name, evaluation in recorded.items():
        assert_has(evaluation, "status log timestamp environment")
        assert_has(evaluation["environment"], "hardware libs")
        has_figures = evaluation["correctness"] is not None, evaluation["performance"] is not None
        status = evaluation["status"]
        assert has_figures == (status in ("PASSED", "INCORRECT_NUMERICAL"), status == "PASSED"), name


def test_a_speedup_is_the_latency_of_the_reference_over_that_of_the_solution(recorded):
    for evaluation in recorded.values():
        if evaluation["status"] == "PASSED":
            told = evaluation["performance"]
            assert told["speedup_factor"] == pytest.approx(told["reference_latency_ms"] / told["latency_ms"])
            assert told["latency_ms"] > 0


def test_error_figures_on_stored_inputs_are_these(recorded):
    """The figures of the first call, whose inputs are those of the file."""
    two_off = recorded["stored_two_off"]["correctness"]
    assert two_off["max_absolute_error"] == 0.5
    expected = 2 * (1 + 4 / 256)
    assert two_off["max_relative_error"] == pytest.approx(0.5 / expected, rel=1e-6)
    assert_subset(
        {
            "matched_ratio": 254 / 256,
            "outputs": {
                "y": {"elements": 256, "mismatched": 2, "matched_ratio": 254 / 256, "required_matched_ratio": 1.0,
                      "worst": {"index": [0, 4], "expected": expected, "got": expected + 0.5}}
            },
        },
        two_off["extra"],
    )  # fmt: skip
    right = recorded["stored_right"]["correctness"]
    assert (right["max_absolute_error"], right["max_relative_error"]) == (0.0, 0.0)
    assert right["extra"]["matched_ratio"] == 1.0


def test_reasons_of_stored_inputs_have_these_figures(jobs):
    reason = jobs["stored_two_off"]["reason"]
    for part in ("output 'y'", "worst at [0, 4]", "expected 2.03125, got 2.53125", "abs error 0.5",
                 "rel error 0.246154", "matched ratio 0.992188, required 1", "atol=0.01, rtol=0.01"):  # fmt: skip
        assert part in reason


def test_a_share_may_be_wrong_in_lowbit_and_the_ratio_is_recorded(recorded):
    passed = recorded["lowbit_six_off"]["correctness"]
    assert passed["extra"]["matched_ratio"] == pytest.approx(250 / 256)
    wrong = recorded["lowbit_fifteen_off"]["correctness"]
    assert wrong["extra"]["matched_ratio"] == pytest.approx(241 / 256)
    assert wrong["extra"]["outputs"]["y"]["required_matched_ratio"] == 0.95


def test_traces_name_the_evaluator_the_settings_and_the_style(recorded):
    for name, evaluator in {
        "sampler_right": "SamplingEvaluator",
        "top_k_other_order": "TopKEvaluator",
        "renorm_right": "RenormalisedEvaluator",
        "lowbit_six_off": "LowBitEvaluator",
        "numbers_right": "DefaultEvaluator",
    }.items():
        assert recorded[name]["extra"]["evaluator"] == evaluator
    config = recorded["at_atol_float32"]["extra"]["run"]["config"]
    assert_subset({"warmup_runs": 1, "iterations": 3, "num_trials": 1, "atol": 2.0**-23, "rtol": 1e-30}, config)
    for name, style in {
        "style_by_arity_value": "value",
        "style_by_arity_filled": "dps",
        "style_any_arguments_value": "value",
        "style_any_arguments_filled": "dps",
    }.items():
        assert recorded[name]["extra"]["calling_style"]["style"] == style


def test_what_a_solution_prints_is_in_its_log(recorded):
    assert "hello from the solution" in recorded["style_prints"]["log"]


def test_setup_counts_and_is_told_beside(recorded):
    told = recorded["style_setup"]
    measured = told["extra"]["measurement"]
    assert_has(measured, "setup_ms kernel_ms")
    assert told["performance"]["latency_ms"] > measured["kernel_ms"]


def test_each_job_has_a_seed_of_its_own(recorded):
    seeds = [evaluation["extra"]["run"]["seed"] for evaluation in recorded.values()]
    assert len(set(seeds)) == len(seeds)
