"""Every setting with its origin."""

import json

import pytest

from flashinfer_bench.cli.main import cli as main
from tests.cli.fake_engine import write_small_set


@pytest.fixture(autouse=True)
def no_default_set(monkeypatch):
    monkeypatch.delenv("FIB_DATASET_PATH", raising=False)


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("iterations: 5\nop_type_config:\n  test: {rtol: 0.5, extra: {rounds: 3}}\n")
    return path


@pytest.fixture
def show(capsys):
    def start(*flags):
        assert main(["config", "show", "--format", "json", *flags]) == 0
        return json.loads(capsys.readouterr().out)

    return start


def test_without_a_definition_the_top_level_and_the_sections_are_shown(show, config_file):
    shown = show("--config", str(config_file), "--atol", "0.25")
    assert shown["settings"]["iterations"] == {"value": 5, "origin": "my.yaml"}
    assert shown["settings"]["atol"] == {"value": 0.25, "origin": "flag"}
    assert shown["settings"]["num_trials"]["origin"] == "default"
    assert shown["sections"] == {
        "op_type_config.test": {
            "rtol": {"value": 0.5, "origin": "my.yaml: op_type_config.test"},
            "extra.rounds": {"value": 3, "origin": "my.yaml: op_type_config.test"},
        }
    }


def test_a_definition_gets_the_settings_that_it_runs_with(show, config_file, tmp_path):
    root = write_small_set(tmp_path / "set")
    settings = show("--config", str(config_file), "--definition", "double", "--local", str(root))["settings"]
    assert settings["rtol"] == {"value": 0.5, "origin": "my.yaml: op_type_config.test"}
    assert settings["iterations"] == {"value": 5, "origin": "my.yaml"}
    assert settings["extra.rounds"]["value"] == 3
    assert settings["timeout_seconds"]["value"] == 300


def test_a_flag_beats_the_section_of_the_file(show, config_file, tmp_path):
    root = write_small_set(tmp_path / "set")
    flags = ["--config", str(config_file), "--definition", "double", "--local", str(root), "--rtol", "0.125"]
    assert show(*flags)["settings"]["rtol"] == {"value": 0.125, "origin": "flag"}


@pytest.mark.parametrize("precision", ["0", "-0.01", "0.6"])
def test_a_precision_that_is_no_share_is_refused_in_one_line(capsys, precision):
    assert main(["config", "show", f"--precision={precision}"]) == 2
    assert capsys.readouterr().err.startswith("error: --precision: Input should be ")


def test_the_table_has_a_row_a_setting(capsys):
    assert main(["config", "show"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["iterations", "50", "default"] in rows
    assert ["required_matched_ratio", "0.95", "eval_config.yaml:", "op_type_config.moe"] in rows


def test_a_definition_needs_a_set(capsys):
    assert main(["config", "show", "--definition", "double"]) == 2
    assert "give --local PATH" in capsys.readouterr().err


def test_a_definition_that_is_not_there_is_refused_with_the_nearest(capsys, tmp_path):
    assert main(["config", "show", "--definition", "duoble", "--local", str(write_small_set(tmp_path))]) == 2
    assert capsys.readouterr().err == (
        "error: --definition: the trace set has no definition 'duoble'; did you mean 'double'?\n"
    )


def test_names_of_the_file_are_checked_against_a_named_set(capsys, tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("definition_config: {duoble: {rtol: 1}}\n")
    root = str(write_small_set(tmp_path / "set"))
    assert main(["config", "show", "--config", str(path), "--local", root]) == 2
    assert "did you mean 'double'?" in capsys.readouterr().err


def test_a_missing_file_is_one_clear_line(capsys, tmp_path):
    assert main(["config", "show", "--config", str(tmp_path / "no.yaml")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}/no.yaml: there is no such file\n"
