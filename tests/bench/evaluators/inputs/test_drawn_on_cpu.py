"""Random normal inputs are drawn anew for each call on a CPU: no two calls share anything but their distribution."""

import numpy as np
import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs import writer as writer_module
from flashinfer_bench.bench.evaluators.inputs.contents import Contents, VariedInput
from flashinfer_bench.bench.evaluators.inputs.threads import one_thread
from flashinfer_bench.bench.evaluators.inputs.writer import TorchWriter, looks_drawn

pytestmark = pytest.mark.cpu
KEYS = np.array([5, 2**62 + 1], np.uint64)


def draw(dtype, count, deviation=3.0):
    """Return two rows, each by a key of its own, as float64."""
    rows = torch.zeros(2, count, dtype=dtype)
    TorchWriter().draw_rows(list(rows), KEYS, deviation)
    return rows.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_are_normal_of_the_asked_deviation_and_have_nothing_to_do_with_one_another(dtype):
    assert looks_drawn(draw(dtype, 20_000))
    assert not looks_drawn(draw(dtype, 20_000, deviation=2.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_are_drawn_in_threads_and_get_the_same_values(dtype, monkeypatch):
    monkeypatch.setattr(writer_module, "DRAWN_TOGETHER", 1000)
    monkeypatch.setattr(writer_module, "FEW_ELEMENTS", 0)
    threads = torch.get_num_threads()
    together = draw(dtype, 5_500)
    assert torch.get_num_threads() == threads
    monkeypatch.setattr(writer_module, "FEW_PIECES", 100)
    assert torch.equal(together, draw(dtype, 5_500))
    pieces = together[0].split(1000)
    assert all(not torch.equal(pieces[0], piece) for piece in pieces[1:5])


def test_calls_of_a_normal_input_are_no_products_of_its_base():
    base = torch.randn(4096)
    contents = Contents([base], [VariedInput("x", "scaled", deviation=1.0)], seed=3, base_number=0)
    given, one, other, again = (values[0] for values in contents.make_all([0, 1, 2, 1]))
    assert torch.equal(given, base)
    assert torch.equal(one, again)
    assert contents.differs
    signs = [(value > 0).float() for value in (base, one, other)]
    for first, second in ((0, 1), (1, 2)):
        spectra = torch.fft.rfft(signs[first] - 0.5) * torch.fft.rfft(signs[second] - 0.5).conj()
        alike = torch.fft.irfft(spectra).abs().max() / 1024  # 1 where one is the other moved along
        assert alike < 0.2


def test_other_inputs_are_made_of_their_base():
    base = torch.rand(4096) + 1.0
    contents = Contents([base], [VariedInput("x", "scaled")], seed=3, base_number=0)
    made = contents.make(1)[0]
    assert 0.7 < float(made.min()) < float(made.max()) < 2.6


def test_one_thread_is_given_back_also_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(KeyError), one_thread():
        assert torch.get_num_threads() == 1
        raise KeyError
    assert torch.get_num_threads() == before
