"""The jobs of a run: names, filters, skips, and recorded jobs."""

import shlex
from dataclasses import replace

import pytest

from flashinfer_bench.bench.config import BenchmarkConfig, EvalConfig
from flashinfer_bench.bench.machine import Device, Machine
from flashinfer_bench.bench.planning.plan import PlanRow, make_plan
from flashinfer_bench.bench.planning.resume import RecordedJobs
from flashinfer_bench.data import Trace, TraceSet
from flashinfer_bench.errors import ConfigError
from tests.kit.make import make_definition, make_solution, make_workload

LANGUAGES = {"python": None, "triton": None, "cuda": "there is no nvcc"}
CPU = Machine((Device("cpu", 0, "EPYC", "cpu"),), LANGUAGES)
GPU = Machine((Device("cuda", 0, "NVIDIA H200", "GPU-1"), Device("cuda", 1, "NVIDIA H200", "GPU-2")), LANGUAGES)
WORKLOADS = {"gemm_a": "aaaa-1 aaaa-2 bbbb-1", "gemm_b": "cccc-1 aaaa-1", "dsa": "dddd-1"}
SOLUTIONS = {"gemm_a": "fast by me, slow by you", "gemm_b": "b1 by me", "dsa": "sparse by you"}


def lines(definition, workloads):
    return [Trace(definition=definition, workload=one) for one in workloads]


def solve(name, definition, author="me", **parts):
    return make_solution(name, definition=definition, author=author, **{"target_hardware": ["cpu", "cuda"], **parts})


@pytest.fixture
def trace_set():
    return TraceSet(
        definitions={
            name: make_definition(name, op_type="dsa_paged" if name == "dsa" else "gemm") for name in WORKLOADS
        },
        solutions={
            name: [solve(one.split()[0], name, one.split()[-1]) for one in listed.split(",")]
            for name, listed in SOLUTIONS.items()
        },
        workloads={
            name: lines(name, [make_workload(uuid, axes={"n": at}) for at, uuid in enumerate(uuids.split())])
            for name, uuids in WORKLOADS.items()
        },
    )


@pytest.fixture
def plan(trace_set):
    """Make a plan of the set; keywords are settings."""

    def go(machine=CPU, recorded=None, **settings):
        found = None if recorded is None else RecordedJobs(recorded)
        return make_plan(trace_set, BenchmarkConfig(**settings), machine, recorded=found)

    return go


def test_every_combination_is_a_job_in_the_order_of_the_set(plan):
    made = plan()
    pairs = [("gemm_a", "fast"), ("gemm_a", "slow"), ("gemm_b", "b1"), ("dsa", "sparse")]
    names = [(job.definition.name, job.solution.name, job.workload.uuid) for job in made.jobs]
    assert names == [(*pair, uuid) for pair in pairs for uuid in WORKLOADS[pair[0]].split()]
    assert [job.index for job in made.jobs] == list(range(9))
    assert (made.skips, made.resumed, made.redone) == ((), 0, 0)
    assert made.rows()[0] == PlanRow("gemm_a", "gemm", "fast", "me", 3)
    assert make_plan(TraceSet(), BenchmarkConfig(), CPU).jobs == ()


def named(text):
    """Read filters: `definitions=a,b workloads=c`."""
    return {name: value.split(",") for name, _, value in (part.partition("=") for part in text.split())}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ("definitions=gemm_b,dsa", 3),
        ("op_types=dsa-paged", 1),
        ("solutions=slow,b1", 5),
        ("authors=you", 4),
        ("workloads=aaaa-1", 3),
        ("workloads=n=1", 3),
        ("workloads=bbbb,dddd-1", 3),
        ("definitions=gemm_b workloads=aaaa", 1),
        ("authors=you op_types=gemm workloads=bbbb", 1),
    ],
)
def test_filters_narrow_the_plan_and_leave_no_skips(plan, filters, expected):
    made = plan(**named(filters))
    assert (len(made.jobs), made.skips) == (expected, ())


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ("workloads=w2", "workloads: NO workload 'w2'; it has aaaa-1, aaaa-2, bbbb-1, cccc-1, dddd-1"),
        ("solutions=zzzz", "solutions: NO solution 'zzzz'; it has b1, fast, slow, sparse"),
        ("solutions=you", "solutions: NO solution 'you'; that is an author: give it to `authors`"),
        ("authors=nobody", "authors: NO author 'nobody'; it has me, you"),
        ("workloads=bbb", "workloads: NO workload 'bbb'; the start of a uuid needs 4 characters"),
        ("workloads=aaaa", "workloads: 'aaaa' is the start of several uuids; it has aaaa-1, aaaa-2; write more"),
        ("definitions=gemm_a op_types=dsa_paged", "NOTHING definitions, op_types: widen one of them"),
        ("definitions=gemm_b solutions=fast", "NOTHING definitions, solutions"),
        ("definitions=gemm_b workloads=dddd", "NOTHING definitions, workloads"),
        ("solutions=fast workloads=dddd", "NOTHING solutions, workloads"),
        (
            "definitions=gemm_c solutions=fats op_types=gem workloads=aaaa-9",
            "definitions: NO definition 'gemm_c'; did you mean|solutions: NO solution 'fats'; did you mean 'fast'?"
            "|op_types: NO op type 'gem'; did you mean 'gemm'?|workloads: NO workload 'aaaa-9'; did you mean",
        ),
    ],
)
def test_wrong_names_are_reported_at_once_with_the_nearest_and_so_are_empty_filters(plan, filters, expected):
    with pytest.raises(ConfigError) as caught:
        plan(**named(filters))
    words = expected.replace("NOTHING", "nothing is left of the set; the filters given are")
    reported, wanted = str(caught.value).splitlines(), words.replace("NO ", "the trace set has no ").split("|")
    assert [line[: len(one)] for line, one in zip(reported, wanted, strict=True)] == wanted


