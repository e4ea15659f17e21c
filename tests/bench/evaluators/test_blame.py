"""What becomes of an error in code that is not ours."""

import pytest

from flashinfer_bench.bench.evaluators.blame import Blame
from flashinfer_bench.errors import ConfigError, DataSetError


def explain(error):
    return ConfigError(f"the plug-in failed: {error}")


def fail(error):
    with Blame(explain):
        raise error


@pytest.mark.parametrize("error", [ValueError("no axis"), SystemExit("no axis")])
def test_what_fails_is_explained(error):
    with pytest.raises(ConfigError, match="the plug-in failed: no axis") as raised:
        fail(error)
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("error", [DataSetError("ours"), KeyboardInterrupt()])
def test_an_error_of_ours_and_an_interrupt_go_on_as_they_are(error):
    with pytest.raises(type(error)) as raised:
        fail(error)
    assert raised.value is error
