"""A trace set's own settings for judging its definitions, and the order of the sources."""

import os
import re
from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.tolerances import merge_tolerances
from flashinfer_bench.errors import ConfigError

pytestmark = pytest.mark.cpu
FILE = "tolerances.yaml"
MOE = SimpleNamespace(name="moe_e8", op_type="moe")


def a_set(root, text, *names):
    root.mkdir(exist_ok=True)
    (root / FILE).write_text(text)
    files = {name: root / "definitions" / f"{name}.json" for name in names or ("moe_e8",)}
    return SimpleNamespace(roots=[root], definition_files=files)


def resolve(config):
    resolved = config.resolve_eval_config(MOE)
    return resolved.rtol, resolved.required_matched_ratio


def test_another_set_replaces_the_first_and_judges_no_definitions_of_other_sets(tmp_path):
    first = a_set(tmp_path / "first", "moe_e8:\n  rtol: 0.5\n")
    second = a_set(tmp_path / "second", "moe_e8:\n  atol: 0.5\n")
    config = BenchmarkConfig.default().for_set(first).for_set(second)
    assert resolve(config)[0] == 1e-2
    assert config.resolve_eval_config(MOE).origins["atol"] == f"{tmp_path / 'second' / FILE}: moe_e8"
    # Else a set that brings a solution could loosen the solution's own tolerance.
    overlay = a_set(tmp_path / "overlay", "moe_e8:\n  rtol: 1000.0\n", "its_own")
    first.roots += overlay.roots
    first.definition_files |= overlay.definition_files
    assert resolve(BenchmarkConfig.default().for_set(first))[0] == 0.5


def test_sets_are_merged_unless_their_tolerances_differ(tmp_path):
    same = "moe_e8:\n  rtol: 0.5\n"
    sets = [a_set(tmp_path / str(at), text) for at, text in enumerate((same, same, "moe_e8:\n  rtol: 0.1\n"))]
    assert merge_tolerances(sets[:2]) == same
    assert merge_tolerances([]) == ""
    said = f"{tmp_path / '2' / FILE}: moe_e8: {tmp_path / '0' / FILE} says something"
    with pytest.raises(ConfigError, match=re.escape(said)):
        merge_tolerances(sets)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("moe_e8:\n  rtoll: 1\n", "moe_e8.rtoll.*line 2.*did you mean 'rtol'"),
        ("moe_e8:\n  atol: -1\n", "moe_e8.atol.*line 2"),
        ("- moe_e8\n", "a mapping"),
        ("moe_e8: 0\n", "moe_e8.*line 1.*a mapping of keys to values is needed"),
        ("moe_e8: {}\nmoe_e8: {}\n", "this key stands on line 1 already"),
        ("{moe_e8: {}, moe_e8: {}}\n", "this key stands on line 1 already"),
        ("moe_e8: [\n", "this is not YAML"),
        (lambda path: path.write_bytes(b"\xff"), "not UTF-8 text"),
        (os.mkfifo, "this is a pipe"),
        (lambda path: path.symlink_to(path.with_name("nowhere")), "no such file"),
    ],
)
def test_unusable_settings_are_refused_by_name_and_line(tmp_path, text, said):
    found = a_set(tmp_path, text if isinstance(text, str) else "")
    if not isinstance(text, str):
        (tmp_path / FILE).unlink()
        text(tmp_path / FILE)
    with pytest.raises(ConfigError, match=f"(?s){FILE}.*{said}"):
        BenchmarkConfig.default().for_set(found)
