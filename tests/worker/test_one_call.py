"""A solution called as a program of its own, in the calling style that it shows."""

import json
import sys

import pytest

from flashinfer_bench.worker import one_call

pytestmark = pytest.mark.cpu
SOURCES = {
    "value": "run = lambda *args: 1",
    "dps": "def fill(x, y):\n    y.fill_(x)\nrun = lambda *args: fill(*args)",
    "wrong": "def fail(*args):\n    raise ValueError(len(args))\nrun = lambda *args: fail(*args)",
}


@pytest.mark.parametrize(("name", "told"), [("value", {"called": True}), ("dps", {"called": True}), ("wrong", None)])
def test_a_style_that_nothing_tells_is_shown_by_a_call(tmp_path, monkeypatch, name, told):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "main.py").write_text(SOURCES[name])
    order = {
        "directory": str(tmp_path),
        "entry": "main.py",
        "symbol": "run",
        "kind": "python",
        "device": "cpu",
        "style": "value",
        "style_is_settled": False,
        "arguments": {"x": {"scalar": 2}},
        "outputs": [{"shape": [2], "dtype": "float32"}],
        "warm_up_calls": 1,
        "outcome": str(tmp_path / "outcome.json"),
    }
    (tmp_path / "order.json").write_text(json.dumps(order))
    code = one_call.main([str(tmp_path / "order.json")])
    outcome = json.loads((tmp_path / "outcome.json").read_text())
    assert code == (0 if told else 1)
    assert outcome == told if told else "ValueError: 2" in outcome["error"]
