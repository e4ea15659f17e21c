"""The script that counts wrong verdicts: right solutions pass, wrong twins do not, one wrong verdict is exit code 1."""

from __future__ import annotations

import sys

import pytest

from benchmarks.bench_false_rejections import main
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
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
    def reject(*arguments, **keywords):
        return Rejected(EvaluationStatus.INCORRECT_NUMERICAL, "never right")

    monkeypatch.setattr(DefaultEvaluator, "check_correctness", reject)
    monkeypatch.setattr(sys, "argv", ["bench_false_rejections", *FLAGS, "--first-seed", "7", "--seeds", "1"])
    assert main() == 1
    out = capsys.readouterr().out
    assert "WRONG: plain_gdn_decode_qk2_v4_d128_k_last, seed 7, workload" in out
    assert "4 of 34 verdicts wrong: right solutions rejected" in out.splitlines()[-1]
