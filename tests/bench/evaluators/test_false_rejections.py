"""The script that counts wrong verdicts: right solutions pass, wrong twins do not, one wrong verdict is exit code 1."""

from __future__ import annotations

import sys

import pytest

from benchmarks.bench_false_rejections import main

pytestmark = pytest.mark.cpu

FLAGS = ["--device", "cpu", "--op-types", "gdn", "moe", "--seeds", "2"]


@pytest.mark.parametrize(
    ("more", "said"), [([], "0 of 68 verdicts"), (["--twins", "--seeds", "1"], "0 of 47 verdicts")]
)
def test_it_counts_no_wrong_verdict(more, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench_false_rejections", *FLAGS, *more])
    assert main() == 0
    assert said in capsys.readouterr().out.splitlines()[-1]
