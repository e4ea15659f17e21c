"""Which jobs a run has: names, filters, skips, and what is recorded already."""

import pytest

from flashinfer_bench.bench.config import BUNDLED_FILE, BenchmarkConfig, EvalConfig
from flashinfer_bench.bench.machine import Device, Machine
from flashinfer_bench.bench.planning.plan import PlanRow, Skip, make_plan
from flashinfer_bench.bench.planning.resume import RecordedJobs
from flashinfer_bench.bench.planning.suitability import read_target_kinds
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.data.workload import Workload
from flashinfer_bench.errors import ConfigError
from tests.kit import make

LANGUAGES = {"python": None, "triton": None, "cuda": "there is no nvcc"}
CPU = Machine((Device("cpu", 0, "EPYC", "cpu"),), LANGUAGES)
GPU = Machine((Device("cuda", 0, "NVIDIA H200", "GPU-1"), Device("cuda", 1, "NVIDIA H200", "GPU-2")), LANGUAGES)


def make_definition(name, op_type="gemm", **parts):
    return make.make_definition(name, op_type=op_type, **parts)


def make_solution(name, definition, author="me", language="python", target_hardware=("cpu", "cuda"), content="1"):
    parts = {"author": author, "language": language, "target_hardware": list(target_hardware), "source": content}
    return make.make_solution(name, definition=definition, **parts)


def make_workloads(definition, *uuids):
    workloads = [make.make_workload(uuid, axes={"n": size}) for size, uuid in enumerate(uuids)]
    return [Trace(definition=definition, workload=workload) for workload in workloads]


def test_workloads_whose_blobs_are_missing_are_one_skip_of_their_definition(trace_set, tmp_path):
    (tmp_path / "there").write_text("tensors")
    paths = {"one": "blob/gone", "two": "there", "three": "blob/gone", "four": "../outside", "five": "x" * 300}
    trace_set.workloads["gemm_a"] = [
        Trace(
            definition="gemm_a",
            workload=Workload(
                uuid=uuid, axes={"n": 2}, inputs={"x": {"type": "safetensors", "path": path, "tensor_key": "x"}}
            ),
        )
        for uuid, path in paths.items()
    ]
    trace_set.workload_roots["gemm_a"] = tmp_path
    plan = make_plan(trace_set, BenchmarkConfig(definitions=["gemm_a"]), CPU)
    assert [job.workload.uuid for job in plan.jobs] == ["two", "four"] * 2
    (skip,) = plan.skips
    assert (skip.definition, skip.solution, skip.workload) == ("gemm_a", None, None)
    assert skip.reason == (
        f"3 of 5 workloads lack their stored inputs: blob {tmp_path}/blob/gone is not there, nor are those of 2 more; "
        "download the blob/ folder of the data set"
    )
    plan = make_plan(trace_set, BenchmarkConfig(definitions=["gemm_a"], workloads=["three"]), CPU)
    assert (plan.jobs, len(plan.skips)) == ((), 1)
    assert plan.skips[0].reason.startswith("1 of 1 workloads lack")


@pytest.fixture
def trace_set():
    definitions = [make_definition("gemm_a"), make_definition("gemm_b"), make_definition("dsa", "dsa_paged")]
    solutions = [make_solution("fast", "gemm_a"), make_solution("slow", "gemm_a", "you"), make_solution("b1", "gemm_b")]
    return TraceSet(
        definitions={item.name: item for item in definitions},
        solutions={"gemm_a": solutions[:2], "gemm_b": solutions[2:], "dsa": [make_solution("sparse", "dsa", "you")]},
        workloads={
            "gemm_a": make_workloads("gemm_a", "aaaa-1", "aaaa-2", "bbbb-1"),
            "gemm_b": make_workloads("gemm_b", "cccc-1", "aaaa-1"),
            "dsa": make_workloads("dsa", "dddd-1"),
        },
    )


def names(plan):
    return [(job.definition.name, job.solution.name, job.workload.uuid) for job in plan.jobs]


