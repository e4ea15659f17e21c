"""What is written for FlashInfer's Trace Apply: names, forms, refusals, translated calls, and the way back."""

import importlib.util
import json
import sys

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.trace_apply.families import translate
from flashinfer_bench.data.trace_apply.fitness import CallsLibrary, adapt
from flashinfer_bench.errors import DataSetError
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set
from tests.kit.documents import CHECKOUT

NORM = {"axes": {"n": None, "h": 8}, "inputs": {"hidden_states": "bfloat16[n, h]", "weight": "bfloat16[h]"}}
RMSNORM = make_definition("rmsnorm_h8", op_type="rmsnorm", outputs={"output": "bfloat16[n, h]"}, **NORM)
FUSED_INPUTS = {"hidden_states": "bfloat16[n, h]", "residual": "bfloat16[n, h]", "weight": "bfloat16[h]"}
BUNDLED = {
    "gemm_n1024_k4096": "gemm_bf16_N1024_K4096",
    "gqa_ragged_prefill_causal_h16_kv8_d128": "gqa_ragged_h16_kv8_d128",
    "fused_add_rmsnorm_h1024": "fused_add_rmsnorm_h1024",
    "rmsnorm_h4096": "rmsnorm_h4096",
    "rope_with_cos_sin_cache_neox_style_d128_rd128": "rope_cos_sin_cache_d128",
    "top_k_top_p_sampling_from_probs_v32000": "top_k_top_p_sampling_v32000",
    "top_p_sampling_from_probs_v32000": "top_p_sampling_v32000",
}


@pytest.fixture(scope="module")
def bundled():
    return TraceSet.from_path(CHECKOUT / "flashinfer-trace")


def name_of(definition):
    """Return FlashInfer's name of a definition, or None."""
    try:
        return translate(definition).name
    except ValueError:
        return None


def test_seven_bundled_definitions_have_a_call_of_the_same_meaning(bundled):
    found = {name: name_of(definition) for name, definition in bundled.definitions.items()}
    assert {name: called for name, called in found.items() if called} == BUNDLED


@pytest.mark.parametrize(
    ("name", "parts", "reason"),
    [
        ("gemm_n4_k8", {"inputs": {"A": "float16[n, 8]", "B": "float16[4, 8]"}}, "A bfloat16"),
        ("gemm_n4_k8", {"inputs": {"A": "bfloat16[n, 8]", "B": "bfloat16[8, 4]"}}, "B bfloat16"),
        ("rmsnorm_h8", {**NORM, "inputs": {"x": "bfloat16[n, h]", "weight": "bfloat16[h]"}}, "hidden_states"),
        ("rmsnorm_h8", {**NORM, "outputs": {"output": "float32[n, h]"}}, "-> output float32"),
        ("fused_add_rmsnorm_h8", {**NORM, "inputs": FUSED_INPUTS}, "residual"),
        ("gqa_paged_decode_h4_kv2_d8_ps16", {}, "kv_last_page_len"),
        ("rmsnorm_h8_variant", NORM, "neither its name nor a tag"),
        ("gdn_decode_qk2", {"tags": ["fi_api:flashinfer.gdn_decode.gated_delta_rule_decode"]}, "too late"),
        ("xqa_h8", {"tags": ["fi_api:flashinfer.xqa.xqa"]}, "writes into arguments"),
        ("prims_ts_x", {"tags": ["fi_api:flashinfer.attention.core"]}, "another name"),
        ("no name", {"tags": ["fi_api:flashinfer.norm.layernorm"]}, "names are not"),
    ],
)
def test_a_definition_of_another_meaning_is_refused_with_the_reason(name, parts, reason):
    with pytest.raises(ValueError, match=reason):
        translate(make_definition(name, **parts))


WRITING = "def run(hidden_states, weight, output): ...\n"
RETURNING = "def run(hidden_states, weight):\n    return hidden_states\n"
CPP = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);\n"
OF_CPP = {"language": "cpp", "entry_point": "main.cpp::run", "destination_passing_style": True}


def _solution(source=WRITING, **parts):
    return make_solution("s", definition="rmsnorm_h8", source=source, **parts)


