"""Solutions, references and lines in published forms: each gets its verdict."""

from __future__ import annotations

import json

import pytest

from flashinfer_bench.cli.main import cli
from flashinfer_bench.data import TraceSet
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

pytestmark = [pytest.mark.cpu, pytest.mark.slow]
FEW = ["--devices", "cpu", "--warmup-runs", "1", "--iterations", "2", "--num-trials", "1", "--format", "json"]
BOTH = {"a": "float32[n]", "b": "float32[n]"}
OPTIONAL = {"shape": ["n"], "dtype": "float32", "optional": True}
DEFINITIONS = {
    "mix": make_definition("mix", inputs=BOTH, reference="def run(a, b):\n    return {'y': a + 2 * b}\n"),
    "pair": make_definition(
        "pair",
        inputs=BOTH,
        outputs={"y": "float32[n]", "z": "float32[n]"},
        reference="def run(a, b):\n    return {'z': a - b, 'y': a + 2 * b}\n",
    ),
    "buffered": make_definition(
        "buffered",
        inputs={"x": "float32[n]", "buffer": OPTIONAL},
        reference="def run(x, buffer=None):\n    if buffer is not None:\n        buffer += x\n    return x * 2\n",
    ),
}
STAR = "def run(*args, **kwargs):\n    a, b = args\n    assert not kwargs\n    "
INTO = "def mix(a, b, y):\n    y.copy_(a + 2 * b)\n"
MIX = "def mix(a, b):\n    return a + 2 * b\n"
PLAIN = "def plain(f):\n    return lambda *args: f(*args)\n@plain\n"
NAMED = "def run(a, b, *args, **kwargs):\n    made = {'z': a - b}\n    made['y'] = a + 2 * b\n    return made\n"
BUFFERED = "def run(x, buffer=None):\n    {}\n    return x * 2\n"
RIGHT, WRONG = "PASSED", "INCORRECT_NUMERICAL"
BY_NUMBER, BY_NAME = "the number of its parameters", "its parameters are the inputs"
RETURNED, FAILED = "a call with its inputs alone returned a value", "a call with its inputs alone failed"
SOLUTIONS = [
    *((name, f"{name}: the reference", one.reference, RIGHT, BY_NUMBER) for name, one in DEFINITIONS.items()),
    ("mix", "a tensor", f"{STAR}return a + 2 * b\n", RIGHT, RETURNED),
    ("mix", "a dict", f"{STAR}return dict(y=a + 2 * b)\n", RIGHT, RETURNED),
    ("mix", "nothing", "def run(*args, **kwargs):\n    a, b, y = args\n    y.copy_(a + 2 * b)\n", RIGHT, FAILED),
    ("mix", "by another", f"{MIX}run = lambda *args: mix(*args)\n", RIGHT, RETURNED),
    ("mix", "passed on", f"{MIX}def run(*args, **kw):\n    return mix(*args, **kw)\n", RIGHT, RETURNED),
    ("mix", "behind a decorator", f"{PLAIN}{INTO.replace('mix', 'run')}", RIGHT, FAILED),
    ("mix", "passed on into", f"{INTO}def run(*args):\n    return mix(*args)\n", RIGHT, FAILED),
    ("mix", "into another", f"{INTO}run = lambda *args: mix(*args)\n", RIGHT, FAILED),
    ("mix", "a wrong one", f"{STAR}return a + b\n", WRONG, RETURNED),
    ("mix", "an input", f"{STAR}a += 2 * b\n    return a\n", WRONG, RETURNED),
    ("pair", "a tuple", f"{STAR}return a + 2 * b, a - b\n", RIGHT, RETURNED),
    ("pair", "by key", f"{STAR}return dict(z=a - b, y=a + 2 * b)\n", RIGHT, RETURNED),
    ("pair", "named", NAMED, RIGHT, BY_NAME),
    ("pair", "other keys", f"{STAR}return dict(y=a, lse=b)\n", "INCORRECT_SHAPE", RETURNED),
    ("buffered", "left alone", BUFFERED.format("pass"), RIGHT, BY_NUMBER),
    ("buffered", "x changed", BUFFERED.format("buffer += x; x += 1; x -= 1; x[0] = 0"), WRONG, BY_NUMBER),
]
"""Definition, name, source; the verdict, and how the style was detected. A failed call writes into its outputs."""