def refusal(trace_set, **filters):
    with pytest.raises(ConfigError) as caught:
        make_plan(trace_set, BenchmarkConfig(**filters), CPU)
    return str(caught.value)


def test_every_combination_is_a_job_in_the_order_of_the_set(trace_set):
    plan = make_plan(trace_set, BenchmarkConfig.default(), CPU)
    assert names(plan)[:4] == [
        ("gemm_a", "fast", "aaaa-1"),
        ("gemm_a", "fast", "aaaa-2"),
        ("gemm_a", "fast", "bbbb-1"),
        ("gemm_a", "slow", "aaaa-1"),
    ]
    assert [job.index for job in plan.jobs] == list(range(9))
    assert (plan.skips, plan.resumed, plan.redone) == ((), 0, 0)


def test_rows_count_the_workloads_of_each_solution(trace_set):
    rows = make_plan(trace_set, BenchmarkConfig(), CPU).rows()
    assert rows[0] == PlanRow("gemm_a", "gemm", "fast", "me", 3)
    assert [row.workloads for row in rows] == [3, 3, 2, 1]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"definitions": ["gemm_b", "dsa"]}, 3),
        ({"op_types": ["dsa-paged"]}, 1),
        ({"solutions": ["slow", "b1"]}, 5),
        ({"authors": ["you"]}, 4),
        ({"workloads": ["aaaa-1"]}, 3),
        ({"workloads": ["bbbb"]}, 2),
        ({"workloads": ["bbbb", "dddd-1"]}, 3),
        ({"definitions": ["gemm_b"], "workloads": ["aaaa"]}, 1),
        ({"authors": ["you"], "op_types": ["gemm"], "workloads": ["bbbb"]}, 1),
    ],
)
def test_filters_narrow_the_plan_and_leave_no_skips(trace_set, filters, expected):
    plan = make_plan(trace_set, BenchmarkConfig(**filters), CPU)
    assert (len(plan.jobs), plan.skips) == (expected, ())


def test_all_wrong_names_are_told_at_once_with_the_nearest(trace_set):
    message = refusal(
        trace_set,
        definitions=["gemm_c"],
        solutions=["fats"],
        op_types=["gem"],
        authors=["nobody"],
        workloads=["aaaa-9"],
        op_type_config={"mose": EvalConfig(), "dsa-paged": EvalConfig()},
        definition_config={"gema": EvalConfig()},
    )
    lines = message.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "definitions",
        "solutions",
        "op_types",
        "authors",
        "workloads",
        "BenchmarkConfig",
        "BenchmarkConfig",
    ]
    assert "did you mean 'fast'?" in lines[1]
    assert "it has me, you" in lines[3]
    place = "BenchmarkConfig: op_type_config.mose"
    assert lines[5] == f"{place}: the trace set has no op type 'mose'; did you mean 'moe'?"
    assert "definition_config.gema" in lines[6]


def test_the_bundled_file_or_a_copy_may_be_given_for_any_set(trace_set, tmp_path):
    copy = tmp_path / "mine.yaml"
    copy.write_text(BUNDLED_FILE.read_text())
    for config in (BenchmarkConfig.default(), BenchmarkConfig.from_yaml(copy)):
        assert len(make_plan(trace_set, config, CPU).jobs) == 9


