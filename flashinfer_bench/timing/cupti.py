"""CUPTI's activity records of kernels, copies and fills, through cupti-python.

The package's record objects cost about 25 µs each, more than the calls that they describe. So the package is used only
to switch CUPTI on and off, and for the layout of a record. This module reads the records from CUPTI's buffers itself.
Records of API calls stay off, since they slow the host.
"""

from __future__ import annotations

import ctypes
import importlib
import re
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any, Final

from flashinfer_bench.timing.timeline import Operation

MODULE: Final = "cupti.cupti"
INSTALL: Final = "CUPTI is not installed. Try 'pip install -U cupti-python'"
BUFFER_BYTES: Final = 1 << 20
KINDS: Final = {"CONCURRENT_KERNEL": "kernel", "MEMCPY": "memcpy", "MEMSET": "memset"}
"""Kind of a record → its name in the package's descriptions."""
MULTIPLE_SUBSCRIBERS: Final = 39
"""CUPTI's error code if another subscriber, such as a profiler, is attached."""
TIMES: Final = Struct("<QQ")
NUMBER: Final = Struct("<I")
POINTER: Final = Struct("<Q")
"""Formats of a record's fields. TIMES: start and end. NUMBER: a kind, or the id of a launch or stream. POINTER: the
address of a name."""

Requested = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
Completed = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


class RecordsLost(Exception):
    """CUPTI cannot be switched on, or has dropped records. The text has the reason."""


