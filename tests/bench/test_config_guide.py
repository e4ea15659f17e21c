"""docs/configuration.md: the example is one, and no key is left out."""

import re

import pytest

from flashinfer_bench.bench.config import KNOWN_OP_TYPES, BenchmarkConfig
from tests.conftest import CHECKOUT

GUIDE = (CHECKOUT / "docs" / "configuration.md").read_text()


def test_the_example_is_a_configuration(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text(re.search(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)[1])
    config = BenchmarkConfig.from_yaml(file)
    assert (config.iterations, config.definition_config["rmsnorm_h4096"].rtol) == (100, 0.001)


@pytest.mark.parametrize("name", BenchmarkConfig.model_fields)
def test_every_key_is_named(name):
    keys = [row.split("|")[1] for row in GUIDE.splitlines() if row.startswith("|")]
    assert any(f"`{name}`" in cell for cell in keys)


def test_the_known_op_types_are_named():
    assert f"({', '.join(KNOWN_OP_TYPES)})" in GUIDE
