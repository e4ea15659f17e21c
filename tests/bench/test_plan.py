"""Which jobs a run has: names, filters, skips, and what is recorded already."""

import pytest

from flashinfer_bench.bench.config import BenchmarkConfig, EvalConfig
from flashinfer_bench.bench.machine import Device, Machine
from flashinfer_bench.bench.planning.plan import PlanRow, make_plan
from flashinfer_bench.bench.planning.resume import RecordedJobs
from flashinfer_bench.data import Trace, TraceSet
from flashinfer_bench.errors import ConfigError
from tests.kit.make import make_definition, make_evaluation, make_solution, make_trace, make_workload

LANGUAGES = {"python": None, "triton": None, "cuda": "there is no nvcc"}
CPU = Machine((Device("cpu", 0, "EPYC", "cpu"),), LANGUAGES)
GPU = Machine((Device("cuda", 0, "NVIDIA H200", "GPU-1"), Device("cuda", 1, "NVIDIA H200", "GPU-2")), LANGUAGES)
WORKLOADS = {"gemm_a": ["aaaa-1", "aaaa-2", "bbbb-1"], "gemm_b": ["cccc-1", "aaaa-1"], "dsa": ["dddd-1"]}


@pytest.fixture
def trace_set():
    definitions = [make_definition(name, op_type="dsa_paged" if name == "dsa" else "gemm") for name in WORKLOADS]
    return TraceSet(
        definitions={item.name: item for item in definitions},
        solutions={
            "gemm_a": [solve("fast", "gemm_a"), solve("slow", "gemm_a", author="you")],
            "gemm_b": [solve("b1", "gemm_b")],
            "dsa": [solve("sparse", "dsa", author="you")],
        },
        workloads={
            name: [
                Trace(definition=name, workload=make_workload(uuid, axes={"n": at})) for at, uuid in enumerate(uuids)
            ]
            for name, uuids in WORKLOADS.items()
        },
    )


def solve(name, definition, author="me", target_hardware=("cpu", "cuda"), **parts):
    return make_solution(name, definition=definition, author=author, target_hardware=list(target_hardware), **parts)


def names(plan):
    return [(job.definition.name, job.solution.name, job.workload.uuid) for job in plan.jobs]


def skips(plan):
    return [(skip.definition, skip.solution, skip.workload, skip.reason) for skip in plan.skips]


def test_every_combination_is_a_job_in_the_order_of_the_set(trace_set):
    plan = make_plan(trace_set, BenchmarkConfig.default(), CPU)
    pairs = [("gemm_a", "fast"), ("gemm_a", "slow"), ("gemm_b", "b1"), ("dsa", "sparse")]
    assert names(plan) == [(name, solution, uuid) for name, solution in pairs for uuid in WORKLOADS[name]]
    assert [job.index for job in plan.jobs] == list(range(9))
    assert (plan.skips, plan.resumed, plan.redone) == ((), 0, 0)
    assert plan.rows()[0] == PlanRow("gemm_a", "gemm", "fast", "me", 3)
    assert make_plan(TraceSet(), BenchmarkConfig.default(), CPU).jobs == ()


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"definitions": ["gemm_b", "dsa"]}, 3),
        ({"op_types": ["dsa-paged"]}, 1),
        ({"solutions": ["slow", "b1"]}, 5),
        ({"authors": ["you"]}, 4),
        ({"workloads": ["aaaa-1"]}, 3),
        ({"workloads": ["bbbb", "dddd-1"]}, 3),
        ({"definitions": ["gemm_b"], "workloads": ["aaaa"]}, 1),
        ({"authors": ["you"], "op_types": ["gemm"], "workloads": ["bbbb"]}, 1),
    ],
)
def test_filters_narrow_the_plan_and_leave_no_skips(trace_set, filters, expected):
    plan = make_plan(trace_set, BenchmarkConfig(**filters), CPU)
    assert (len(plan.jobs), plan.skips) == (expected, ())


