"""Which input a call has changed: found for all calls of a request with one wait for the device."""

from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.runner.workers.calling import CallableKernel
from flashinfer_bench.bench.runner.workers.claims import OutputSpec
from flashinfer_bench.bench.runner.workers.kernel_task import KernelMetadata, KernelTask, MeasurePlan, SessionTools
from flashinfer_bench.errors import SolutionFailure
from tests.kit.operations import counting_operations

pytestmark = pytest.mark.cpu
NAMES = ["x", "scale", "w"]
INPUTS = [torch.arange(5.0), 0.5, torch.arange(12, dtype=torch.int8).view(3, 4)]


@pytest.fixture
def open_kernel(arena):
    """Return a kernel whose calls, made in this process, write where a function of a place's number and inputs says."""

    def opened(call=lambda index, inputs: None, **task):
        kernel = None

        def ask(verb, expected, limit_s, **fields):
            for index in fields["indices"] if verb == "calls" else ():
                call(index, kernel._places.inputs(index))
            return SimpleNamespace(returned=None)

        fields = {"timeout_seconds": 60.0, "plan": MeasurePlan(2, 5, 1.0), "vary": None, **task}
        asked = KernelTask(NAMES, [OutputSpec("y", (5,), torch.float32)], **fields)
        worker = SimpleNamespace(ask=ask, has_setup=False, mapped=None)
        kernel = CallableKernel(worker, SessionTools(arena, None, lambda: None), asked, KernelMetadata("s", "d", True))
        return kernel

    return opened


def change(*which):
    """Return a call that changes inputs in some places, told as pairs of a place and an input."""

    def call(index, inputs):
        for at, name in which:
            if at == index:
                inputs[NAMES.index(name)].view(-1)[-1] += 1

    return call


def test_inputs_that_stay_as_they_were_are_found_so_with_one_wait(open_kernel):
    kernel = open_kernel()
    calls = [(INPUTS, [INPUTS[0].clone(), None, INPUTS[2].clone()]) for _ in range(3)]
    with counting_operations() as counted:
        kernel._check_inputs_intact(calls)
    assert counted.waits() == 1
    calls[1][1][2].view(-1)[-1] += 1
    with pytest.raises(SolutionFailure, match=f"input '{NAMES[2]}'"):
        kernel._check_inputs_intact(calls)


@pytest.mark.parametrize("name", ["x", "w"])
@pytest.mark.parametrize("index", [0, 2, 3])
def test_the_input_that_was_changed_is_named_whichever_call_did_it(open_kernel, name, index):
    kernel = open_kernel(change((index, name)))
    with pytest.raises(SolutionFailure, match=f"input '{name}' was changed by the call") as failure:
        kernel._take_calls(INPUTS, 4)
    assert failure.value.status == "INCORRECT_NUMERICAL"


def test_of_several_changes_the_first_call_s_first_one_is_told(open_kernel):
    kernel = open_kernel(change((3, "x"), (1, "w"), (2, "x")))
    with pytest.raises(SolutionFailure, match="input 'w'"):
        kernel._take_calls(INPUTS, 4)


@pytest.mark.parametrize("task", [{"may_write_inputs": True}, {"in_out_inputs": frozenset(["x"])}], ids=["any", "x"])
def test_inputs_that_may_be_written_are_let_pass(open_kernel, task):
    assert len(open_kernel(change((1, "x")), **task)._take_calls(INPUTS, 4)) == 4


def test_others_beside_an_input_that_may_be_written_are_not(open_kernel):
    with pytest.raises(SolutionFailure, match="input 'w'"):
        open_kernel(change((1, "x"), (1, "w")), in_out_inputs=frozenset(["x"]))._take_calls(INPUTS, 4)


@pytest.mark.parametrize("count", [1, 4, 8])
def test_calls_of_a_request_are_checked_with_one_wait(open_kernel, count):
    kernel = open_kernel()
    kernel._take_calls(INPUTS, count)
    with counting_operations() as counted:
        assert len(kernel._take_calls(INPUTS, count)) == count
    assert counted.waits() == 1


def test_an_input_without_elements_and_no_tensors_at_all_are_never_changed(open_kernel):
    kernel = open_kernel()
    for inputs in ([torch.zeros(0), 0.5, torch.zeros(2)], [1, 2, 3]):
        assert len(kernel._take_calls(inputs, 3)) == 3
