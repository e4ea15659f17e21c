"""What is made of what was measured."""

from dataclasses import replace

import pytest

from flashinfer_bench.examine.doctor.diagnosis import (
    find_agreement,
    find_clock,
    find_cold,
    find_gpu,
    find_languages,
    find_load,
    find_neighbours,
    find_rates,
    summarise_findings,
)
from flashinfer_bench.examine.doctor.readings import CacheCheck, Rates, Readings
from tests.doctor.visits import AT_REST, CPU, UNDER_LOAD, agreement, machine, readings

NOT_INSTALLED = "CUPTI is not installed. Try 'pip install -U cupti-python'. Falling back to CUDA events."
NO_LIBRARY = "CUPTI's library cannot be loaded: libcupti.so.13: cannot open shared object file"
FORBIDDEN = "CUPTI does not record: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
HOT = replace(AT_REST, slowed_by=("hw_thermal",))


def only(findings):
    (finding,) = findings
    return finding


def test_a_healthy_gpu_has_nothing_to_be_done():
    found = [*find_gpu(machine(), None), *find_neighbours(machine(), readings()), *find_clock(readings())]
    found += [*find_cold(readings().cache), *find_rates(readings().rates, "NVIDIA H200")]
    found += [*find_load(machine(), readings()), *find_agreement(agreement(1.002, 0.995), on_gpu=True)]
    assert {finding.state for finding in found} == {"ok"}
    assert not any(finding.advice for finding in found)
    assert summarise_findings(found, readings()) == "This machine can measure, by CUPTI with a cold or a warm L2."


@pytest.mark.parametrize(
    ("parts", "state", "words"),
    [
        ({"gpus": 0}, "note", "the driver knows none"),
        ({"gpus": 2, "torch_has_cuda": False}, "broken", "torch is a CPU build"),
        ({"gpus": 2}, "note", "CUDA_VISIBLE_DEVICES hides them"),
    ],
    ids=["no gpu", "cpu build", "hidden"],
)
def test_a_machine_without_a_usable_gpu_says_why(parts, state, words):
    finding = only(find_gpu(machine(CPU, **parts), None))
    assert finding.state == state
    assert words in finding.text


def test_a_cpu_that_was_asked_for_needs_no_gpu():
    assert not list(find_gpu(machine(CPU, torch_has_cuda=False), "cpu"))


def test_a_language_that_cannot_be_built_says_what_to_install():
    works, missing = find_languages(machine())
    assert (works.state, works.text) == ("ok", "python can be built")
    assert (missing.state, missing.topic, missing.advice) == ("note", "cuda", "install g++")


def test_other_processes_are_named_and_heat_is_told():
    crowd = tuple(range(101, 108))
    others, heat = find_neighbours(machine(processes=crowd, state=HOT), readings())
    assert (others.state, others.text) == ("note", "7 on the GPU (101, 102, 103, 104, 105, …)")
    assert "at rest: hw_thermal" in heat.text


@pytest.mark.parametrize(
    ("seen", "measured", "words"),
    [
        ((), 0, "none on the GPU"),
        ((), None, "not known: in a container"),
        ((), "not measured", "none was seen"),
        (None, 0, "the driver does not tell"),
    ],
    ids=["none", "container", "not measured", "driver"],
)
def test_no_other_processes_are_told_from_those_that_cannot_be_seen(seen, measured, words):
    found = None
    if measured != "not measured":
        found = readings(under_load=replace(UNDER_LOAD, other_processes=measured))
    finding = only(find_neighbours(machine(processes=seen), found))
    assert (finding.state, words in finding.text) == ("ok", True)


@pytest.mark.parametrize(
    ("fallback", "reason", "advice"),
    [
        (NOT_INSTALLED, "CUPTI is not installed. Try 'pip install -U cupti-python'", "install cupti-python"),
        ("another subscriber of CUPTI", "another subscriber of CUPTI", "without a profiler"),
        (NO_LIBRARY, NO_LIBRARY, "libcupti"),
        (FORBIDDEN, FORBIDDEN, "NVreg_RestrictProfilingToAdminUsers=0"),
        ("CUPTI takes no buffers (error 1)", "CUPTI takes no buffers (error 1)", "run this again"),
    ],
    ids=["not installed", "profiler", "no library", "forbidden", "anything else"],
)
def test_a_fall_back_says_why_and_what_it_costs(fallback, reason, advice):
    finding = only(find_clock(readings(method="cuda_events", fallback=fallback)))
    assert finding.state == "note"
    assert f"CUDA events ({reason}); a pair of CUDA events round nothing reads 2.0 us" in finding.text
    assert advice in finding.advice


def test_a_cpu_is_timed_by_the_wall_clock():
    cpu = Readings(method="wall", empty_call_ns=230)
    assert "230 ns" in only(find_clock(cpu)).text
    assert summarise_findings([], cpu) == "This machine can judge kernels, and time them on its CPU."


@pytest.mark.parametrize(
    ("cold", "warm", "memory", "state"),
    [(3.0, 4.4, 4.3, "ok"), (4.3, 4.4, 4.3, "broken"), (5.0, 9.0, 4.3, "broken")],
    ids=["cold", "as warm", "faster than memory"],
)
def test_a_flush_that_leaves_data_in_the_cache_is_broken(cold, warm, memory, state):
    finding = only(find_cold(CacheCheck(20_000_000, warm, cold, memory)))
    assert finding.state == state
    assert f"{cold:.2f} TB/s after a flush" in finding.text


def test_low_rates_are_told_against_the_vendors_figures():
    memory, matmul = find_rates(Rates(4.1, 300.0), "NVIDIA H200")
    assert (memory.state, memory.text) == ("ok", "4.1 TB/s by a copy, 85% of the vendor's 4.8")
    assert (matmul.state, "which is low" in matmul.text) == ("note", True)
    assert [finding.text for finding in find_rates(Rates(1.0, 2.0), "a new chip")] == ["1 TB/s by a copy", "2 TFLOP/s"]


@pytest.mark.parametrize(
    ("state", "verdict", "words"),
    [
        (UNDER_LOAD, "ok", "1700 of 1980 MHz amid a burst of matmuls, held by the power cap"),
        (replace(UNDER_LOAD, sm_mhz=900), "note", "900 of 1980"),
        (replace(UNDER_LOAD, slowed_by=("sw_thermal",)), "note", "slowed down under load: sw_thermal"),
    ],
    ids=["power cap", "low clock", "heat"],
)
def test_clocks_under_load(state, verdict, words):
    finding = only(find_load(machine(), readings(under_load=state)))
    assert finding.state == verdict
    assert words in finding.text


@pytest.mark.parametrize(
    ("ratios", "on_gpu", "state"),
    [
        ((1.01, 0.99), True, "ok"),
        ((1.03, 1.0), True, "note"),
        ((1.0, 0.95), True, "broken"),
        ((1.0, 0.5), False, "note"),
    ],
    ids=["agree", "nearly", "differ", "on a cpu"],
)
def test_twins_that_differ_cannot_be_compared(ratios, on_gpu, state):
    assert only(find_agreement(agreement(*ratios), on_gpu=on_gpu)).state == state


def test_twins_that_did_not_pass_are_broken():
    finding = only(find_agreement(agreement(problems=["RUNTIME_ERROR: boom"]), on_gpu=False))
    assert (finding.state, "boom" in finding.text) == ("broken", True)
    assert summarise_findings([finding], None) == "This machine cannot measure as it should: see A/A."
