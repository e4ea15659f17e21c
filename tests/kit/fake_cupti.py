"""A CUPTI that keeps a log: the Python package, and the library under it, with records that a test lays down."""

import ctypes
import enum
from struct import pack

import numpy

from flashinfer_bench.timing.cupti import Completed, Requested

RECORD_BYTES = 40
FIELDS = {
    "kind": ("u4", 0),
    "correlation_id": ("u4", 4),
    "stream_id": ("u4", 32),
    "start": ("u8", 8),
    "end": ("u8", 16),
    "name": ("u8", 24),
}
"""Number format and offset; not those of any real CUPTI, so that the recorder has to read the description."""


class ActivityKind(enum.IntEnum):
    """Numbers of our own: the recorder takes them from the package."""

    CONCURRENT_KERNEL = 3
    MEMCPY = 5
    MEMSET = 6
    OVERHEAD = 9


class FakeCuptiError(Exception):
    """An error of the library, with its number."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


def describe(*names):
    """Return a record's layout as cupti-python gives it."""
    formats, offsets = zip(*(FIELDS[name] for name in names), strict=True)
    return numpy.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": RECORD_BYTES})


class FakeCupti:
    """Stands for the module `cupti.cupti`, in its own spelling; a method in `errors` raises what is put there."""

    ActivityKind = ActivityKind
    cuptiError = FakeCuptiError
    activity_kernel8_dtype = describe("kind", "start", "end")
    activity_kernel10_dtype = describe("kind", "correlation_id", "start", "end", "name", "stream_id")
    activity_memcpy6_dtype = describe("kind", "correlation_id", "start", "end", "stream_id")
    activity_memset4_dtype = describe("kind", "correlation_id", "start", "end", "stream_id")

    def __init__(self):
        self.errors = {}
        self.log = []
        self.on = set()
        self.pending = b""
        self.library = FakeLibrary()
        self._texts = []

    def add(self, kind, start_ns, end_ns, correlation, name=b"", stream=0):
        """Lay down a record that the next flush hands out."""
        self._texts.append(ctypes.create_string_buffer(name))
        pointer = ctypes.addressof(self._texts[-1]) if name else 0
        self.pending += pack("<IIQQQQ", kind, correlation, start_ns, end_ns, pointer, stream)

    def subscribe(self, _callback, _data):
        self._say("subscribe")
        return 1

    def unsubscribe(self, _subscriber):
        self._say("unsubscribe")

    def activity_enable(self, kind):
        self._say(f"enable {kind.name}")
        self.on.add(kind)

    def activity_disable(self, kind):
        self._say(f"disable {kind.name}")
        self.on.discard(kind)

    def activity_flush_all(self, _flag):
        self._say("flush")
        records, self.pending = self.pending, b""
        if records:
            self.library.deliver(records)

    def get_timestamp(self):
        return 42

    def _say(self, method):
        self.log.append(method)
        if method in self.errors:
            raise self.errors[method]


class FakeLibrary:
    """Stands for libcupti: hands out the buffers that it asks for."""

    def __init__(self):
        self.dropped = 0
        self.register_code = 0
        self.buffers = set()
        self._callbacks = None

    def cuptiActivityRegisterCallbacks(self, requested, completed):
        self._callbacks = requested, completed
        return self.register_code

    def cuptiActivityGetNumDroppedRecords(self, _context, _stream, dropped):
        dropped._obj.value, self.dropped = self.dropped, 0
        return 0

    def cuptiActivityGetNextRecord(self, address, valid, record):
        at = (record._obj.value or address - RECORD_BYTES) + RECORD_BYTES
        record._obj.value = at
        return 0 if at < address + valid else 12

    def deliver(self, records):
        """Fill one buffer of the recorder's and hand it back."""
        requested, completed = self._callbacks
        assert isinstance(requested, Requested)
        assert isinstance(completed, Completed)
        buffer, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
        requested(ctypes.pointer(buffer), ctypes.pointer(size), ctypes.pointer(most))
        ctypes.memmove(buffer.value, records, len(records))
        self.buffers.add(buffer.value)
        completed(None, 0, buffer.value, size.value, len(records))
