"""What earlier sessions have seen of a GPU's contexts: the usual of their best ones; a strange file counts as none."""

import json

import pytest

from flashinfer_bench.bench.runner.workers.context_file import SESSIONS, ContextFile

pytestmark = pytest.mark.cpu


def test_the_usual_best_context_of_the_latest_sessions_is_known(tmp_path):
    known = ContextFile(tmp_path, "GPU-1")
    assert known.read() is None
    for link_ns in (1_760, 1_500, 1_770):
        known.add(link_ns)
    assert known.read() == 1_760
    assert ContextFile(tmp_path, "GPU-2").read() is None
    for _ in range(SESSIONS):
        known.add(1_900)
    assert known.read() == 1_900
    assert len(json.loads(known.path.read_text())["links_ns"]) == SESSIONS


LINKS = ["[0]", '["x"]', "3", "[1e999]", '"1760"', "[true]", "[1760.5]", "[-1]", "{}"]


@pytest.mark.parametrize("text", ["", "[", "{}", "1" * 5_000, *(f'{{"links_ns": {links}}}' for links in LINKS)])
def test_a_strange_file_counts_as_missing(tmp_path, text):
    known = ContextFile(tmp_path, "GPU-1")
    known.add(1_760)
    known.path.write_text(text)
    assert known.read() is None
    known.add(1_770)
    assert known.read() == 1_770
