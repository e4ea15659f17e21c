"""Numbers on the command line of `perf` that no kernel can be given: nan, zero where something is divided by it."""

from __future__ import annotations

import shlex

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.cli.perf.cases import read_requests
from flashinfer_bench.cli.perf.flags import finite_number
from flashinfer_bench.errors import Misuse
from flashinfer_bench.routines.case.support import Platform
from flashinfer_bench.routines.table import ROUTINES
from tests.routines.small import SMALL

CPU = Platform("a CPU", None, {}, frozenset())
FLOATS = [(name, flag) for name, routine in ROUTINES.items() for flag in routine.flags if flag.kind == "float"]
NAMES = {"rope_scale", "rope_theta", "low_freq_factor", "high_freq_factor", "scale", "eps", "global_scale"} | {
    *("top_p", "min_p", "temperature", "routed_scaling_factor"),
}
LLAMA = f"--routine apply_llama31_rope {SMALL['apply_llama31_rope']}"


def ask(routine, *words):
    return read_requests(["--routine", routine, *shlex.split(SMALL[routine]), "--backends", "torch", *words], None, CPU)


def test_these_are_the_numbers_that_routines_take():
    assert {flag.name for _, flag in FLOATS} == NAMES


@pytest.mark.parametrize(("routine", "flag"), FLOATS, ids=[f"{name}-{flag.name}" for name, flag in FLOATS])
def test_a_number_that_is_none_is_refused_and_named(routine, flag):
    for value in ("nan", "inf", "-inf", "1e999"):
        with pytest.raises(Misuse, match=rf"--{flag.name}: needs a finite number, not '{value}'"):
            ask(routine, f"--{flag.name}={value}")
    for value in ("-1", "1e31"):
        with pytest.raises(Misuse, match=rf"--{flag.name} .*: must be (above|at least) 0"):
            ask(routine, f"--{flag.name}={value}")


@pytest.mark.parametrize(
    ("routine", "flag", "words"),
    [
        ("apply_rope", "--rope_scale 0", "--rope_scale 0: must be above 0"),
        ("rmsnorm_quant", "--scale 0", "--scale 0: must be above 0"),
        ("rmsnorm_quant", "--scale 1e-50", "--scale 1e-50: must be above 0, from 1e-30 to 1e30"),
        ("softmax", "--temperature 0", "--temperature 0: must be above 0"),
        ("nvfp4_quantize", "--global_scale 0", "--global_scale 0: must be above 0"),
        ("top_p_renorm_probs", "--top_p 1.5", "--top_p 1.5: must be above 0, from 1e-30 to 1"),
        ("top_p_renorm_probs", "--top_p 0", "--top_p 0: must be above 0"),
        ("min_p_sampling_from_probs", "--min_p 1", "--min_p 1: must be at least 0, and below 1"),
        ("rmsnorm", "--eps -0.5", "--eps -0.5: must be at least 0"),
        ("apply_llama31_rope", "--low_freq_factor 4", "--high_freq_factor 4.0: must be above --low_freq_factor 4"),
    ],
)
def test_what_would_make_nan_is_misuse_and_says_what_is_allowed(routine, flag, words, capsys):
    argv = ["perf", "--routine", routine, *SMALL[routine].split(), "--backends", "torch", *flag.split()]
    assert main(argv) == 2
    ended = capsys.readouterr()
    assert ended.out == ""
    assert words in ended.err


@pytest.mark.parametrize(
    ("routine", "words"),
    [
        ("top_p_renorm_probs", ["--top_p", "1"]),
        ("min_p_sampling_from_probs", ["--min_p", "0"]),
        ("rmsnorm", ["--eps", "0"]),
        ("softmax", ["--temperature", "1e-30"]),
        ("apply_llama31_rope", ["--low_freq_factor", "2", "--high_freq_factor", "3"]),
    ],
)
def test_the_ends_of_a_range_belong_to_it(routine, words):
    assert ask(routine, *words)[0].case is not None


def test_a_line_with_such_a_number_is_reported_and_costs_no_other(tmp_path):
    path = tmp_path / "list.txt"
    lines = [f"{LLAMA} --rope_scale 0", f"{LLAMA} --rope_theta nan", f"{LLAMA} --high_freq_factor 1", LLAMA]
    path.write_text("\n".join(lines))
    assert [request.problem for request in read_requests([], str(path), CPU)] == [
        "--rope_scale 0: must be above 0, from 1e-30 to 1e30",
        "--rope_theta: needs a finite number, not 'nan'; see flashinfer-bench perf --help",
        "--high_freq_factor 1: must be above --low_freq_factor 1.0",
        None,
    ]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("nan", "--timeout: needs a finite number, not 'nan'"),
        ("inf", "--timeout: needs a finite number, not 'inf'"),
        ("0", "--timeout 0: must be above 0 s"),
        ("1e300", "must be at most 1000000 s"),
    ],
)
def test_a_timeout_is_a_time(value, words, capsys):
    assert main(["perf", "--routine", "rmsnorm", *SMALL["rmsnorm"].split(), "--timeout", value]) == 2
    assert words in capsys.readouterr().err


def test_whole_numbers_stay_whole_as_long_as_torch_can_hold_them():
    assert (repr(finite_number("8")), repr(finite_number("8.5")), repr(finite_number("1e30"))) == ("8", "8.5", "1e+30")
