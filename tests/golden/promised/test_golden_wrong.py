"""Every wrong solution that ships gets its status, with the reasons that documents quote.

Spec: spec/engine.md ("Which status"), spec/trace-format.md (which parts a status has); docs/trace-set.md ("Wrong
solutions") with `expected.json`, docs/solutions.md ("Statuses"), docs/tutorial.md (5).
"""

from __future__ import annotations

import json
import shutil
from uuid import uuid4

import pytest

from tests.golden.face import BUNDLED, MARK, QUICK, WRONG, Face, is_noise, marked_processes, read_traces, wait_until

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(600)]
EXPECTED = json.loads((WRONG / "expected.json").read_text())
FILES = {path.stem: json.loads(path.read_text()) for path in (WRONG / "solutions").rglob("*.json")}
ENDLESS = [name for name, entry in EXPECTED.items() if entry["status"] == "TIMEOUT"]
HEAVY = ["memory_list_rmsnorm_h4096", "prints_a_gigabyte_rmsnorm_h4096"]
"""They fill a gigabyte, and print two: so they have runs of their own, and no job's time limit is near."""
OTHERS = [name for name in FILES if FILES[name]["author"] == "wrong" and name not in (*ENDLESS, *HEAVY)]
OWN = uuid4().hex
"""The mark of these processes, which another run of the tests does not have."""
MUTANTS = [name for name in FILES if FILES[name]["author"] == "mutant"]


def workloads_of(definition):
    (path,) = (BUNDLED / "workloads").rglob(f"{definition}.jsonl")
    return [json.loads(line)["workload"]["uuid"] for line in path.read_text().splitlines()]


def cover():
    """Return few workloads in which all mutants show: of each definition those that most mutants wait for."""
    chosen = []
    for definition in sorted({FILES[name]["definition"] for name in MUTANTS}):
        uuids = workloads_of(definition)
        waiting = {
            name: [uuid for uuid in uuids if uuid.startswith(tuple(EXPECTED[name].get("seen_in", uuids)))]
            for name in MUTANTS
            if FILES[name]["definition"] == definition
        }
        while waiting:
            best = max(uuids, key=lambda uuid: sum(uuid in seen for seen in waiting.values()))
            chosen.append(best)
            waiting = {name: seen for name, seen in waiting.items() if best not in seen}
    return chosen


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """The bundled set, and over it the wrong one, both without traces."""
    above = tmp_path_factory.mktemp("wrong")
    shutil.copytree(BUNDLED, above / "set", ignore=shutil.ignore_patterns("traces", "wrong", ".serve"))
    shutil.copytree(WRONG, above / "over", ignore=shutil.ignore_patterns("traces"))
    return above


@pytest.fixture(scope="module")
def run(sets, shared_cache):
    """Run some of the wrong solutions; verdicts come with `--no-profile-baseline`, since nobody reads times."""
    here = Face(shared_cache, sets, **{MARK: OWN})

    def run(*words):
        both = ("--local", sets / "set", "--local", sets / "over")
        return here("run", *both, *words, *QUICK, "--no-profile-baseline", "--format", "json")

    return run


@pytest.fixture(scope="module")
def others(run):
    uuids = [workloads_of(name)[0] for name in ("rmsnorm_h4096", "fused_add_rmsnorm_h1024", "gemm_n128_k4096")]
    return run("--solutions", *OTHERS, "--workloads", *uuids, "--timeout", "60")


@pytest.fixture(scope="module")
def mutants(run):
    return run("--authors", "mutant", "--workloads", *cover())


def assert_expected(done, names):
    assert done.code == 0, done
    found = {}
    for job in done.json["jobs"]:
        if not is_noise(job):
            found.setdefault(job["solution"], []).append((job["workload"], job["status"]))
    wrong = {}
    for name, verdicts in found.items():
        entry = EXPECTED[name]
        for uuid, status in verdicts:
            shows = any(uuid.startswith(prefix) for prefix in entry.get("seen_in", [""]))
            allowed = {entry["status"]} if shows else {entry["status"], "PASSED"}
            if status not in allowed:
                wrong[name, uuid] = status
    assert wrong == {}
    assert set(found) == set(names)


def test_plain_faults_get_their_statuses(others):
    assert_expected(others, OTHERS)


