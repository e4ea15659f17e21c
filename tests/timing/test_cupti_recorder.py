"""CUPTI's records and refusals, with a CUPTI of our own; and which clock a device gets."""

import importlib

import numpy
import pytest
import torch

from flashinfer_bench.timing import clocks
from flashinfer_bench.timing import cupti as cupti_recorder
from flashinfer_bench.timing.clocks import make_clock
from flashinfer_bench.timing.cupti import CuptiRecorder, RecordsLost, import_cupti
from flashinfer_bench.timing.measurement import EVENTS_ASKED_FOR
from flashinfer_bench.timing.timeline import Operation
from tests.kit.fake_cupti import ActivityKind, FakeCupti, FakeCuptiError, describe

pytestmark = pytest.mark.cpu
OFF = ["disable CONCURRENT_KERNEL", "disable MEMCPY", "disable MEMSET", "flush"]
BROKEN = FakeCuptiError(999, "CUPTI_ERROR_UNKNOWN")


@pytest.fixture
def cupti(monkeypatch):
    """A CUPTI that is installed and works; a test breaks it."""
    cupti = FakeCupti()
    find = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", lambda name: cupti if name == "cupti.cupti" else find(name))
    monkeypatch.setattr(cupti_recorder, "_loaded_library", lambda: cupti.library)
    return cupti


def test_kernels_copies_and_fills_are_read_from_the_buffers(cupti):
    recorder = CuptiRecorder()
    recorder.start()
    cupti.add(ActivityKind.CONCURRENT_KERNEL, 100, 130, 7, b"gemm")
    cupti.add(ActivityKind.OVERHEAD, 1, 2, 3)
    cupti.add(ActivityKind.MEMCPY, 131, 140, 8, stream=13)
    cupti.add(ActivityKind.MEMSET, 141, 142, 9)
    expected = [Operation("gemm", 100, 130, 7), Operation("MEMCPY", 131, 140, 8, 13), Operation("MEMSET", 141, 142, 9)]
    assert recorder.take() == expected
    assert recorder.take() == []
    assert recorder.now() == 42


def test_only_records_of_gpu_work_are_switched_on_and_all_of_them_off_again(cupti):
    recorder = CuptiRecorder()
    recorder.start()
    assert cupti.on == {ActivityKind.CONCURRENT_KERNEL, ActivityKind.MEMCPY, ActivityKind.MEMSET}
    recorder.stop()
    assert (cupti.on, cupti.log[-4:]) == (set(), OFF)


def test_what_was_recorded_before_the_start_is_dropped(cupti):
    recorder = CuptiRecorder()
    recorder.start()
    cupti.add(ActivityKind.CONCURRENT_KERNEL, 1, 2, 3, b"stray")
    recorder.stop()
    cupti.add(ActivityKind.CONCURRENT_KERNEL, 4, 5, 6, b"late stray")
    recorder.start()
    assert recorder.take() == []


def test_a_buffer_is_used_again(cupti):
    recorder = CuptiRecorder()
    recorder.start()
    for _ in range(5):
        cupti.add(ActivityKind.CONCURRENT_KERNEL, 1, 2, 3, b"k")
        assert len(recorder.take()) == 1
    assert len(cupti.library.buffers) == 1


def test_dropped_records_are_lost_and_later_ones_are_not(cupti):
    recorder = CuptiRecorder()
    recorder.start()
    cupti.add(ActivityKind.CONCURRENT_KERNEL, 1, 2, 3, b"k")
    cupti.library.dropped = 3
    with pytest.raises(RecordsLost, match="3 dropped"):
        recorder.take()
    cupti.add(ActivityKind.CONCURRENT_KERNEL, 4, 5, 6, b"k")
    assert recorder.take() == [Operation("k", 4, 5, 6)]


def test_records_that_were_dropped_before_the_start_are_no_loss(cupti):
    recorder = CuptiRecorder()
    recorder.start()
    cupti.library.dropped = 5
    recorder.stop()
    recorder.start()
    cupti.add(ActivityKind.CONCURRENT_KERNEL, 1, 2, 3, b"k")
    assert recorder.take() == [Operation("k", 1, 2, 3)]


def test_a_record_without_a_time_is_a_lost_one(cupti):
    recorder = CuptiRecorder()
    recorder.start()
    cupti.add(ActivityKind.CONCURRENT_KERNEL, 1, 2, 3, b"k")
    cupti.add(ActivityKind.CONCURRENT_KERNEL, 0, 0, 4, b"k")
    with pytest.raises(RecordsLost, match="1 without a time"):
        recorder.take()


def test_a_start_that_is_interrupted_leaves_nothing_on(cupti):
    cupti.errors = {"enable MEMSET": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        CuptiRecorder().start()
    assert (cupti.on, cupti.log[-4:]) == (set(), OFF)


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ({"subscribe": FakeCuptiError(39, "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")}, "such as a profiler"),
        ({"subscribe": FakeCuptiError(15, "CUPTI_ERROR_NOT_INITIALIZED")}, "CUPTI: CUPTI_ERROR_NOT_INITIALIZED"),
        ({"enable MEMCPY": BROKEN}, "CUPTI does not record: CUPTI_ERROR_UNKNOWN"),
        ({"flush": BROKEN}, "CUPTI does not record: CUPTI_ERROR_UNKNOWN"),
    ],
    ids=["another subscriber", "no subscription", "enable fails", "flush fails"],
)
def test_a_start_that_fails_says_why_and_leaves_nothing_on(cupti, errors, reason):
    cupti.errors = errors
    with pytest.raises(RecordsLost, match=reason):
        CuptiRecorder().start()
    assert cupti.on == set()


