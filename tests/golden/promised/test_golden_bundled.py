"""The bundled set, run whole and once; the same again with --resume; and what other commands tell of it.

Spec: spec/engine.md ("Commands and Python", "Runners", "The result"), spec/trace-format.md ("Folder", "Workload and
Trace"); docs/trace-set.md ("Contents of the bundled set", "Trace fields besides the public schema"), docs/tutorial.md
(3, 8), docs/editing.md ("Exit codes"), README.md.
"""

from __future__ import annotations

import json
import re
import shutil

import pytest

from tests.golden.face import BUNDLED, QUICK, Face, assert_has, is_noise, read_traces

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(600)]
AUTHORS = ["plain", "torch", "triton"]
"""Whose solutions a CPU judges, all of them; of those in C++ the two that compile in seconds."""
CPP = ["cpp_gemm_n1024_k4096", "cpp_gemm_n128_k4096"]
ALARM = re.compile(r"a perfect sampler looks this odd once in (\S+) times")
MOST_ODD = 1e9
"""A right sampler is refused once in 10,000 verdicts, but does not look as odd as this."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("bundled") / "flashinfer-trace"
    shutil.copytree(BUNDLED, root, ignore=shutil.ignore_patterns("traces", "wrong", ".serve"))
    return root


@pytest.fixture(scope="module")
def flags():
    """The first workload of each definition; the solutions of `plain` have the others, too (`more`)."""
    files = sorted((BUNDLED / "workloads").rglob("*.jsonl"))
    uuids = [json.loads(path.read_text().splitlines()[0])["workload"]["uuid"] for path in files]
    return ["--solutions", *sorted(names()), "--workloads", *uuids, *QUICK]


@pytest.fixture(scope="module")
def here(root, shared_cache):
    return Face(shared_cache, root.parent)


@pytest.fixture(scope="module")
def done(here, root, flags):
    return here("run", "--local", root, *flags, "--format", "json")


@pytest.fixture(scope="module")
def more(here, root, done):
    """The solutions of `plain` on all workloads: --resume leaves out what is recorded."""
    return here("run", "--local", root, "--authors", "plain", *QUICK, "--resume", "--format", "json")


@pytest.fixture(scope="module")
def traces(root, done, more):
    assert done.code == more.code == 0, (done, more)
    return read_traces(root)


def names_of(author):
    return {json.loads(path.read_text())["name"] for path in (BUNDLED / "solutions" / author).rglob("*.json")}


def names():
    return set(CPP).union(*(names_of(author) for author in AUTHORS))


def is_alarm(job):
    """Tell whether rare draws of a right sampler led to a verdict."""
    alarm = ALARM.search(job["reason"] or "")
    return alarm is not None and float(alarm[1]) < MOST_ODD


def test_every_solution_passes(done, more):
    assert done.code == more.code == 0, (done, more)
    failed = [job for job in (*done.json["jobs"], *more.json["jobs"]) if job["status"] != "PASSED"]
    assert [job for job in failed if not is_noise(job) and not is_alarm(job)] == []
    assert len(failed) <= 8  # a busy CPU, and products in an interpreter that does not know this NumPy


def test_resume_does_what_is_not_recorded(more):
    plan = more.json["plan"]
    assert (plan["jobs"], plan["resumed"], plan["redone"]) == (32, 16, 0)
    assert {entry["solution"].split("_")[0] for entry in more.json["resumed"]} == {"plain"}


def test_every_definition_and_author_was_judged(done):
    document = done.json
    judged = {job["solution"] for job in document["jobs"]}
    skipped = {entry["solution"] for entry in document["skipped"]}
    assert judged | skipped == names()
    assert len({job["definition"] for job in document["jobs"]}) == 16
    assert len(names_of("plain") & judged) == 16
    for entry in document["skipped"]:
        assert_has(entry, "definition solution workload reason fault")
        assert entry["reason"], entry


def test_the_document_has_its_keys(done):
    document = done.json
    assert_has(document, "version plan counts seconds interrupted devices jobs resumed faults skipped data_errors")
    assert_has(document["plan"], "jobs skipped resumed redone")
    assert document["interrupted"] is False
    assert sum(document["counts"].values()) == document["plan"]["jobs"] == len(document["jobs"])
    assert document["faults"] == document["resumed"] == document["data_errors"] == []
    for device in document["devices"]:
        assert_has(device, "label name uuid")
    keys = "definition solution workload status quick reason latency_ms interval95_ms interval reference_latency_ms"
    for job in document["jobs"]:
        assert_has(job, f"{keys} speedup correctness device baseline")
        if job["status"] == "PASSED":
            assert job["speedup"] == pytest.approx(job["reference_latency_ms"] / job["latency_ms"])
            assert job["interval95_ms"][0] <= job["latency_ms"] <= job["interval95_ms"][1]


def test_triton_without_a_gpu_is_judged_and_its_time_means_nothing(done):
    jobs = [job for job in done.json["jobs"] if job["solution"] in names_of("triton") and job["device"] == "cpu"]
    assert all(job["timing_caveat"] for job in jobs if job["status"] == "PASSED")


def test_progress_and_verdicts_go_to_stderr(done):
    assert re.search(r"^\[ *\d+/\d+\] .* / .*: PASSED ", done.told, re.MULTILINE), done


def test_traces_lie_with_author_op_type_and_definition(root, done, more, traces):
    paths = {str(path.relative_to(root / "traces")) for path in (root / "traces").rglob("*.jsonl")}
    assert "plain/rmsnorm/rmsnorm_h4096.jsonl" in paths
    assert all(path.count("/") == 2 for path in paths)
    keys = {(trace["solution"], trace["workload"]["uuid"]) for trace in traces}
    assert keys == {(job["solution"], job["workload"]) for job in (*done.json["jobs"], *more.json["jobs"])}


def test_a_trace_has_the_public_schema_and_what_led_to_the_verdict(traces):
    for trace in traces:
        assert_has(trace, "definition workload solution evaluation")
        assert_has(trace["workload"], "uuid axes inputs")
        evaluation = trace["evaluation"]
        assert_has(evaluation, "status log timestamp environment correctness performance extra")
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", evaluation["timestamp"])
        assert_has(evaluation["environment"]["libs"], "flashinfer_bench python torch numpy")
        run = evaluation["extra"]["run"]
        assert_has(run, "fingerprint config seed seeded sandbox device runner timeout_seconds")
        assert_has(run["fingerprint"], "definition solution workload config hardware evaluator")
        assert_has(run["sandbox"], "level reached missing user")
        assert_has(run["device"], "kind index uuid")
        assert (run["runner"], run["timeout_seconds"], run["seeded"]) == ("persistent", 300, False)
        if evaluation["status"] == "PASSED":
            assert_has(evaluation["performance"], "latency_ms reference_latency_ms speedup_factor")
            assert_has(evaluation["correctness"], "max_relative_error max_absolute_error extra")
            for times in (evaluation["extra"]["measurement"], evaluation["extra"]["baseline"]):
                assert_has(
                    times, "method cache_state median_ms mean_ms q25_ms q75_ms interval95_ms interval trials samples"
                )
                assert times["method"] in ("wall", "cupti", "cuda_events")
            if trace["definition"] == "rmsnorm_h4096":
                assert_has(evaluation["extra"]["roofline"], "flops bytes unit tflops tb_per_sec")


def test_op_types_have_their_evaluators(traces):
    found = {trace["definition"]: trace["evaluation"]["extra"]["evaluator"] for trace in traces}
    assert found["rmsnorm_h4096"] == found["gemm_n128_k4096"] == "DefaultEvaluator"
    assert found["top_p_sampling_from_probs_v32000"] == "SamplingEvaluator"
    assert found["gemm_w4a16_g128_n1024_k2048"] == "LowBitEvaluator"
    assert found["moe_fp8_block_scale_ds_routing_topk4_ng4_kg2_e8_h256_i256"] == "LowBitEvaluator"
    assert found["dsa_topk_indexer_fp8_h64_d128_topk64_ps64"] == "DSAEvaluator"
    moe = next(t for t in traces if t["definition"].startswith("moe_"))["evaluation"]["extra"]["run"]["config"]
    assert moe["required_matched_ratio"] == 0.95  # of the bundled eval_config.yaml
    sampling = next(t for t in traces if t["definition"].startswith("top_p_"))["evaluation"]["extra"]["run"]["config"]
    assert sampling["extra"] == {"sampling_validation_trials": 100, "sampling_tvd_threshold": 0.2}


def test_a_resumed_run_has_no_job_and_writes_nothing(here, root, flags, done, traces):
    again = here("run", "--local", root, *flags, "--resume", "--format", "json")
    assert again.code == 0, again
    document = again.json
    assert (document["plan"]["jobs"], document["jobs"]) == (0, [])
    assert document["plan"]["resumed"] == len(document["resumed"]) == len(done.json["jobs"])
    assert read_traces(root) == traces


def test_a_changed_setting_is_no_reason_to_leave_out(here, root, flags, done):
    """`--dry-run` prints the plan and runs nothing; other tolerances are other fingerprints."""
    words = [
        "run",
        "--local",
        root,
        *flags,
        "--definitions",
        "rmsnorm_h4096",
        "--resume",
        "--dry-run",
        "--format",
        "json",
    ]
    same = here(*words).json["counts"]
    assert (same["jobs"], same["resumed"] > 0) == (0, True)
    other = here(*words, "--rtol", "0.002").json["counts"]
    assert (other["jobs"], other["resumed"]) == (same["resumed"], 0)


def test_list_tells_definitions_solutions_and_workloads(here, root, done):
    definitions = {
        entry["name"]: entry for entry in here("list", "--local", root, "--format", "json").json["definitions"]
    }
    assert len(definitions) == 16
    rmsnorm = definitions["rmsnorm_h4096"]
    assert_has(rmsnorm, "name op_type workloads solutions traces")
    assert (rmsnorm["op_type"], rmsnorm["workloads"], len(rmsnorm["solutions"])) == ("rmsnorm", 4, 11)
    solutions = here("list", "--local", root, "--definitions", "rmsnorm_h4096", "--solutions", "--format", "json").json
    assert {
        "name": "cpp_rmsnorm_h4096",
        "definition": "rmsnorm_h4096",
        "author": "cpp",
        "language": "cpp",
    } in solutions["solutions"]
    workloads = here("list", root, "--definitions", "rmsnorm_h4096", "--workloads", "--format", "json").json[
        "workloads"
    ]
    assert [workload["axes"] for workload in workloads] == [{"batch_size": size} for size in (1, 7, 64, 4)]
    evaluators = here("list", "--evaluators", "--local", root, "--format", "json").json["definitions"]
    chosen = {entry["name"]: entry["evaluator"]["name"] for entry in evaluators}
    assert chosen["top_k_top_p_sampling_from_probs_v32000"] == "SamplingEvaluator"
    assert chosen["rope_with_cos_sin_cache_neox_style_d128_rd128"] == "DefaultEvaluator"


def test_validate_finds_nothing(here, root, done, traces):
    document = here("validate", root, "--format", "json")
    assert document.code == 0, document
    assert_has(document.json, "roots checks definitions solutions workloads traces issues coverage")
    assert document.json["issues"] == []
    counts = {key: document.json[key] for key in ("definitions", "solutions", "workloads", "traces")}
    assert counts == {"definitions": 16, "solutions": 69, "workloads": 48, "traces": len(traces)}
    assert document.json["checks"] == ["layout", "definition", "workload", "solution", "trace"]
    assert "0 errors, 0 warnings" in here("validate", root).text


def test_reports_of_a_real_run_have_a_row_each(here, root, done, traces):
    passed = {(t["definition"], t["workload"]["uuid"]) for t in traces if t["evaluation"]["status"] == "PASSED"}
    best = here("report", "best", root, "--format", "json").json["rows"]
    assert {(row["definition"], row["workload"]) for row in best} == passed
    summary = here("report", "summary", root, "--format", "json").json["rows"]
    assert {row["solution"] for row in summary} == {trace["solution"] for trace in traces}


def test_a_recorded_job_is_judged_again_on_its_inputs(here, root, done):
    """docs/tutorial.md (8): --replay judges the job of a line and writes nothing."""
    path = root / "traces/plain/gemm/gemm_n128_k4096.jsonl"
    before = path.read_bytes()
    again = here("run", root, "--replay", f"{path}:1", "--format", "json", *QUICK)
    assert again.code == 0, again
    (job,) = again.json["jobs"]
    assert job["solution"] == "plain_gemm_n128_k4096"
    assert job["status"] == "PASSED" or is_noise(job)
    assert path.read_bytes() == before
