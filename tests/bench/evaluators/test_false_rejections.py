"""The script that counts wrong verdicts: right solutions pass, mutants do not, one wrong verdict is exit code 1."""

from __future__ import annotations

import sys

import pytest

from benchmarks.false_rejections import main

pytestmark = pytest.mark.cpu

FLAGS = ["--device", "cpu", "--no-save", "--seeds", "1", "--op-types", "gdn"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["moe", "--rows", "right"], "of 34 verdicts"),
        (["moe", "--rows", "mutants"], "of 47 verdicts"),
    ],
)
def test_it_counts_no_wrong_verdict(more, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["false_rejections", *FLAGS, *more])
    assert main() == 0
    words = capsys.readouterr().out.splitlines()[-1].split()
    assert words[1:] == ["0", "held:", "at", "most", "0", *said.split()]