@pytest.mark.parametrize(
    ("solution", "entry", "writes"),
    [
        (_solution(), "main.py::run", True),
        (_solution(RETURNING), "main.py::run", False),
        (
            _solution(RETURNING.replace("return hidden_states", "return {'output': 1}")),
            "flashinfer_apply.py::run",
            False,
        ),
        (_solution("def run(x, w, y): ..."), "flashinfer_apply.py::run", False),
        (_solution("run = print", destination_passing_style=True), "flashinfer_apply.py::run", False),
        (_solution(sources={"main.cpp": CPP}, **OF_CPP), "main.cpp::run", True),
    ],
)
def test_a_solution_is_written_as_it_is_if_flashinfer_can_call_it(solution, entry, writes):
    written = adapt(solution, RMSNORM, translate(RMSNORM)).to_dict()["spec"]
    assert (written["entry_point"], written["destination_passing_style"]) == (entry, writes)


@pytest.mark.parametrize(
    ("solution", "reason"),
    [
        (_solution("def run(hidden_states, weight):\n    import flashinfer.norm\n"), "uses flashinfer"),
        (_solution(dependencies=["flashinfer"]), "uses flashinfer"),
        (_solution(sources={"main.py": f"from .other import f\n{WRITING}", "other.py": ""}), "another of its files"),
        (_solution(sources={"main.py": f"import other\n{WRITING}", "other.py": ""}), "another of its files"),
        (_solution(f"def setup(*_): ...\n{WRITING}"), "'setup'"),
        (_solution("def run(x): ..."), "does not fit"),
        (_solution("def run(*args): ..."), "not declared"),
        (_solution(sources={"main.py": WRITING, "flashinfer_apply.py": ""}), "name of the wrapper"),
        (_solution(sources={"main.cpp": CPP}, **OF_CPP, binding="torch"), "bound by torch"),
        (_solution(sources={"main.cpp": f"#include <cublas_v2.h>\n{CPP}"}, **OF_CPP), "flags or libraries"),
        (_solution(sources={"main.cpp": CPP}, **OF_CPP, compile_options={"cflags": ["-O1"]}), "flags or libraries"),
    ],
)
def test_a_solution_that_trace_apply_cannot_load_or_call_is_refused(solution, reason):
    with pytest.raises(ValueError, match=reason) as refused:
        adapt(solution, RMSNORM, translate(RMSNORM))
    assert isinstance(refused.value, CallsLibrary) == ("uses" in reason)


def test_a_compiled_solution_is_refused_if_the_call_differs(bundled):
    definition = bundled.definitions["gemm_n1024_k4096"]
    with pytest.raises(ValueError, match="only Python solutions"):
        adapt(bundled.get_solution("cuda_gemm_n1024_k4096"), definition, translate(definition))


def load(solution, folder):
    """Import the entry file by path, without a package and a path, as Trace Apply does."""
    for source in solution.sources:
        (folder / source.path).write_text(source.content)
    name = f"written_{folder.name}"
    spec = importlib.util.spec_from_file_location(name, folder / solution.get_entry_path())
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return getattr(module, solution.get_entry_symbol())


@pytest.fixture
def serve(bundled, tmp_path):
    """Return a function that writes a bundled solution, or the reference, and returns the callable of Trace Apply."""

    def make(name, solution=None):
        definition = bundled.definitions[name]
        given = make_solution(definition=name, source=definition.reference, destination_passing_style=False)
        given = bundled.get_solution(solution) if solution else given
        return load(adapt(given, definition, translate(definition)), tmp_path)

    yield make
    for name in [name for name in sys.modules if name.startswith("written_")]:
        del sys.modules[name]


@pytest.mark.cpu
@pytest.mark.parametrize("solution", [None, "plain_top_p_sampling_from_probs_v32000"])
def test_a_sampler_takes_numbers_and_returns_int32(serve, solution):
    import torch

    run, probs = serve("top_p_sampling_from_probs_v32000", solution), torch.zeros(2, 32000, dtype=torch.bfloat16)
    probs[0, 7] = probs[1, 9] = 1.0
    for top_p in (0.5, torch.tensor([0.5, 0.5])):
        samples = run(probs=probs, top_p=top_p)
        assert (samples.dtype, samples.tolist()) == (torch.int32, [7, 9])


@pytest.mark.cpu
def test_rope_reshapes_strided_rows_and_refuses_another_style(serve, bundled):
    import torch

    run, rows = serve("rope_with_cos_sin_cache_neox_style_d128_rd128"), torch.randn(3, 640).to(torch.bfloat16)
    call = {"positions": torch.tensor([1, 0, 2], dtype=torch.int32), "query": rows[:, :384], "key": rows[:, 384:]}
    call |= {"head_size": 128, "cos_sin_cache": torch.cat([torch.ones(4, 64), torch.zeros(4, 64)], 1)}
    query, key = run(**call, is_neox=True)
    assert torch.equal(query, rows[:, :384])
    assert torch.equal(key, rows[:, 384:])
    with pytest.raises(ValueError, match="Neox"):
        run(**call, is_neox=False)
    with pytest.raises(TypeError, match=r"takes torch\.bfloat16 here, not torch\.float16"):
        run(**{**call, "query": call["query"].half()})