def test_each_form_gets_its_verdict_and_its_trace_says_how_it_is_called(tmp_path):
    sizes = dict.fromkeys(DEFINITIONS, (64, 96))
    write_trace_set(
        tmp_path,
        definitions=list(DEFINITIONS.values()),
        solutions=[make_solution(name, definition=of, source=source) for of, name, source, *_ in SOLUTIONS],
        workloads=[
            make_trace(
                definition=name,
                workload=make_workload(f"{name}{n}", axes={"n": n}, inputs=dict.fromkeys(one.inputs, "random")),
                solution=None,
            )
            for name, one in DEFINITIONS.items()
            for n in sizes[name]
        ],
    )
    assert cli(["run", "--local", str(tmp_path), *FEW]) == 0
    found = {
        (trace.solution, trace.workload.uuid): trace.evaluation
        for group in TraceSet.from_path(tmp_path).traces.values()
        for trace in group
    }
    assert len(found) == 2 * len(SOLUTIONS)
    for of, name, _, status, told_by in SOLUTIONS:
        for n in sizes[of]:
            one = found[name, f"{of}{n}"]
            style = {"style": "dps" if told_by == FAILED else "value", "told_by": told_by}
            changed = ["buffer"] if of == "buffered" else None
            made = (one.status.value, one.extra["calling_style"], one.extra.get("in_out_inputs"))
            assert made == (status, style, changed), (name, one.log)


TOPK = 64
INDEXER = f"""
import torch

@torch.no_grad()
def run(q, k_cache, weights, seq_lens, block_table):
    pages, page_size, dim = k_cache.shape
    indices = torch.full((q.shape[0], {TOPK}), -1, dtype=torch.int32, device=q.device)
    for row in range(q.shape[0]):
        length = int(seq_lens[row])
        own = block_table[row, : -(-length // page_size)].long()
        keys = k_cache[own].reshape(-1, dim)[:length].float()
        scores = (torch.relu(q[row].float() @ keys.T) * weights[row][:, None]).sum(0)
        best = torch.topk(scores, min({TOPK}, length)).indices
        indices[row, : len(best)] = (own[best // page_size] * page_size + best % page_size).int()
    return (indices,)
"""
BROKEN = f"'topk <= max_num_pages * page_size' does not hold ({TOPK} and 8)"
NAME = "dsa_topk_indexer_h2_d8_topk64_ps4"


@pytest.fixture
def indexer(tmp_path):
    """A set with an indexer: one workload has fewer keys than it selects, another workload lacks its blobs."""
    definition = make_definition(
        NAME,
        op_type="dsa_paged",
        axes={"batch_size": None, "max_num_pages": None, "num_pages": None, "page_size": 4, "topk": TOPK},
        inputs={
            "q": "float32[batch_size, 2, 8]",
            "k_cache": "float32[num_pages, page_size, 8]",
            "weights": "float32[batch_size, 2]",
            "seq_lens": "int32[batch_size]",
            "block_table": "int32[batch_size, max_num_pages]",
        },
        outputs={"topk_indices": "int32[batch_size, topk]"},
        constraints=["topk <= max_num_pages * page_size"],
        reference=INDEXER,
    )
    axes = {"batch_size": 3, "max_num_pages": 2, "num_pages": 11}
    blob = {"type": "safetensors", "path": "blob/gone.safetensors", "tensor_key": "seq_lens"}
    zeros = INDEXER.replace("return (indices,)", "return (indices.clamp(min=0),)")
    made = {"definition": NAME, "destination_passing_style": False}
    workloads = [
        make_workload("short", axes=axes, inputs={}),
        make_workload("gone", axes=axes, inputs={"seq_lens": blob}),
    ]
    return write_trace_set(
        tmp_path,
        definitions=[definition],
        solutions=[make_solution("right", source=INDEXER, **made), make_solution("zeros", source=zeros, **made)],
        workloads=[make_trace(definition=NAME, solution=None, workload=workload) for workload in workloads],
    )


def test_validate_reports_a_line_whose_axes_break_a_constraint(indexer, capsys):
    assert cli(["validate", "--dataset", str(indexer), "--checks", "workload"]) == 1  # a blob is missing
    first, *others = capsys.readouterr().out.splitlines()
    assert f"workload gone of {NAME}: blob " in first
    for uuid, line in zip(("short", "gone"), others, strict=False):
        assert f"workload {uuid} of {NAME}: constraint {BROKEN}: it is judged" in line


@pytest.mark.parametrize("runner", [[], ["--use-isolated-runner"]], ids=["persistent", "isolated"])
def test_an_indexer_with_fewer_keys_than_it_selects_is_judged_and_missing_blobs_are_one_line(indexer, capsys, runner):
    assert cli(["run", "--local", str(indexer), *FEW, *runner]) == 1
    document = json.loads(capsys.readouterr().out)
    assert {job["solution"]: job["status"] for job in document["jobs"]} == {"right": RIGHT, "zeros": WRONG}
    (skipped,) = document["skipped"]
    assert skipped["reason"].startswith("1 of 2 workloads lack their stored inputs: blob ")
    for trace in TraceSet.from_path(indexer).traces[NAME]:
        assert trace.evaluation.extra["broken_constraints"] == [BROKEN]