NO, NOTHING = "the trace set has no", "nothing is left of the set; the filters given are"
REFUSED = [
    ({"workloads": ["w2"]}, [f"workloads: {NO} workload 'w2'; it has aaaa-1, aaaa-2, bbbb-1, cccc-1, dddd-1"]),
    ({"solutions": ["zzzz"]}, [f"solutions: {NO} solution 'zzzz'; it has b1, fast, slow, sparse"]),
    ({"solutions": ["you"]}, [f"solutions: {NO} solution 'you'; that is an author: give it to `authors`"]),
    ({"workloads": ["bbb"]}, [f"workloads: {NO} workload 'bbb'; the start of a uuid needs 4 characters"]),
    ({"workloads": ["aaaa"]}, ["workloads: 'aaaa' is the start of several uuids; it has aaaa-1, aaaa-2; write more"]),
    ({"definitions": ["gemm_a"], "op_types": ["dsa_paged"]}, [f"{NOTHING} definitions, op_types: widen one of them"]),
    ({"definitions": ["gemm_b"], "solutions": ["fast"]}, [f"{NOTHING} definitions, solutions"]),
    ({"definitions": ["gemm_b"], "workloads": ["dddd"]}, [f"{NOTHING} definitions, workloads"]),
    ({"solutions": ["fast"], "workloads": ["dddd"]}, [f"{NOTHING} solutions, workloads"]),
    (
        {
            "definitions": ["gemm_c"],
            "solutions": ["fats"],
            "op_types": ["gem"],
            "authors": ["nobody"],
            "workloads": ["aaaa-9"],
            "op_type_config": {"mose": EvalConfig(), "dsa-paged": EvalConfig()},
            "definition_config": {"gema": EvalConfig()},
        },
        [
            f"definitions: {NO} definition 'gemm_c'; did you mean",
            f"solutions: {NO} solution 'fats'; did you mean 'fast'?",
            f"op_types: {NO} op type 'gem'; did you mean 'gemm'?",
            f"authors: {NO} author 'nobody'; it has me, you",
            f"workloads: {NO} workload 'aaaa-9'; did you mean",
            f"BenchmarkConfig: op_type_config.mose: {NO} op type 'mose'; did you mean 'moe'?",
            f"BenchmarkConfig: definition_config.gema: {NO} definition 'gema'",
        ],
    ),
]


@pytest.mark.parametrize(("filters", "lines"), REFUSED, ids=range(len(REFUSED)))
def test_wrong_names_are_told_at_once_with_the_nearest_and_so_are_filters_that_leave_nothing(trace_set, filters, lines):
    with pytest.raises(ConfigError) as caught:
        make_plan(trace_set, BenchmarkConfig(**filters), CPU)
    told = str(caught.value).splitlines()
    assert len(told) == len(lines)
    assert all(line.startswith(expected) for line, expected in zip(told, lines, strict=True))


def test_workloads_whose_blobs_are_missing_are_one_skip_of_their_definition(trace_set, tmp_path):
    (tmp_path / "there").write_text("tensors")
    paths = {"one": "blob/gone", "two": "there", "three": "blob/gone", "four": "../outside", "five": "x" * 300}
    trace_set.workloads["gemm_a"] = [
        Trace(
            definition="gemm_a",
            workload=make_workload(uuid, inputs={"x": {"type": "safetensors", "path": path, "tensor_key": "x"}}),
        )
        for uuid, path in paths.items()
    ]
    trace_set.workload_roots["gemm_a"] = tmp_path
    plan = make_plan(trace_set, BenchmarkConfig(definitions=["gemm_a"]), CPU)
    assert [job.workload.uuid for job in plan.jobs] == ["two", "four"] * 2
    lack = f"3 of 5 workloads lack their stored inputs: blob {tmp_path}/blob/gone is not there"
    assert skips(plan) == [("gemm_a", None, None, f"{lack}; download the blob/ folder of the data set")]
    plan = make_plan(trace_set, BenchmarkConfig(definitions=["gemm_a"], workloads=["three"]), CPU)
    assert (plan.jobs, plan.skips[0].is_fault) == ((), True)


def test_definitions_that_cannot_be_run_are_skipped_with_the_reason(trace_set):
    trace_set.definitions["gemm_a"] = make_definition("gemm_a", reference="def other(x):\n    return x\n")
    trace_set.workloads["gemm_b"] = []
    trace_set.solutions.pop("dsa")
    plan = make_plan(trace_set, BenchmarkConfig(), CPU)
    told = skips(plan)
    assert (plan.jobs, "run" in told[0][3]) == ((), True)
    path = "solutions/<author>/<op_type>/<definition>/<solution>.json"
    assert [one[0] for one in told] == ["gemm_a", "gemm_b", "dsa"]
    assert [one[1:] for one in told[1:]] == [
        (None, None, "it has no workloads; write them to workloads/<op_type>/<definition>.jsonl, one a line"),
        (None, None, f"it has no solutions; write them to {path}, one a file"),
    ]


