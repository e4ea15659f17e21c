"""Which tolerance is which.

Spec: spec/engine.md ("Evaluators", "Configuration"); docs/formats.md ("Tolerances of workloads").
"""

from __future__ import annotations

import json

import pytest

from tests.golden.face import QUICK, Face, SmallSet, is_noise, spec

RULES_OFF = ("--no-norm-rule", "--no-regimes-rule", "--format", "json")
SETTINGS = ("--atol", "0.1", "--rtol", "0.01")
"""An element fails if its error is above 0.1 and above a hundredth of what is expected."""
OFF = {"off_by_a_twentieth": 5.0, "off_by_a_thousandth": 0.1, "off_by_a_hundredth_and_more": 1.1, "right": 0.0}
"""Solution → its error where 100 is expected."""
STRICT = {"max_atol": 0.1, "max_rtol": 0.001}
"""Allows 0.2 where 100 is expected."""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    import torch

    small = SmallSet(tmp_path_factory.mktemp("tolerances"))
    small.definition(
        "hundred", "def run(x):\n    return x * 2\n", {"x": spec(["n"], "float32")}, {"y": spec(["n"], "float32")}
    )
    for uuid in ("usual", "strict"):
        small.workload("hundred", uuid, small.stored("hundred", uuid, {"x": torch.full((64,), 50.0)}))
    set_tolerance(small, STRICT)
    for name, error in OFF.items():
        small.solution("hundred", name, f"def run(x):\n    return x * 2 + {error}\n")
    return small


def set_tolerance(small, tolerance):
    path = small.root / "workloads" / "golden" / "hundred.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["workload"]["tolerance"] = tolerance
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def run(face, small, workload, *words):
    return face("run", "--local", small.root, *QUICK, *RULES_OFF, "--workloads", workload, *words)


def assert_passed(done, names):
    """Hold the solutions that passed against names; noise of the clock may take one of them out."""
    noisy = {job["solution"] for job in done.json["jobs"] if is_noise(job)}
    passed = {job["solution"] for job in done.json["jobs"] if job["status"] == "PASSED"}
    assert passed <= set(names) <= passed | noisy, done


def test_an_element_fails_if_both_errors_are_above_their_own_tolerance(face: Face, small):
    done = run(face, small, "usual", *SETTINGS)
    assert done.code == 0, done
    assert_passed(done, {"off_by_a_thousandth", "right"})


def test_a_workloads_tolerance_is_absolute_plus_relative_and_a_changed_one_is_judged_anew(face: Face, small):
    assert_passed(run(face, small, "strict"), {"off_by_a_thousandth", "right"})
    assert run(face, small, "strict", "--resume").json["plan"]["jobs"] == 0
    set_tolerance(small, STRICT | {"max_rtol": 0.1})
    again = run(face, small, "strict", "--resume")
    assert again.json["plan"]["jobs"] == len(OFF)
    assert_passed(again, OFF)
