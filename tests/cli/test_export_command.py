"""`export apply` as it is typed: exit codes, JSON, messages, and FlashInfer's reader in a process of its own."""

import json

import pytest

from flashinfer_bench.cli.main import cli as main
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

PACKAGE = """
import os
import warnings

__version__ = "9"
assert os.environ["FLASHINFER_TRACE_APPLY"] == "1"
if os.environ["FLASHINFER_TRACE_APPLY_PATH"].endswith("/bad"):
    warnings.warn("Failed to enable trace apply: twice")
"""
SOLUTION = """
class Solution:
    @classmethod
    def from_dict(cls, raw):
        found = cls()
        found.definition = raw["definition"]
        return found
"""
APPLY = "is_enabled, enable_apply = lambda: True, lambda found: 2 * ('rmsnorm_h8' in found)\n"
READER = {"flashinfer/__init__.py": PACKAGE, "flashinfer/trace.py": SOLUTION, "flashinfer/trace_apply.py": APPLY}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in a folder with a set that has a passed solution, and a small stand-in for FlashInfer's reader."""
    monkeypatch.chdir(tmp_path)
    inputs = {"hidden_states": "bfloat16[n, 8]", "weight": "bfloat16[8]"}
    definition = make_definition("rmsnorm_h8", inputs=inputs, outputs={"output": "bfloat16[n, 8]"})
    solution = make_solution("fast", definition=definition.name, source="def run(hidden_states, weight): ...\n")
    trace = make_trace(definition=definition.name, solution="fast", workload=make_workload(inputs={}))
    write_trace_set(tmp_path / "set", READER, definitions=[definition], solutions=[solution], traces=[trace])
    return tmp_path


def test_what_was_written_and_skipped_is_told(here, capsys):
    assert main(["export", "apply", "out", "set", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["skipped"][0]["definition"] == "rmsnorm_h8"
    assert main(["export", "apply", "out", "set", "--unconfirmed"]) == 0
    said = capsys.readouterr().out
    assert "rmsnorm_h8: fast, unchanged, 2.00x, not confirmed" in said
    assert f"FLASHINFER_TRACE_APPLY_PATH={here / 'out'}" in said
    assert main(["export", "apply", "out", "set", "--unconfirmed"]) == 2
    assert "not empty" in capsys.readouterr().err
    assert main(["export", "apply", "other", "set", "--solutions", "fas"]) == 2


@pytest.mark.parametrize(("folder", "code", "said"), [("good", 0, "9 reads 1 file"), ("bad", 1, "enable trace apply")])
def test_check_asks_the_reader_in_another_process(here, capsys, monkeypatch, folder, code, said):
    monkeypatch.syspath_prepend(here / "set")
    monkeypatch.setenv("PYTHONPATH", str(here / "set"), prepend=":")
    assert main(["export", "apply", folder, "set", "--unconfirmed", "--check"]) == code
    assert said in capsys.readouterr().out


def test_check_without_flashinfer_is_misuse(here, capsys, monkeypatch):
    monkeypatch.setattr("flashinfer_bench.data.trace_apply.check.find_spec", lambda name: None)
    assert main(["export", "apply", "out", "set", "--unconfirmed", "--check"]) == 2
    assert "pip install flashinfer-python" in capsys.readouterr().err
    assert not (here / "out").exists()