class CuptiRecorder:
    """Records the GPU work of this process. Make one per process: CUPTI fills one set of buffers.

    Raises:
        RecordsLost: cupti-python 13 or later is not installed, or does not work here.
    """

    def __init__(self) -> None:
        try:
            self._cupti: Any = importlib.import_module(MODULE)
        except ImportError as error:
            missing = getattr(error, "name", None) or ""
            raise RecordsLost(INSTALL if missing.startswith("cupti") else f"cupti-python: {error}") from None
        self._error = self._cupti.cuptiError
        self._kinds = [getattr(self._cupti.ActivityKind, kind) for kind in KINDS]
        self._layouts = {
            int(kind): self._find_layout(name) for kind, name in zip(self._kinds, KINDS.values(), strict=True)
        }
        self._library = _loaded_library()
        self._buffers: dict[int, Any] = {}
        self._free: list[int] = []
        self._full: list[tuple[int, int]] = []
        """Address of each buffer that CUPTI has filled, and the number of valid bytes."""
        self._names: dict[int, str] = {}
        self._callbacks = (Requested(self._on_requested), Completed(self._on_completed))

    def _find_layout(self, record: str) -> tuple[int, int, int, int | None, str]:
        """Return the offsets of start, launch, stream and name in a record. The last value is the default for records
        that have no name.

        cupti-python has a description for each version of a record. The newest version is used.
        """
        pattern = re.compile(rf"activity_{record}(\d*)_dtype")
        result = [(int(match[1] or 0), match[0]) for match in map(pattern.fullmatch, dir(self._cupti)) if match]
        fields = getattr(self._cupti, max(result)[1]).fields if result else {}
        at = {name: int(field[1]) for name, field in fields.items()}
        if not {"start", "end", "correlation_id", "stream_id"} <= at.keys() or at["end"] != at["start"] + 8:
            raise RecordsLost("this cupti-python lays records out in a way that is not known here; try version 13")
        return at["start"], at["correlation_id"], at["stream_id"], at.get("name"), record.upper()

    def start(self) -> None:
        """Begin to record.

        Raises:
            RecordsLost: another subscriber of CUPTI, such as a profiler, is attached to this process.
        """
        try:
            self._cupti.unsubscribe(self._cupti.subscribe(_ignore, None))
        except self._error as failed:
            if getattr(failed, "status", None) == MULTIPLE_SUBSCRIBERS or "SUBSCRIBERS" in str(failed):
                reason = "another subscriber of CUPTI, such as a profiler, is attached to this process"
                raise RecordsLost(reason) from None
            raise RecordsLost(f"CUPTI: {failed}") from None
        code = self._library.cuptiActivityRegisterCallbacks(*self._callbacks)
        if code != 0:
            raise RecordsLost(f"CUPTI takes no buffers (error {code})")
        is_on = False
        try:
            for kind in self._kinds:
                self._cupti.activity_enable(kind)
            self._discard()
            is_on = True
        except self._error as failed:
            raise RecordsLost(f"CUPTI does not record: {failed}") from None
        finally:
            if not is_on:  # also after an interrupt by the user
                self.stop()

    def stop(self) -> None:
        """Record no more. Records that were not taken are dropped."""
        for kind in self._kinds:
            with suppress(self._error):  # the kind was not enabled
                self._cupti.activity_disable(kind)
        with suppress(self._error):  # if the device is broken, its error was raised before
            self._discard()

    def now(self) -> int:
        """Return CUPTI's time, in nanoseconds."""
        return int(self._cupti.get_timestamp())

    def take(self) -> list[Operation]:
        """Return the records since the last call. Call it while the device is idle.

        Raises:
            RecordsLost: CUPTI dropped records, or does not deliver them.
        """
        try:
            self._cupti.activity_flush_all(0)
        except self._error as failed:
            raise RecordsLost(f"CUPTI: {failed}") from None
        dropped, full = self._count_dropped(), self._full
        self._full = []
        operations = [operation for address, valid in full for operation in self._read(address, valid)]
        self._free += [address for address, _ in full]
        untimed = sum(not operation.start_ns and not operation.end_ns for operation in operations)
        if dropped or untimed:
            raise RecordsLost(f"{dropped} dropped" if dropped else f"{untimed} without a time")
        return operations

    def _count_dropped(self) -> int:
        """Return the number of records dropped since the last call."""
        dropped = ctypes.c_size_t()
        self._library.cuptiActivityGetNumDroppedRecords(None, 0, ctypes.byref(dropped))
        return dropped.value

    def _discard(self) -> None:
        self._cupti.activity_flush_all(0)
        self._free += [address for address, _ in self._full]
        self._full.clear()
        self._count_dropped()

    def _on_requested(self, buffer: Any, size: Any, most_records: Any) -> None:
        if not self._free:
            made = ctypes.create_string_buffer(BUFFER_BYTES)
            self._buffers[ctypes.addressof(made)] = made
            self._free.append(ctypes.addressof(made))
        buffer[0], size[0], most_records[0] = self._free.pop(), BUFFER_BYTES, 0

    def _on_completed(self, _context: int, _stream: int, buffer: int, _size: int, valid: int) -> None:
        self._full.append((buffer, valid))

    def _read(self, address: int, valid: int) -> list[Operation]:
        """Read the records of one buffer."""
        operations = []
        content = memoryview(self._buffers[address]).cast("B")
        record = ctypes.c_void_p()
        latest, step = ctypes.byref(record), self._library.cuptiActivityGetNextRecord
        while valid and step(address, valid, latest) == 0:
            at = (record.value or 0) - address
            layout = self._layouts.get(NUMBER.unpack_from(content, at)[0])
            if layout is None:
                continue
            times_at, correlation_at, stream_at, name_at, name = layout
            start_ns, end_ns = TIMES.unpack_from(content, at + times_at)
            (correlation,) = NUMBER.unpack_from(content, at + correlation_at)
            (stream,) = NUMBER.unpack_from(content, at + stream_at)
            if name_at is not None:
                name = self._name(POINTER.unpack_from(content, at + name_at)[0])
            operations.append(Operation(name, start_ns, end_ns, correlation, stream))
        return operations

    def _name(self, pointer: int) -> str:
        """Return a kernel's name, read once: CUPTI keeps the text while the module is loaded."""
        if pointer not in self._names:
            text = ctypes.string_at(pointer) if pointer else b""
            self._names[pointer] = text.decode("utf-8", "replace")
        return self._names[pointer]


def import_cupti() -> None:
    """Import CUPTI's bindings if they are installed, in a process from which other processes are forked.

    It takes 0.1 s or more, starts no thread and touches no device: it loads neither CUPTI nor the driver.
    """
    with suppress(ImportError):  # a recorder reports the missing package
        importlib.import_module(MODULE)


def _ignore(*_arguments: object) -> None:
    """Do nothing. A subscription needs a callback, which is never called."""


def _loaded_library() -> ctypes.CDLL:
    """Return the CUPTI library that cupti-python and torch have loaded into this process.

    Raises:
        RecordsLost: the library cannot be loaded.
    """
    with Path("/proc/self/maps").open(encoding="utf-8") as maps:
        paths = {line.split()[-1] for line in maps if "libcupti.so" in line}
    try:
        library = ctypes.CDLL(min(paths) if paths else "libcupti.so.13")
    except OSError as error:
        raise RecordsLost(f"CUPTI's library cannot be loaded: {error}") from None
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.cuptiActivityGetNextRecord.argtypes = [pointer, size, ctypes.POINTER(pointer)]
    library.cuptiActivityGetNumDroppedRecords.argtypes = [pointer, ctypes.c_uint32, ctypes.POINTER(size)]
    return library