OTHER = "target_hardware is "


@pytest.mark.parametrize(
    ("language", "target_hardware", "on_cpu", "on_gpu"),
    [
        ("python", ["cpu"], None, OTHER),
        ("python", ["NVIDIA H100", "B200"], f"{OTHER}NVIDIA H100, B200; the device here is EPYC", None),
        ("triton", ["NVIDIA H100"], f"{OTHER}NVIDIA H100; the device here is EPYC (--interpret", None),
        ("python", ["cuda", "cpu"], None, None),
        ("python", ["LOCAL"], None, None),
        *(("python", [one], OTHER, None) for one in ("sm_90a", "NVIDIA_H100", "nvidia-geforce-rtx-4090", "MI300X")),
        ("python", ["x86_64"], None, OTHER),
        ("triton", ["any"], None, None),
        ("cuda", ["cuda"], *["language cuda is not available here: there is no nvcc"] * 2),
        ("tilelang", ["cuda", "cpu"], *["language tilelang has no builder"] * 2),
    ],
)
def test_solutions_that_cannot_run_here_are_skipped_with_the_reason(
    trace_set, language, target_hardware, on_cpu, on_gpu
):
    trace_set.solutions["gemm_b"] = [solve("odd", "gemm_b", language=language, target_hardware=target_hardware)]
    asked = {"definitions": ["gemm_b"]}
    for machine, reason in ((CPU, on_cpu), (GPU, on_gpu)):
        plan = make_plan(trace_set, BenchmarkConfig(**asked), machine)
        assert [skip[:3] for skip in skips(plan)] == ([] if reason is None else [("gemm_b", "odd", None)])
        assert all(skip.reason.startswith(reason) for skip in plan.skips)
        assert len(plan.jobs) == (2 if reason is None else 0)
    interpreted = make_plan(trace_set, BenchmarkConfig(**asked, interpret=True), CPU).jobs
    assert bool(interpreted) is (on_cpu is None or "interpret" in on_cpu)


def test_each_job_has_the_settings_of_its_definition_and_a_quick_look_is_marked(trace_set):
    config = BenchmarkConfig(rtol=0.1, op_type_config={"dsa-paged": EvalConfig(rtol=0.2)})
    found = {job.definition.name: job.config.rtol for job in make_plan(trace_set, config, CPU).jobs}
    assert found == {"gemm_a": 0.1, "gemm_b": 0.1, "dsa": 0.2}
    settings = {"quick": True, "warmup_runs": 10, "iterations": 50, "num_trials": 3, "precision": 0.015}
    usual, as_long = (
        make_plan(trace_set, BenchmarkConfig(**given), CPU).jobs[0].fingerprint for given in ({}, settings)
    )
    assert as_long == {**usual, "timing": "quick"}


def test_recorded_jobs_are_left_out_and_what_changed_is_done_again_with_the_reason(trace_set):
    config = BenchmarkConfig.default()
    traces = []
    for job in make_plan(trace_set, config, CPU).jobs:
        extra = {"run": {"fingerprint": dict(job.fingerprint)}}
        evaluation = make_evaluation("RUNTIME_ERROR", environment={"hardware": "EPYC"}, extra=extra)
        of = {"definition": job.definition.name, "solution": job.solution.name, "workload": job.workload}
        traces.append(make_trace(**of, evaluation=evaluation))

    def plan(recorded=traces, machine=CPU, **settings):
        return make_plan(trace_set, BenchmarkConfig.default(**settings), machine, recorded=RecordedJobs(recorded))

    half = plan(traces[:4])
    assert (half.resumed, half.redone, [job.index for job in half.jobs]) == (4, 0, [0, 1, 2, 3, 4])
    assert (plan().jobs, list(plan().recorded)) == ((), traces)
    assert plan(machine=GPU).redone_reasons == {"hardware changed": 9}
    trace_set.solutions["gemm_b"] = [solve("b1", "gemm_b", author="someone else")]
    assert plan().jobs == ()
    trace_set.solutions["gemm_b"] = [solve("b1", "gemm_b", source="2")]
    changed = plan(op_type_config={"dsa_paged": EvalConfig(rtol=0.5)})
    assert (changed.resumed, changed.redone) == (6, 3)
    assert changed.redone_reasons == {"solution changed": 2, "config changed": 1}
