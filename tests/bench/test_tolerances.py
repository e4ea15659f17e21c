"""What a trace set says of how its own definitions are judged, and whose word beats whose."""

import os
import pickle
from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.tolerances import TOLERANCES_FILE
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import ConfigError
from tests.kit.make import make_definition, write_trace_set

pytestmark = pytest.mark.cpu
MOE = SimpleNamespace(name="moe_e8", op_type="moe")


def a_set(root, text, *names):
    root.mkdir(exist_ok=True)
    (root / TOLERANCES_FILE).write_text(text)
    files = {name: root / "definitions" / f"{name}.json" for name in names or ("moe_e8",)}
    return SimpleNamespace(roots=[root], definition_files=files)


def resolve(config):
    resolved = config.resolve_eval_config(MOE)
    return resolved.rtol, resolved.required_matched_ratio


def test_a_sets_word_lies_between_the_bundled_settings_and_the_users(tmp_path):
    found = a_set(tmp_path, "moe_e8:\n  rtol: 0.5\n  required_matched_ratio: 0.5\n")
    assert resolve(BenchmarkConfig.default()) == (1e-2, 0.95)
    for config, rtol in (
        (BenchmarkConfig.default(), 0.5),
        (BenchmarkConfig(), 0.5),
        (BenchmarkConfig.default(rtol=0.125), 0.125),
        (BenchmarkConfig(op_type_config={"moe": {"rtol": 0.25}}), 0.25),
        (BenchmarkConfig.default(definition_config={"moe_e8": {"rtol": 0.75}}), 0.75),
    ):
        judged = config.for_set(found)
        assert resolve(judged) == resolve(pickle.loads(pickle.dumps(judged))) == (rtol, 0.5)


def test_another_set_takes_the_place_of_the_first_and_none_judges_the_definitions_of_another(tmp_path):
    first = a_set(tmp_path / "first", "moe_e8:\n  rtol: 0.5\n")
    second = a_set(tmp_path / "second", "moe_e8:\n  atol: 0.5\n")
    config = BenchmarkConfig.default().for_set(first).for_set(second)
    assert resolve(config)[0] == 1e-2
    assert config.resolve_eval_config(MOE).origins["atol"] == f"{tmp_path / 'second' / TOLERANCES_FILE}: moe_e8"
    # Else a set that brings a solution could loosen what the solution is held to.
    overlay = a_set(tmp_path / "overlay", "moe_e8:\n  rtol: 1000.0\n", "its_own")
    first.roots += overlay.roots
    first.definition_files |= overlay.definition_files
    assert resolve(BenchmarkConfig.default().for_set(first))[0] == 0.5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("moe_e8:\n  rtoll: 1\n", "moe_e8.rtoll.*line 2.*did you mean 'rtol'"),
        ("moe_e8:\n  atol: -1\n", "moe_e8.atol.*line 2"),
        ("- moe_e8\n", "a mapping"),
        (os.mkfifo, "this is a pipe"),
        (lambda path: path.symlink_to(path.with_name("nowhere")), "no such file"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name_and_line(tmp_path, text, said):
    found = a_set(tmp_path, text if isinstance(text, str) else "")
    if not isinstance(text, str):
        (tmp_path / TOLERANCES_FILE).unlink()
        text(tmp_path / TOLERANCES_FILE)
    with pytest.raises(ConfigError, match=f"(?s){TOLERANCES_FILE}.*{said}"):
        BenchmarkConfig.default().for_set(found)


@pytest.fixture
def place(tmp_path):
    """A set, its one definition, and its tolerances file, which says two things of it."""
    write_trace_set(tmp_path, definitions=[make_definition()], solutions=[], workloads=[])
    definition = next(iter(TraceSet.from_path(tmp_path).definitions.values()))
    file = tmp_path / TOLERANCES_FILE
    file.write_text(f"{definition.name}:\n  rtol: 0.5\n  atol: 0.125\n")
    return str(tmp_path), definition, file


def test_an_engine_reads_it_and_config_show_leaves_out_what_a_users_op_type_beats(place, tmp_path, capsys):
    root, definition, _ = place
    assert Benchmark(TraceSet.from_path(root), BenchmarkConfig()).config.resolve_eval_config(definition).rtol == 0.5
    users = tmp_path / "mine.yaml"
    users.write_text(f"op_type_config:\n  {definition.op_type}:\n    rtol: 0.25\n")
    assert main(["config", "show", "--local", root, "--config", str(users)]) == 0
    out = capsys.readouterr().out
    assert "0.125" in out
    assert "0.5" not in out.split(f"definition_config.{definition.name}", 1)[1]


def test_run_and_validate_tell_of_it_and_of_what_is_wrong(place, capsys):
    root, definition, file = place
    file.write_text(f"{definition.name}:\n  rtol: 0.5\nmisspelt:\n  rtol: 0.5\n")
    warning = f"warning: {file}: misspelt: this set has no such definition"
    assert main(["run", "--local", root, "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert f"note: {file} says how 1 definition is judged" in said
    assert warning in said
    assert main(["validate", "--local", root]) == 0
    assert warning in capsys.readouterr().out
    file.write_text(f"{definition.name}:\n  rtol: 0.5\n  atol: -1\n")
    assert main(["validate", "--local", root]) == 1
    assert f"error: {file}: {definition.name}.atol (line 3)" in capsys.readouterr().out
    assert main(["run", "--local", root, "--dry-run"]) == 2
