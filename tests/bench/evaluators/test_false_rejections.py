"""The script that counts wrong verdicts: right solutions pass, wrong twins do not, one wrong verdict is exit code 1."""

from __future__ import annotations

import sys

import pytest

from benchmarks import bench_false_rejections
from benchmarks.bench_false_rejections import main
from flashinfer_bench.bench.evaluators.evaluator import Rejected
from flashinfer_bench.data import EvaluationStatus

pytestmark = pytest.mark.cpu

FLAGS = ["--device", "cpu", "--op-types", "gdn", "moe", "--seeds", "2"]


@pytest.mark.parametrize(
    ("more", "said"), [([], "0 of 68 verdicts"), (["--twins", "--seeds", "1"], "0 of 47 verdicts")]
)
def test_it_counts_no_wrong_verdict(more, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench_false_rejections", *FLAGS, *more])
    assert main() == 0
    assert said in capsys.readouterr().out.splitlines()[-1]


def test_a_right_solution_that_is_rejected_is_told_with_its_seed(monkeypatch, capsys):
    class Never:
        @staticmethod
        def build_baseline(*arguments, **keywords):
            return chosen(arguments[0]).build_baseline(*arguments, **keywords)

        @staticmethod
        def check_correctness(*arguments, **keywords):
            return Rejected(EvaluationStatus.INCORRECT_NUMERICAL, "never right")

        @staticmethod
        def stress_checks(*arguments):
            return None

    chosen = bench_false_rejections.find_evaluator
    monkeypatch.setattr(bench_false_rejections, "find_evaluator", lambda definition: Never)
    monkeypatch.setattr(sys, "argv", ["bench_false_rejections", *FLAGS, "--first-seed", "7", "--seeds", "1"])
    assert main() == 1
    out = capsys.readouterr().out
    assert "WRONG: plain_gdn_decode_qk2_v4_d128_k_last, seed 7, workload" in out
    assert "4 of 4 verdicts wrong: right solutions rejected" in out.splitlines()[-1]