@pytest.mark.cpu
def test_a_product_gets_its_second_factor_transposed(serve):
    import torch

    a, b = torch.randn(2, 4096).to(torch.bfloat16), torch.randn(1024, 4096).to(torch.bfloat16)
    product = serve("gemm_n1024_k4096", "torch_gemm_n1024_k4096")(A=a, B=b.t())
    assert torch.allclose(product.float(), a.float() @ b.float().t(), rtol=0.02, atol=1.0)


@pytest.mark.cpu
def test_attention_returns_the_lse_only_if_asked_and_finds_its_scale(serve):
    import torch

    run, q = serve("gqa_ragged_prefill_causal_h16_kv8_d128"), torch.randn(3, 16, 128).to(torch.bfloat16)
    kv, indptr = torch.randn(3, 8, 128).to(torch.bfloat16), torch.tensor([0, 3], dtype=torch.int32)
    call = {"q": q, "k": kv, "v": kv, "qo_indptr": indptr, "kv_indptr": indptr}
    output = run(**call, return_lse=False)
    again, lse = run(**call, return_lse=True, sm_scale=128**-0.5)
    assert torch.equal(output, again)
    assert lse.shape == (3, 16)


@pytest.mark.cpu
def test_a_dumped_definition_is_called_by_its_own_names(tmp_path):
    import torch

    inputs = {"x": "float32[n, h]", "scale": {"shape": None, "dtype": "float32", "optional": True}}
    axes, tags = {"n": None, "h": 4}, ["fi_api:flashinfer.norm.gemma_rmsnorm"]
    dump = make_definition("gemma_rmsnorm_h4", axes=axes, inputs=inputs, outputs={"y": "float32[n, h]"}, tags=tags)
    source = "def run(x, scale, out):\n    out.copy_(x * (scale or 3))\n"
    run = load(adapt(make_solution(definition=dump.name, source=source), dump, translate(dump)), tmp_path)
    assert run(x=torch.ones(1, 4)).tolist() == [[3.0] * 4]
    assert run(x=torch.ones(1, 4), scale=2.0).tolist() == [[2.0] * 4]


FULL = {"measurement": {"method": "cupti", "assurance": "full", "bound": "batch"}}
CPU = {"measurement": {"method": "wall", "bound": "none"}}


def _trace(solution, speedup=2.0, extra=FULL, hardware="GPU A", **parts):
    more = {"environment": {"hardware": hardware, "libs": {}}, "extra": extra, "speedup": speedup, **parts}
    return make_trace(
        definition="rmsnorm_h8", solution=solution, workload=make_workload(axes={"n": 2}, inputs={}), **more
    )


def _export(tmp_path, *traces, **options):
    names = {trace.solution for trace in traces}
    own = {name: RETURNING if name != "library" else f"import flashinfer\n{RETURNING}" for name in names}
    solutions = [make_solution(name, definition="rmsnorm_h8", source=source) for name, source in own.items()]
    trace_set = TraceSet.from_path(
        write_trace_set(tmp_path / "set", definitions=[RMSNORM], solutions=solutions, traces=traces)
    )
    return trace_set, trace_set.export_apply(tmp_path / "out", **options)


STALE = {**FULL, "run": {"fingerprint": {"solution": "another digest"}}}


@pytest.mark.parametrize(
    ("traces", "options", "chosen"),
    [
        ([_trace("a", 2.0), _trace("b", 3.0), _trace("c", 9.0, CPU)], {}, "b"),
        ([_trace("a", 2.0), _trace("b", 3.0)], {"solutions": ["a"]}, "a"),
        ([_trace("a", 2.0), _trace("b", 3.0, hardware="GPU B")], {"hardware": "b"}, "b"),
        ([_trace("a", 2.0), _trace("library", 1.0)], {}, "a"),
        ([_trace("a", 2.0), _trace("library", 3.0)], {}, None),
        ([_trace("a", 2.0, CPU)], {}, None),
        ([_trace("a", 2.0, CPU), _trace("b", 3.0, {"run": {"quick": True}})], {"unconfirmed": True}, "b"),
        ([_trace("a", 2.0), _trace("b", 3.0, STALE)], {}, "a"),
        ([_trace("a", status="INCORRECT_NUMERICAL")], {"unconfirmed": True}, None),
        ([_trace("a")], {"definitions": []}, None),
    ],
)
def test_the_best_confirmed_solution_of_the_hardware_is_written(tmp_path, traces, options, chosen):
    _, done = _export(tmp_path, *traces, **options)
    assert [one.solution for one in done.written] == ([chosen] if chosen else [])
    assert (tmp_path / "out").exists() == bool(chosen)
    assert bool(done.skipped) == (chosen is None and options != {"definitions": []})


