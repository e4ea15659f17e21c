"""A solution called as a program of its own, in the calling style that it shows."""

import json
import sys

import pytest

from flashinfer_bench.worker import one_call

pytestmark = pytest.mark.cpu
SOURCES = {
    "value": ("run = lambda *args: 1", None),
    "dps": ("def fill(x, y):\n    y.fill_(x)\nrun = lambda *args: fill(*args)", None),
    "wrong": ("def fail(*args):\n    raise ValueError(len(args))\nrun = lambda *args: fail(*args)", "ValueError: 2"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_style_that_nothing_tells_is_shown_by_a_call(tmp_path, monkeypatch, name):
    monkeypatch.setattr(sys, "path", list(sys.path))
    source, error = SOURCES[name]
    (tmp_path / "main.py").write_text(source)
    outcome, order = tmp_path / "outcome.json", tmp_path / "order.json"
    place = {"directory": str(tmp_path), "entry": "main.py", "symbol": "run", "kind": "python", "device": "cpu"}
    style = {"style": "value", "style_is_settled": False, "warm_up_calls": 1, "outcome": str(outcome)}
    values = {"arguments": {"x": {"scalar": 2}}, "outputs": [{"shape": [2], "dtype": "float32"}]}
    order.write_text(json.dumps(place | style | values))
    assert one_call.main([str(order)]) == (1 if error else 0)
    told = json.loads(outcome.read_text())
    assert told == {"called": True} if error is None else error in told["error"]
