"""CUPTI's records and refusals, with a CUPTI of our own."""

import pytest

from flashinfer_bench.timing.cupti import CuptiRecorder, RecordsLost
from flashinfer_bench.timing.timeline import Operation
from tests.kit.fake_cupti import ActivityKind, FakeCupti, FakeCuptiError, describe

pytestmark = pytest.mark.cpu
OFF = ["disable CONCURRENT_KERNEL", "disable MEMCPY", "disable MEMSET", "flush"]
BROKEN = FakeCuptiError(999, "CUPTI_ERROR_UNKNOWN")
KERNEL = ActivityKind.CONCURRENT_KERNEL


@pytest.fixture
def recorder(cupti):
    """A recorder that is on."""
    recorder = CuptiRecorder()
    recorder.start()
    return recorder


def test_kernels_copies_and_fills_are_read_from_buffers_that_are_used_again(cupti, recorder):
    for _ in range(3):
        cupti.add(KERNEL, 100, 130, 7, b"gemm")
        cupti.add(ActivityKind.OVERHEAD, 1, 2, 3)
        cupti.add(ActivityKind.MEMCPY, 131, 140, 8, stream=13)
        cupti.add(ActivityKind.MEMSET, 141, 142, 9)
        kernel, copy = Operation("gemm", 100, 130, 7), Operation("MEMCPY", 131, 140, 8, 13)
        assert recorder.take() == [kernel, copy, Operation("MEMSET", 141, 142, 9)]
    assert (recorder.take(), recorder.now(), len(cupti.library.buffers)) == ([], 42, 1)


@pytest.mark.parametrize("fault", ["3 dropped", "1 without a time", "CUPTI_ERROR_UNKNOWN"])
def test_lost_records_are_reported_and_later_records_are_read(cupti, recorder, fault):
    cupti.add(KERNEL, 1, 2, 3, b"k")
    if fault == "3 dropped":
        cupti.library.dropped = 3
    elif fault == "1 without a time":
        cupti.add(KERNEL, 0, 0, 4, b"k")
    else:
        cupti.errors = {"flush": BROKEN}
    with pytest.raises(RecordsLost, match=fault):
        recorder.take()
    cupti.errors, cupti.pending = {}, b""
    cupti.add(KERNEL, 4, 5, 6, b"k")
    assert recorder.take() == [Operation("k", 4, 5, 6)]


@pytest.mark.parametrize(
    ("errors", "code", "reason"),
    [
        ({"subscribe": FakeCuptiError(39, "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")}, 0, "such as a profiler"),
        ({"enable MEMSET": BROKEN}, 0, "CUPTI does not record: CUPTI_ERROR_UNKNOWN"),
        ({}, 1, r"takes no buffers \(error 1\)"),
        ({"enable MEMSET": KeyboardInterrupt()}, 0, None),
    ],
    ids=["another subscriber", "enable fails", "no buffers", "interrupted"],
)
def test_a_failed_start_gives_its_reason_and_leaves_no_recording_on(cupti, errors, code, reason):
    cupti.errors, cupti.library.register_code = errors, code
    with pytest.raises(RecordsLost if reason else KeyboardInterrupt, match=reason):
        CuptiRecorder().start()
    assert cupti.on == set()
    assert "enable MEMSET" not in errors or cupti.log[-4:] == OFF


def test_a_package_whose_records_are_not_known_is_refused(cupti, monkeypatch):
    monkeypatch.setattr(FakeCupti, "activity_kernel11_dtype", describe("kind", "start", "name"), raising=False)
    with pytest.raises(RecordsLost, match="in a way that is not known"):
        CuptiRecorder()
