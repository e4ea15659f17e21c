"""docs/cluster.md: its commands and its file are understood. Its program is run by `test_ray_cluster.py`."""

import re
import shlex

import pytest

from flashinfer_bench.bench import BenchmarkConfig
from flashinfer_bench.cli.entry import parse_command_line
from flashinfer_bench.cli.main import cli
from flashinfer_bench.cli.settings import read_config
from tests.conftest import CHECKOUT

GUIDE = (CHECKOUT / "docs" / "cluster.md").read_text()
COMMANDS = [line.strip() for line in GUIDE.splitlines() if line.startswith("    flashinfer-bench ")]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_one(line):
    args = parse_command_line(shlex.split(line)[1:])
    assert read_config(args).cluster == "ray"


def test_the_file_is_a_configuration(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text(re.search(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)[1])
    config = BenchmarkConfig.from_yaml(file)
    assert (config.cluster, config.cluster_address, config.shared_blobs) == ("ray", "10.0.0.1:6379", True)


def test_without_ray_one_line_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("flashinfer_bench.cluster.settings.importlib.util.find_spec", lambda name: None)
    code = cli(["run", "--local", str(CHECKOUT / "flashinfer-trace"), "--cluster", "ray"])
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert said.err.splitlines()[-1].endswith("pip install -e '.[cluster]'")
