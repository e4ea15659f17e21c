"""How a process ended, in words."""

import pytest

from flashinfer_bench.base.exits import describe_exit


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-9, "was killed by SIGKILL"),
        (-99, "was killed by signal 99"),
        (None, "ended (its exit code is not known)"),
    ],
)
def test_every_end_has_words(code, said):
    assert describe_exit(code) == said
