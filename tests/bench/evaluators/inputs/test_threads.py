"""Beside a GPU our own work takes one thread, the code of definitions as many as torch has."""

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs import threads
from flashinfer_bench.bench.evaluators.reference import Reference
from tests.kit.make import make_definition

pytestmark = pytest.mark.cpu


@pytest.fixture
def kept(monkeypatch):
    """Keep this process to one thread, of three that it had."""
    before = torch.get_num_threads()
    monkeypatch.setattr(threads, "_usual", [])
    torch.set_num_threads(3)
    threads.keep_to_one_thread()
    yield
    torch.set_num_threads(before)


def test_a_process_that_is_kept_to_one_thread_has_its_usual_ones_within(kept):
    assert torch.get_num_threads() == 1
    threads.keep_to_one_thread()  # changes nothing
    with threads.usual_threads():
        assert torch.get_num_threads() == 3
        with threads.one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == 1


def test_a_process_that_is_not_has_them_anyway():
    before = torch.get_num_threads()
    with threads.usual_threads():
        assert torch.get_num_threads() == before
    assert torch.get_num_threads() == before


def test_a_reference_has_the_usual_threads_and_they_are_taken_back_where_it_raises(kept):
    tells = "import torch\ndef run(x):\n    return x * 0 + torch.get_num_threads()\n"
    definition = make_definition(inputs={"x": "float32[n]"}, outputs={"y": "float32[n]"}, reference=tells)
    assert Reference.compile(definition)([torch.ones(4)])[0].tolist() == [3.0] * 4
    assert torch.get_num_threads() == 1
    with pytest.raises(ZeroDivisionError), threads.usual_threads():
        raise ZeroDivisionError
    assert torch.get_num_threads() == 1