def test_a_workload_without_a_verdict_needs_unconfirmed(tmp_path):
    trace_set, _ = _export(tmp_path, _trace("a"))
    other = make_trace(definition="rmsnorm_h8", solution=None, workload=make_workload("w9", axes={"n": 1}, inputs={}))
    trace_set.workloads["rmsnorm_h8"] = [other]
    assert not trace_set.export_apply(tmp_path / "two").written
    assert trace_set.export_apply(tmp_path / "two", unconfirmed=True).written


@pytest.mark.parametrize(
    ("traces", "options", "said"),
    [
        ([_trace("a"), _trace("a", hardware="GPU B")], {}, "GPU A and GPU B"),
        ([_trace("a")], {"solutions": ["b"]}, "has no b"),
        ([_trace("a")], {"hardware": "H100"}, "on H100, but on GPU A"),
    ],
)
def test_an_ambiguous_hardware_and_an_unknown_name_are_misuse(tmp_path, traces, options, said):
    with pytest.raises(DataSetError, match=said):
        _export(tmp_path, *traces, **options)


def test_two_definitions_of_one_name_are_both_skipped(bundled, tmp_path):
    parts = {"axes": {"t": None, "q": None, "k": None, "d": 128, "m": None, "rd": 64}}
    heads, name = {"q": "bfloat16[t, q, d]", "k": "bfloat16[t, k, d]"}, "rope_with_cos_sin_cache_neox_style_d128_rd"
    inputs = {**heads, "cos_sin_cache": "float32[m, rd]", "positions": "int64[t]"}
    outputs = {f"{key}_out": spec for key, spec in heads.items()}
    narrow = make_definition(f"{name}64", inputs=inputs, outputs=outputs, **parts)
    wide = bundled.definitions[f"{name}128"]
    source, named = "def run(q, k, cos_sin_cache, positions): ...", {one.name: one for one in (narrow, wide)}
    both = TraceSet(
        definitions=named,
        solutions={one: [make_solution(one, definition=one, source=source)] for one in named},
        traces={one: [make_trace(definition=one, solution=one, extra=FULL)] for one in named},
    )
    done = both.export_apply(tmp_path / "out")
    reason = "2 definitions are rope_cos_sin_cache_d128 for FlashInfer; choose one of them"
    assert (done.written, [one.reason for one in done.skipped]) == ((), [reason] * 2)


def test_a_written_folder_is_read_back_as_the_solutions_it_was_made_of(tmp_path):
    trace_set, done = _export(tmp_path, _trace("a"))
    own = make_solution("a", definition="rmsnorm_h8", source=RETURNING)
    back = TraceSet.from_path(tmp_path / "out")
    assert [one.reason for one in back.issues if one.severity == "error"] == []
    assert list(back.all_solutions()) == list(trace_set.all_solutions()) == [own]
    assert list(TraceSet.merge([trace_set, back]).all_solutions()) == [own]
    assert json.loads((tmp_path / "out" / done.written[0].file).read_text())["definition"] == "rmsnorm_h8"


def test_solutions_of_others_are_of_flashinfers_dump_of_their_name(tmp_path):
    dump = make_definition("rmsnorm_h8", tags=["fi_api:flashinfer.norm.rmsnorm"], **NORM).to_dict() | {
        "init": "def i(): ..."
    }
    theirs = make_solution("theirs", definition="rmsnorm_h8", source=RETURNING).to_dict()
    theirs["spec"]["target_hardware"] = ["sm90"]
    dumps = TraceSet.from_path(write_trace_set(tmp_path / "dumps", {"rmsnorm_h8.json": dump}))
    folder = TraceSet.from_path(write_trace_set(tmp_path / "folder", {"solutions/any/name.json": theirs}))
    both = TraceSet.merge([dumps, folder])
    assert [one.name for one in both.solutions["rmsnorm_h8"]] == ["theirs"]
    assert both.solutions["rmsnorm_h8"][0].spec.declared_style is None
    assert [issue for issue in both.issues if issue.severity == "error" or issue.missing_definition] == []