@pytest.mark.parametrize(
    ("filters", "lines"),
    [
        ({"workloads": ["w2"]}, ["workloads: the trace set has no workload 'w2'; it has aaaa-1, aaaa-2"]),
        (
            {"workloads": ["zzzz"], "solutions": ["b1"]},
            ["workloads: the trace set has no workload 'zzzz'; it has aaaa-1, cccc-1"],
        ),
        (
            {"definitions": ["gemm_a"], "solutions": ["zzzz"]},
            ["solutions: the trace set has no solution 'zzzz'; it has fast, slow"],
        ),
        (
            {"solutions": ["you"]},
            ["solutions: the trace set has no solution 'you'; that is an author: give it to `authors`"],
        ),
        (
            {"workloads": ["aaaa", "bbb"]},
            [
                "workloads: 'aaaa' is the start of several uuids; it has aaaa-1, aaaa-2; write more of it",
                "workloads: 'bbb' is too short: the start of a uuid needs 4 characters",
            ],
        ),
    ],
)
def test_a_wrong_name_is_told_with_those_that_are_near(trace_set, filters, lines):
    told = refusal(trace_set, **filters).splitlines()
    assert len(told) == len(lines)
    assert all(line.startswith(expected) for line, expected in zip(told, lines, strict=True))


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"definitions": ["gemm_a"], "op_types": ["dsa_paged"]}, "no definition"),
        ({"definitions": ["gemm_b"], "solutions": ["fast"]}, "no solution is left; .* definitions, solutions"),
        ({"definitions": ["gemm_b"], "workloads": ["dddd"]}, "no workload is left"),
        ({"solutions": ["fast"], "workloads": ["dddd"]}, "both a solution and a workload"),
    ],
)
def test_filters_that_together_leave_nothing_are_refused(trace_set, filters, expected):
    with pytest.raises(ConfigError, match=expected):
        make_plan(trace_set, BenchmarkConfig(**filters), CPU)


def test_an_empty_set_has_an_empty_plan():
    assert make_plan(TraceSet(), BenchmarkConfig.default(), CPU).jobs == ()


def test_definitions_that_cannot_be_run_are_skipped_with_the_reason(trace_set):
    trace_set.definitions["gemm_a"] = make_definition("gemm_a", reference="def other(x):\n    return x\n")
    trace_set.workloads["gemm_b"] = []
    trace_set.solutions.pop("dsa")
    plan = make_plan(trace_set, BenchmarkConfig(), CPU)
    assert plan.jobs == ()
    assert [(skip.definition, skip.solution, skip.workload) for skip in plan.skips] == [
        ("gemm_a", None, None),
        ("gemm_b", None, None),
        ("dsa", None, None),
    ]
    assert "run" in plan.skips[0].reason
    assert [skip.reason for skip in plan.skips[1:]] == [
        "it has no workloads; write them to workloads/<op_type>/<definition>.jsonl, one a line",
        "it has no solutions; write them to solutions/<author>/<op_type>/<definition>/<solution>.json, one a file",
    ]


@pytest.mark.parametrize(
    ("language", "target_hardware", "on_cpu", "on_gpu"),
    [
        ("python", ["cpu"], None, "target_hardware is cpu; the device here is NVIDIA H200"),
        ("python", ["NVIDIA H100", "B200"], "target_hardware is NVIDIA H100, B200; the device here is EPYC", None),
        ("python", ["cuda", "cpu"], None, None),
        ("python", ["LOCAL"], None, None),
        ("triton", ["cuda", "cpu"], None, None),
        ("triton", ["any"], None, None),
        ("triton", ["cpu"], None, "target_hardware is cpu; the device here is NVIDIA H200"),
        ("cuda", ["cuda"], *["language cuda is not available here: there is no nvcc"] * 2),
        ("tilelang", ["cuda", "cpu"], *["language tilelang has no builder"] * 2),
    ],
)
def test_solutions_that_cannot_run_here_are_skipped_with_the_reason(
    trace_set, language, target_hardware, on_cpu, on_gpu
):
    trace_set.solutions["gemm_b"] = [make_solution("odd", "gemm_b", "me", language, target_hardware)]
    for machine, reason in ((CPU, on_cpu), (GPU, on_gpu)):
        plan = make_plan(trace_set, BenchmarkConfig(definitions=["gemm_b"]), machine)
        assert plan.skips == (() if reason is None else (Skip("gemm_b", "odd", None, reason),))
        assert len(plan.jobs) == (2 if reason is None else 0)