def test_sections_of_missing_definitions_are_refused(plan):
    with pytest.raises(ConfigError) as caught:
        plan(op_type_config={"mose": {}, "dsa-paged": {}}, definition_config={"gema": {}})
    op_type, definition = str(caught.value).splitlines()
    assert op_type.startswith("BenchmarkConfig: op_type_config.mose: the trace set has no op type 'mose'; did you mean")
    assert definition.startswith("BenchmarkConfig: definition_config.gema: the trace set has no definition 'gema'")


def test_workloads_whose_blobs_are_missing_are_one_skip_of_their_definition(plan, trace_set, tmp_path):
    (tmp_path / "there").write_text("tensors")
    paths = {"one": "blob/gone", "two": "there", "three": "blob/gone", "four": "../outside", "five": "x" * 300}
    stored = {"type": "safetensors", "tensor_key": "x"}
    workloads = [make_workload(uuid, inputs={"x": {**stored, "path": path}}) for uuid, path in paths.items()]
    trace_set.workloads["gemm_a"] = lines("gemm_a", workloads)
    trace_set.blob_roots |= dict.fromkeys((("gemm_a", uuid) for uuid in paths), tmp_path)
    made = plan(definitions=["gemm_a"])
    assert [job.workload.uuid for job in made.jobs] == ["two", "four"] * 2
    (skip,) = made.skips
    assert (skip.definition, skip.solution, skip.workload, skip.is_fault) == ("gemm_a", None, None, True)
    lack = f"3 of 5 workloads lack their stored inputs: blob {tmp_path}/blob/gone is not there"
    output = shlex.quote(str(tmp_path))
    assert skip.reason == f"{lack}; run: flashinfer-bench fetch OWNER/NAME --missing --output {output}"
    assert plan(definitions=["gemm_a"], workloads=["three"]).jobs == ()


def test_definitions_that_cannot_be_run_are_skipped_with_the_reason(plan, trace_set):
    trace_set.definitions["gemm_a"] = make_definition("gemm_a", reference="def other(x):\n    return x\n")
    trace_set.workloads["gemm_b"] = []
    trace_set.solutions.pop("dsa")
    made = plan()
    expected = {"gemm_a": "run", "gemm_b": "it has no workloads; write them to", "dsa": "it has no solutions; write"}
    assert (made.jobs, [skip.definition for skip in made.skips]) == ((), [*expected])
    assert all(expected[skip.definition] in skip.reason for skip in made.skips)


@pytest.mark.parametrize(
    ("language", "target_hardware", "on_cpu", "on_gpu"),
    [
        ("python", "cpu", None, "target_hardware is cpu; the device here is NVIDIA H200"),
        ("python", "NVIDIA H100,B200", "target_hardware is NVIDIA H100, B200; the device here is EPYC", None),
        ("triton", "NVIDIA H100", "target_hardware is NVIDIA H100; the device here is EPYC (--interpret", None),
        *(("python", text, None, None) for text in ("cuda,cpu", "LOCAL", "any", "")),
        *(("python", text, "target_hardware", None) for text in ("sm_90a", "nvidia-geforce-rtx-4090", "MI300X")),
        ("python", "x86_64", None, "target_hardware"),
        ("cuda", "cuda", *["language cuda is not available here: there is no nvcc"] * 2),
        ("tilelang", "cuda,cpu", *["language tilelang has no builder"] * 2),
    ],
)
def test_solutions_that_cannot_run_here_are_skipped_with_the_reason(
    plan, trace_set, language, target_hardware, on_cpu, on_gpu
):
    hardware = target_hardware.split(",")
    trace_set.solutions["gemm_b"] = [solve("odd", "gemm_b", language=language, target_hardware=hardware)]
    lacking = replace(CPU, why_not_buildable=lambda _: "it needs a package")
    for machine, reason in ((CPU, on_cpu), (lacking, on_cpu or "it needs a package"), (GPU, on_gpu)):
        made = plan(machine, definitions=["gemm_b"])
        assert [skip.solution for skip in made.skips] == ["odd"] * (reason is not None)
        assert all(skip.reason.startswith(reason) for skip in made.skips)
        assert len(made.jobs) == (2 if reason is None else 0)
    interpreted = plan(definitions=["gemm_b"], interpret=True).jobs
    assert bool(interpreted) is (on_cpu is None or "interpret" in on_cpu)


def test_gluon_is_skipped_without_a_gpu_even_with_the_interpreter(plan, trace_set):
    source = "from triton.experimental import gluon\n"
    trace_set.solutions["gemm_b"] = [solve("gluon", "gemm_b", language="triton", source=source)]
    made = plan(definitions=["gemm_b"], interpret=True)
    assert [skip.reason for skip in made.skips] == ["a gluon solution needs an NVIDIA GPU; the device here is EPYC"]
    assert len(plan(GPU, definitions=["gemm_b"]).jobs) == 2


def test_each_job_has_the_settings_of_its_definition_and_a_quick_look_is_marked(plan):
    found = {job.config.rtol for job in plan(rtol=0.1, op_type_config={"dsa-paged": EvalConfig(rtol=0.2)}).jobs}
    assert found == {0.1, 0.2}
    as_long = {"quick": True, "warmup_runs": 10, "iterations": 50, "num_trials": 3, "precision": 0.015}
    usual, quick = (plan(**given).jobs[0].fingerprint for given in ({}, as_long))
    assert quick == {**usual, "timing": "quick"}
