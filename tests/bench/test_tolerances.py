"""What a trace set says of how its own definitions are judged, and whose word beats whose."""

import os
import pickle
from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.tolerances import TOLERANCES_FILE, read_tolerances
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
    users = tmp_path / "my.yaml"
    users.write_text("op_type_config:\n  moe:\n    rtol: 0.25\n")
    assert resolve(BenchmarkConfig.default()) == (1e-2, 0.95)
    assert resolve(BenchmarkConfig.default().for_set(found)) == (0.5, 0.5)
    assert resolve(BenchmarkConfig().for_set(found)) == (0.5, 0.5)
    assert resolve(BenchmarkConfig.default(rtol=0.125).for_set(found)) == (0.125, 0.5)
    assert resolve(BenchmarkConfig.from_yaml(users).for_set(found)) == (0.25, 0.5)
    sections = {"moe_e8": {"rtol": 0.75}}
    config = BenchmarkConfig.default(definition_config=sections).for_set(found)
    assert resolve(config) == resolve(pickle.loads(pickle.dumps(config))) == (0.75, 0.5)
    assert resolve(config.with_overrides(rtol=0.1)) == (0.1, 0.5)
    assert [name for _, name in config.section_places("definition_config", users_only=True)] == ["moe_e8"]


def test_another_set_takes_the_place_of_the_first(tmp_path):
    first = a_set(tmp_path / "first", "moe_e8:\n  rtol: 0.5\n")
    second = a_set(tmp_path / "second", "moe_e8:\n  atol: 0.5\n")
    config = BenchmarkConfig.default().for_set(first).for_set(second)
    assert resolve(config)[0] == 1e-2
    assert config.resolve_eval_config(MOE).origins["atol"].startswith(str(tmp_path / "second" / TOLERANCES_FILE))
    none = SimpleNamespace(roots=[tmp_path / "none"], definition_files={})
    assert config.for_set(none).resolve_eval_config(MOE) == BenchmarkConfig.default().resolve_eval_config(MOE)


def test_a_set_has_no_say_in_the_definitions_of_another(tmp_path):
    """Else a set that brings a solution could loosen what the solution is held to."""
    honest = a_set(tmp_path / "honest", "moe_e8:\n  rtol: 0.001\n")
    overlay = a_set(tmp_path / "overlay", "moe_e8:\n  rtol: 1000.0\n", "its_own")
    both = SimpleNamespace(
        roots=[*honest.roots, *overlay.roots], definition_files={**overlay.definition_files, **honest.definition_files}
    )
    assert resolve(BenchmarkConfig.default().for_set(both))[0] == 0.001


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("moe_e8:\n  iterations: 1\n", "moe_e8.iterations.*line 2.*unknown key"),
        ("moe_e8:\n  rtoll: 1\n", "moe_e8.rtoll.*line 2.*did you mean 'rtol'"),
        ("moe_e8:\n  atol: -1\n", "moe_e8.atol.*line 2"),
        ("rtol: 1\n", "rtol"),
        ("- moe_e8\n", "a mapping"),
        ("moe_e8: [", "not YAML"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name_and_line(tmp_path, text, said):
    found = a_set(tmp_path, text)
    with pytest.raises(ConfigError, match=f"(?s){TOLERANCES_FILE}.*{said}"):
        BenchmarkConfig.default().for_set(found)


def test_a_file_that_is_none_is_not_passed_over(tmp_path):
    (tmp_path / TOLERANCES_FILE).symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no such file"):
        BenchmarkConfig.default().for_set(SimpleNamespace(roots=[tmp_path], definition_files={}))


@pytest.fixture
def folder(tmp_path):
    write_trace_set(tmp_path, definitions=[make_definition()], solutions=[], workloads=[])
    return tmp_path


def name_in(folder):
    return next(iter(TraceSet.from_path(folder).definitions))


def test_an_engine_reads_it_whatever_its_configuration(folder):
    name = name_in(folder)
    (folder / TOLERANCES_FILE).write_text(f"{name}:\n  rtol: 0.5\n")
    trace_set = TraceSet.from_path(folder)
    for config in (None, BenchmarkConfig.default(), BenchmarkConfig()):
        engine = Benchmark(trace_set, config)
        assert engine.config.resolve_eval_config(trace_set.definitions[name]).rtol == 0.5


def test_config_show_leaves_out_what_a_users_op_type_beats(folder, capsys):
    name = name_in(folder)
    op_type = TraceSet.from_path(folder).definitions[name].op_type
    (folder / TOLERANCES_FILE).write_text(f"{name}:\n  rtol: 0.5\n  atol: 0.125\n")
    users = folder / "mine.yaml"
    users.write_text(f"op_type_config:\n  {op_type}:\n    rtol: 0.25\n")
    assert main(["config", "show", "--local", str(folder), "--config", str(users)]) == 0
    out = capsys.readouterr().out
    assert "0.125" in out
    assert "0.25" in out
    assert "0.5" not in out.split(f"definition_config.{name}", 1)[1]


def test_run_and_config_show_tell_of_it_and_validate_of_what_is_wrong(folder, capsys):
    name, file = name_in(folder), folder / TOLERANCES_FILE
    file.write_text(f"{name}:\n  rtol: 0.5\nmisspelt:\n  rtol: 0.5\n")
    assert main(["run", "--local", str(folder), "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert f"note: {file} says how 1 definition is judged" in said
    assert f"warning: {file}: misspelt: this set has no such definition" in said
    assert main(["config", "show", "--local", str(folder), "--definition", name]) == 0
    assert f"{file}: {name}\n" in capsys.readouterr().out
    assert main(["config", "show", "--local", str(folder)]) == 0
    assert f"{file}: {name}\n" in capsys.readouterr().out
    assert main(["validate", "--local", str(folder)]) == 0
    assert f"warning: {file}: misspelt: this set has no such definition" in capsys.readouterr().out
    file.write_text(f"{name}:\n  rtol: 0.5\n  atol: -1\n")
    assert main(["validate", "--local", str(folder)]) == 1
    assert f"error: {file}: {name}.atol (line 3)" in capsys.readouterr().out
    assert main(["run", "--local", str(folder), "--dry-run"]) == 2


def test_validate_and_run_agree_on_what_a_set_says_of_another_sets_definitions(folder, capsys, tmp_path_factory):
    overlay, name = tmp_path_factory.mktemp("overlay"), name_in(folder)
    file = overlay / TOLERANCES_FILE
    file.write_text(f"{name}:\n  rtol: 0.5\n")
    said = f"warning: {file}: {name}: this set has no such definition; what a set says counts for its own"
    for command in (["validate"], ["run", "--dry-run"]):
        assert main([*command, "--local", str(folder), "--local", str(overlay)]) == 0
        told = capsys.readouterr()
        assert said in told.out + told.err


def test_a_pipe_in_its_place_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / TOLERANCES_FILE)
    with pytest.raises(ConfigError, match="this is a pipe"):
        read_tolerances(tmp_path)