def test_triton_for_gpus_alone_runs_without_one_only_where_it_is_to_be_interpreted(trace_set):
    trace_set.solutions["gemm_b"] = [make_solution("odd", "gemm_b", "me", "triton", ["NVIDIA H100"])]
    asked = {"definitions": ["gemm_b"]}
    [skip] = make_plan(trace_set, BenchmarkConfig(**asked), CPU).skips
    assert skip.reason.startswith("target_hardware is NVIDIA H100; the device here is EPYC (--interpret")
    assert make_plan(trace_set, BenchmarkConfig(**asked, interpret=True), CPU).skips == ()
    trace_set.solutions["gemm_b"] = [make_solution("odd", "gemm_b", "me", "python", ["NVIDIA H100"])]
    assert make_plan(trace_set, BenchmarkConfig(**asked, interpret=True), CPU).jobs == ()


@pytest.mark.parametrize(
    ("entry", "kinds"),
    [
        ("NVIDIA_H100", {"cuda"}),
        ("nvidia-geforce-rtx-4090", {"cuda"}),
        ("sm_90a", {"cuda"}),
        ("GB200", {"cuda"}),
        ("L40S", {"cuda"}),
        ("MI300X", {"cuda"}),
        ("NVIDIA Grace CPU", {"cpu"}),
        ("x86_64", {"cpu"}),
        ("any", set()),
        ("", set()),
    ],
)
def test_target_hardware_is_read_from_free_text(entry, kinds):
    assert read_target_kinds([entry]) == kinds


def test_each_job_has_the_resolved_config_of_its_definition(trace_set):
    config = BenchmarkConfig(rtol=0.1, op_type_config={"dsa-paged": EvalConfig(rtol=0.2)})
    plan = make_plan(trace_set, config, CPU)
    assert {(job.definition.name, job.config.rtol) for job in plan.jobs} == {
        ("gemm_a", 0.1),
        ("gemm_b", 0.1),
        ("dsa", 0.2),
    }


def record(plan):
    """The traces that a run of the plan would leave."""
    for job in plan.jobs:
        extra = {"run": {"fingerprint": dict(job.fingerprint)}}
        evaluation = make.make_evaluation("RUNTIME_ERROR", environment={"hardware": "EPYC"}, extra=extra)
        names_of = {"definition": job.definition.name, "solution": job.solution.name}
        yield Trace(**names_of, workload=job.workload, evaluation=evaluation)


def test_recorded_jobs_are_left_out_and_all_recorded_is_no_error(trace_set):
    config = BenchmarkConfig.default()
    traces = list(record(make_plan(trace_set, config, CPU)))
    half = make_plan(trace_set, config, CPU, recorded=RecordedJobs.from_traces(traces[:4]))
    assert (half.resumed, half.redone, [job.index for job in half.jobs]) == (4, 0, [0, 1, 2, 3, 4])
    whole = make_plan(trace_set, config, CPU, recorded=RecordedJobs.from_traces(traces))
    assert (whole.jobs, whole.resumed) == ((), 9)


def test_what_changed_since_is_done_again_with_the_reason(trace_set):
    recorded = RecordedJobs.from_traces(record(make_plan(trace_set, BenchmarkConfig(), CPU)))
    trace_set.solutions["gemm_b"] = [make_solution("b1", "gemm_b", content="2")]
    config = BenchmarkConfig(op_type_config={"dsa_paged": EvalConfig(rtol=0.5)})
    plan = make_plan(trace_set, config, CPU, recorded=recorded)
    assert (plan.resumed, plan.redone) == (6, 3)
    assert plan.redone_reasons == {"solution changed": 2, "config changed": 1}


def test_other_hardware_is_another_job(trace_set):
    recorded = RecordedJobs.from_traces(record(make_plan(trace_set, BenchmarkConfig(), CPU)))
    plan = make_plan(trace_set, BenchmarkConfig(), GPU, recorded=recorded)
    assert plan.redone_reasons == {"hardware changed": 9}


def test_a_renamed_author_changes_nothing(trace_set):
    recorded = RecordedJobs.from_traces(record(make_plan(trace_set, BenchmarkConfig(), CPU)))
    trace_set.solutions["gemm_b"] = [make_solution("b1", "gemm_b", author="someone else")]
    assert make_plan(trace_set, BenchmarkConfig(), CPU, recorded=recorded).jobs == ()
