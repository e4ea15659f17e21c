"""The doctor tells what confines solutions here, what is missing, and what to do."""

import pytest

from flashinfer_bench.bench.runner.sandbox import Sandbox
from flashinfer_bench.examine.doctor.diagnosis import find_confinement

GAP = {"files": "this kernel's Landlock is of version 0"}


@pytest.mark.parametrize(
    ("sandbox", "asked", "state", "said", "advised"),
    [
        (Sandbox("auto", user="the session's"), "auto", "ok", "strict can be had", ""),
        (Sandbox("auto", user="the session's"), "strict", "ok", "strict can be had", ""),
        (Sandbox("auto", {}, "root without rights", ("a note",)), "auto", "note", "root without rights", "a note"),
        (Sandbox("auto", GAP), "auto", "note", "files: this kernel", "container"),
        (Sandbox("auto", GAP), "strict", "broken", "files: this kernel", "container"),
        (Sandbox("auto", GAP), "off", "note", "off: ", "auto"),
    ],
)
def test_each_state_is_told_with_advice(sandbox, asked, state, said, advised):
    (finding,) = find_confinement(sandbox, asked)
    assert (finding.topic, finding.state) == ("sandbox", state)
    assert said in finding.text
    assert advised in finding.advice