def test_their_reasons_and_logs_say_what_was_wrong(sets, others):
    logs = {trace["solution"]: trace["evaluation"]["log"] for trace in read_traces(sets / "over")}
    for name in OTHERS:
        assert EXPECTED[name].get("message_contains", "") in logs[name]
    told = {job["solution"]: job["reason"] for job in others.json["jobs"]}
    assert "SIGSEGV" in told["segfault_rmsnorm_h4096"] or "signal 11" in told["segfault_rmsnorm_h4096"]
    assert "NameError" in told["syntax_error_rmsnorm_h4096"] or "SyntaxError" in told["syntax_error_rmsnorm_h4096"]
    assert "1 of 128 elements differ" in told["one_wrong_element_gemm_n128_k4096"]
    assert "output" in told["missing_output_fused_add_rmsnorm_h1024"]


def test_a_mutant_is_wrong_where_it_shows(mutants):
    assert_expected(mutants, MUTANTS)


def test_a_message_names_output_place_error_ratio_and_tolerance(mutants):
    told = {job["solution"]: job["reason"] for job in mutants.json["jobs"] if job["status"] == "INCORRECT_NUMERICAL"}
    moe = "gate_and_up_swapped_moe_fp8_block_scale_ds_routing_topk4_ng4_kg2_e8_h256_i256"
    quoted = {
        "last_row_missing_rmsnorm_h4096": (
            *("output 'output': ", "elements differ", "worst at [", "abs error", "rel error", "matched ratio"),
            *("required 1", "atol=0.01, rtol=0.01"),
        ),
        "expert_off_by_one_gemm_n128_k4096": ("got is expected, shifted to the previous column",),
        moe: ("required 0.95",),
        "token_off_by_one_top_k_top_p_sampling_from_probs_v32000": ("draws are not allowed", "top_k=", "top_p="),
        "relu_missing_dsa_topk_indexer_fp8_h64_d128_topk64_ps64": ("scores", "dsa_score_tolerance=0.002"),
    }
    assert [(name, part) for name, parts in quoted.items() for part in parts if part not in told[name]] == []


def test_endless_loops_run_out_of_time(run):
    assert set(ENDLESS) == {"endless_loop_call_rmsnorm_h4096", "endless_loop_import_rmsnorm_h4096"}
    done = run("--solutions", *ENDLESS, "--workloads", workloads_of("rmsnorm_h4096")[0], "--timeout", "3")
    assert_expected(done, ENDLESS)
    assert all("3" in job["reason"] for job in done.json["jobs"])


def test_one_that_fills_memory_or_prints_a_gigabyte_costs_its_own_job_only(run):
    words = ("--workloads", workloads_of("rmsnorm_h4096")[0], "--timeout", "120", "--worker-memory-gb", "1")
    done = run("--solutions", *HEAVY, "plain_rmsnorm_h4096", *words)
    found = {job["solution"]: job["status"] for job in done.json["jobs"] if not is_noise(job)}
    wanted = {name: EXPECTED[name]["status"] for name in HEAVY} | {"plain_rmsnorm_h4096": "PASSED"}
    assert found == {name: status for name, status in wanted.items() if name in found}
    assert set(HEAVY) <= set(found)


def test_traces_of_wrong_solutions_lie_in_their_set_and_their_logs_are_bounded(sets, others, mutants):
    assert not [path for path in (sets / "set" / "traces").rglob("*.jsonl") if "plain" not in path.parts]
    traces = read_traces(sets / "over")
    assert len(traces) >= len(others.json["jobs"]) + len(mutants.json["jobs"])
    for trace in traces:
        evaluation = trace["evaluation"]
        assert len(evaluation["log"]) < 200_000
        assert (evaluation["performance"] is None) == (evaluation["status"] != "PASSED")
        assert (evaluation["correctness"] is None) == (evaluation["status"] not in ("PASSED", "INCORRECT_NUMERICAL"))


def test_no_process_is_left(others, mutants):
    wait_until(lambda: not marked_processes(OWN), 30)


def test_require_passed_makes_a_wrong_solution_an_exit_code(run):
    words = ("--solutions", "wrong_values_gemm_n128_k4096", "--workloads", workloads_of("gemm_n128_k4096")[0])
    assert run(*words, "--require-passed", "--no-save-results").code == 1