def test_an_enable_that_fails_is_followed_by_the_whole_stop(cupti):
    cupti.errors = {"enable MEMSET": BROKEN}
    with pytest.raises(RecordsLost):
        CuptiRecorder().start()
    assert cupti.log[-4:] == OFF


def test_a_library_that_takes_no_buffers_says_so(cupti):
    cupti.library.register_code = 1
    with pytest.raises(RecordsLost, match=r"takes no buffers \(error 1\)"):
        CuptiRecorder().start()
    assert cupti.on == set()


def test_a_stop_on_a_broken_device_raises_nothing_and_switches_off(cupti):
    recorder = CuptiRecorder()
    recorder.start()
    cupti.errors = {"flush": BROKEN, "disable MEMCPY": BROKEN}
    recorder.stop()
    assert cupti.log[-4:] == OFF


def test_records_that_are_not_handed_out_are_lost(cupti):
    recorder = CuptiRecorder()
    recorder.start()
    cupti.errors = {"flush": BROKEN}
    with pytest.raises(RecordsLost, match="CUPTI_ERROR_UNKNOWN"):
        recorder.take()


def test_a_package_that_does_not_describe_its_records_is_refused(cupti, monkeypatch):
    monkeypatch.delattr(FakeCupti, "activity_memset4_dtype")
    with pytest.raises(RecordsLost, match="version 13 or later does"):
        CuptiRecorder()


@pytest.mark.parametrize(
    "layout",
    [
        describe("kind", "correlation_id", "start", "name"),
        describe("kind", "start", "end", "name"),
        numpy.dtype([("kind", "u4"), ("correlation_id", "u4"), ("end", "u8"), ("start", "u8")]),
    ],
    ids=["no end", "no correlation id", "end before start"],
)
def test_a_package_whose_newest_layout_is_not_known_is_refused(cupti, monkeypatch, layout):
    monkeypatch.setattr(FakeCupti, "activity_kernel11_dtype", layout, raising=False)
    with pytest.raises(RecordsLost, match="lays records out in a way that is not known"):
        CuptiRecorder()


def test_a_library_that_cannot_be_loaded_is_refused(monkeypatch):
    def fail(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", fail)
    with pytest.raises(RecordsLost, match="cannot be loaded: libcupti"):
        cupti_recorder._loaded_library()


@pytest.fixture
def on_a_gpu(monkeypatch, gpu):
    """Have clocks made for a fake GPU, and no recorder kept from one test to the next."""
    monkeypatch.setattr(clocks, "GpuQueue", lambda _device, *, l2_cache, image: gpu)
    clocks.shared_recorder.cache_clear()
    yield torch.device("cuda", 0)
    clocks.shared_recorder.cache_clear()


def test_a_gpu_with_cupti_gets_the_clock_of_its_records(on_a_gpu, cupti):
    assert (make_clock(on_a_gpu).method, cupti.log) == ("cupti", [])


def test_the_clocks_of_a_process_share_one_recorder(on_a_gpu, cupti):
    assert make_clock(on_a_gpu)._recorder is make_clock(on_a_gpu, l2_cache="warm")._recorder


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            ModuleNotFoundError("No module named 'cupti'", name="cupti"),
            "CUPTI is not installed. Try 'pip install -U cupti-python'. Falling back to CUDA events.",
        ),
        (
            ImportError("libcupti.so.13: cannot open shared object file"),
            "cupti-python: libcupti.so.13: cannot open shared object file. Falling back to CUDA events.",
        ),
    ],
    ids=["not installed", "does not load"],
)
def test_a_gpu_without_cupti_gets_events_and_the_reason(on_a_gpu, monkeypatch, error, reason):
    def fail(_name):
        raise error

    monkeypatch.setattr(importlib, "import_module", fail)
    clock = make_clock(on_a_gpu)
    assert (clock.method, clock.facts()["fallback"]) == ("cuda_events", reason)


def test_events_on_request_are_no_fall_back_of_cupti(on_a_gpu):
    clock = make_clock(on_a_gpu, clock="cuda_events")
    assert (clock.method, clock.facts()["fallback"]) == ("cuda_events", EVENTS_ASKED_FOR)


def test_cupti_that_stops_working_falls_back_to_events_with_the_reason(on_a_gpu, cupti):
    clock = make_clock(on_a_gpu).fall_back("CUPTI lost records: 3 dropped")
    assert (clock.method, clock.facts()["fallback"]) == ("cuda_events", "CUPTI lost records: 3 dropped")


def test_a_cpu_gets_the_wall_clock():
    assert make_clock(torch.device("cpu")).method == "wall"


def test_a_start_does_not_stay_subscribed(cupti):
    CuptiRecorder().start()
    assert cupti.log[:2] == ["subscribe", "unsubscribe"]


def test_a_buffer_whose_records_are_dropped_is_used_again(cupti):
    recorder = CuptiRecorder()
    for _ in range(3):
        recorder.start()
        cupti.add(ActivityKind.CONCURRENT_KERNEL, 1, 2, 3, b"k")
        recorder.stop()
    assert len(cupti.library.buffers) == 1


def test_missing_bindings_are_told_by_the_recorder_and_not_where_they_are_imported_ahead(monkeypatch):
    asked = []

    def find(name):
        asked.append(name)
        raise ModuleNotFoundError("No module named 'cupti'", name="cupti")

    monkeypatch.setattr(importlib, "import_module", find)
    import_cupti()
    with pytest.raises(RecordsLost, match="CUPTI is not installed"):
        CuptiRecorder()
    assert asked == ["cupti.cupti"] * 2
