"""A worker: our loop and one solution. It answers the methods of `protocol.py` until the session ends it.

It holds the solution's artifact, its inputs, and the output slots that the session laid out. It makes no decisions.
"""

from __future__ import annotations

import base64
import faulthandler
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from flashinfer_bench.base.wire import FrameReader, WireClosed, send_frame
from flashinfer_bench.sandbox.confine import confine
from flashinfer_bench.sandbox.process_tree import show_memory
from flashinfer_bench.timing.clocks import (
    CaptureRefused,
    Clock,
    ClockLost,
    Preamble,
    capture,
    capture_first,
    make_clock,
    see_operations,
)
from flashinfer_bench.timing.driver import make_context
from flashinfer_bench.worker.arena import MappedArena, open_arena
from flashinfer_bench.worker.calls import (
    TENSORS,
    CallLaunch,
    GraphLaunch,
    LaidCall,
    OutputCache,
    address_of,
    lay_out_calls,
    share_memory,
)
from flashinfer_bench.worker.errors import describe_error, escape_surrogates
from flashinfer_bench.worker.gated_chain.calls import GatedChains
from flashinfer_bench.worker.jit.folders import enter_folders
from flashinfer_bench.worker.jit.precompile import precompile
from flashinfer_bench.worker.kernel_names import answer_launches
from flashinfer_bench.worker.load import LoadedEntry, load_entry
from flashinfer_bench.worker.protocol import MOST_WORDS, STACK_FILE, STACK_SIGNAL, answer_readings

METHODS: Final = ("load", "bind", "lay_out", "start", "calls", "burst", "relay", "collect", "stop", "recover", "unbind")
"""Methods of the protocol."""


def run_worker(
    order: dict[str, Any],
    fds: Sequence[int],
    supervisor: socket.socket,
    prepare: Callable[[], object] = lambda: None,
) -> None:
    """Confine this process, serve the session, end the process.

    If the order has a `program`, execute it in the sandbox. If the order has `precompile`, only compile.

    Args:
        order: the spawn order from the session.
        fds: its socket, and the pipe for its output.
        supervisor: gets the descriptor of the seccomp filter.
        prepare: imports modules for the solution. On a GPU the driver makes the context at the same time.
    """
    try:
        confine(order, fds, supervisor)
        stacks = os.open(Path(order["home"], STACK_FILE), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=False)
        if order.get("program"):
            os.execve(order["program"][0], order["program"], os.environ)
        if order.get("precompile"):
            precompile(order["precompile"], order.get("shared_modules"))
            flush_output()
            return
        device = torch.device(order["device"])
        if device.type == "cuda":
            context = threading.Thread(target=make_context)
            context.start()
            prepare()
            context.join()
            torch.zeros(1, device=device)
            torch.cuda.synchronize()
        else:
            prepare()
            torch.set_num_threads(int(order["threads"]))
        timing = order["timing"]
        image = base64.b64decode(timing["image"]) if timing["image"] else None
        clock = make_clock(device, l2_cache=timing["l2_cache"], clock=timing["clock"], image=image)
        worker = Worker(socket.socket(fileno=fds[0]), device, clock)
        worker.shared_modules = order.get("shared_modules")
        worker.serve()
    except BaseException:
        traceback.print_exc()  # the session reads this if the worker does not start
        flush_output()
        os._exit(1)
    finally:
        os._exit(0)


class Worker:
    """State of the loop: the entry function, the mapped arena, the calls, the clock."""

    def __init__(self, sock: socket.socket, device: torch.device, clock: Clock) -> None:
        self.sock = sock
        self.device = device
        self.loaded: LoadedEntry | None = None
        self.arena: MappedArena | None = None
        self.clock = clock
        self.shared_modules: str | None = None
        """FlashInfer's modules compiled ahead, if the solution has a private overlay over them; else None."""
        self.reader = FrameReader(sock)
        self._laid: list[LaidCall] = []
        given, slot = torch.zeros(1, device=device), torch.zeros(1, device=device)
        self._no_call = LaidCall(LoadedEntry(lambda: given), {}, {"": slot}, "value")
        """A call that computes nothing. It returns one number, which is copied."""
        self._latest_tick = 0
        """Clock tick (ms) at which the last untimed call ended."""
        self._returns_same = self._is_checked = False
        """Whether results have to be copied before the next call or new inputs: checked calls of the solution returned
        the same memory, or memory of the arena. And whether the current calls were checked."""
        self._output_cache = OutputCache(0)
        self._graphs: dict[tuple[Any, ...], GraphLaunch] = {}
        """Kind of graph, part of the calls, buffers → the graph."""
        self._gated_chains = GatedChains(device)
        self._running = ExitStack()
        self._launched: dict[tuple[tuple[str, int], ...], None] = {}
        """The operations of each kind of call since the clock was switched on."""

    def serve(self) -> None:
        """Answer requests in order; return when the session has ended."""
        methods = {name: getattr(self, name) for name in METHODS}
        gaps = {"launch_gap_ns": self.clock.launch_gap_ns(), "chain_gap_ns": self.clock.chain_gap_ns()}
        capture_first(self.device)
        found = {"clock": describe_clock(self.clock), "gpu_uuid": read_gpu_uuid(self.device)}
        send_frame(self.sock, {"id": 0, "ready": True, **gaps, **found})
        while True:
            try:
                request = self.reader.read()
            except WireClosed:
                return
            if "first" in request:
                request["indices"] = range(request["first"])
            try:
                answer = methods[request["verb"]](request) or {}
            except BaseException as error:
                answer = {"error": describe_error(error)}
            flush_output()
            send_frame(self.sock, {"id": request["id"], **answer})

    # The solution, its memory and the clock.

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Import the solution."""
        show_memory()  # the supervisor needs to read this process's memory use
        enter_folders(self.shared_modules)
        entry = Path(request["directory"]), request["entry"], request["symbol"]
        self.loaded = load_entry(*entry, kind=request["kind"])
        signature = self.loaded.signature
        described = None if signature is None else signature.model_dump()
        return {"signature": described, "has_setup": self.loaded.setup is not None}

    def bind(self, request: dict[str, Any]) -> None:
        """Map the arena of the request, in place of the previous arena."""
        self._give_up_arena()
        self.arena = open_arena(request["arena"], self.reader.take_fds())

    def _give_up_arena(self) -> None:
        self._forget_calls()
        if self.arena is not None:
            self.arena.release()
            self.arena = None

    def lay_out(self, request: dict[str, Any]) -> None:
        """Set up the calls of a job in their buffers."""
        if self.loaded is None or self.arena is None:
            raise RuntimeError("the worker was asked to lay out calls before load and bind")
        self._forget_calls()
        self._laid = lay_out_calls(self.loaded, self.arena.block, request)
        if self._laid and self.device.type == "cuda" and self.clock.cache_state == "cold":
            self._output_cache = OutputCache.for_gpu(
                sum(output.nbytes for output in self._laid[0].outputs), self.device
            )

    def _forget_calls(self) -> None:
        self._returns_same = self._returns_same or self._share_memory()
        self._laid, self._output_cache, self._is_checked = [], OutputCache(0), False
        has_graphs = self._gated_chains.forget() or bool(self._graphs)
        self._graphs.clear()
        if has_graphs:
            with suppress(RuntimeError):  # a broken device will raise again
                torch.cuda.empty_cache()

    def start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Switch the clock on. If the request has a reason to fall back, switch on the clock's fallback instead. A
        clock without a fallback stays.
        """
        self._running.close()
        self._launched.clear()
        if request["fall_back"] is not None:
            self.clock = self.clock.fall_back(request["fall_back"]) or self.clock
        lost = None
        try:
            self._running.enter_context(self.clock)
        except ClockLost as error:
            lost = str(error)[:MOST_WORDS]
        return {"clock": describe_clock(self.clock), "lost": lost}

    def stop(self, request: dict[str, Any]) -> dict[str, Any]:
        """Switch the clock off; name the operations of its samples."""
        del request
        self._running.close()
        return {"launches": answer_launches(self._launched)}

    def recover(self, request: dict[str, Any]) -> None:
        """Forget the calls of a job that failed. A broken context raises here."""
        self.stop(request)
        self._forget_calls()
        self._synchronize()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def unbind(self, request: dict[str, Any]) -> None:
        """Unmap the arena, and free the memory that no call needs now."""
        self.recover(request)
        self._give_up_arena()

    # Calls.

    def calls(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make calls in the given buffers, once each, in order; read the clock if there are preambles."""
        launches: list[Any] = self._launches(request)
        try:
            if request["replay"]:
                launches = [
                    self._replay(index, launch) for index, launch in zip(request["indices"], launches, strict=True)
                ]
            if request["lead"] is not None:
                samples = self.clock.sample(launches, [Preamble(*one) for one in request["lead"]])
                self._launched.update(dict.fromkeys(sample.launched for sample in samples))
                return {"readings": answer_readings(samples), "facts": self.clock.metadata()}
        except (CaptureRefused, ClockLost) as error:
            return {"lost" if isinstance(error, ClockLost) else "refused": str(error)[:MOST_WORDS]}
        returned = []
        for index, launch in zip(request["indices"], launches, strict=True):
            while tick() == self._latest_tick:  # samplers use the tick as seed; equal ticks repeat numbers
                continue
            launch()
            self._latest_tick = tick()
            if launch.puts_away:
                call = self._laid[index]
                returned.append([describe_value(value, call.inputs_at) for value in call.values()])
                launch.put_away()
        self._synchronize()
        return {"returned": returned or None}

    def burst(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make calls back to back, and leave their results in place."""
        copied = bool(self._returns_same or request["part"] == "nothing")

        def make_all(launches: Sequence[CallLaunch]) -> None:
            for launch in launches:
                launch()
                if request["together"] and launch is launches[0]:
                    see_operations(request["operations"])
                if copied:
                    launch.put_away()

        try:
            self._make("burst", request, make_all, copied=copied)
        except CaptureRefused as refused:
            return {"refused": str(refused)[:MOST_WORDS]}
        self._synchronize()
        if request["part"] in ("run", "both") and not self._is_checked:  # once: it takes longer than a call
            self._returns_same, self._is_checked = self._returns_same or self._share_memory(), True
        return {"copied": copied, "strided": copied and self._has_strided(request)}

    def collect(self, request: dict[str, Any]) -> dict[str, Any]:
        """Copy the latest results of calls into their output slots."""

        def put_all_away(launches: Sequence[CallLaunch]) -> None:
            for launch in launches:
                launch.put_away()

        try:
            self._make("collect", request, put_all_away)
        except CaptureRefused:
            put_all_away(self._launches(request))
        self._synchronize()
        return {"strided": self._has_strided(request)}

    def relay(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make calls in order. Each call starts when the control block of the request has the key to the call's
        inputs."""
        assert self.arena is not None  # calls are laid out
        launches = self._launches(request)
        (memory,) = self.reader.take_fds()
        joined = self._gated_chains.run(request, memory, launches, self.arena.block.data_ptr())
        return {"joined": joined, "strided": self._has_strided(request)}

    def _launches(self, request: dict[str, Any]) -> list[CallLaunch]:
        part = request["part"]
        calls = [self._no_call if part == "nothing" else self._laid[index] for index in request["indices"]]
        return [CallLaunch(call, self._output_cache, part) for call in calls]

    def _replay(self, index: int, launch: CallLaunch) -> GraphLaunch:
        """Return a call's launch as a replay. It is captured once for each buffer."""
        key = "replay", "run", index
        if key not in self._graphs:
            self._graphs[key] = GraphLaunch([launch], self.clock.replays(lambda _index: launch)(0))
        return self._graphs[key]

    def _make(
        self,
        method: str,
        request: dict[str, Any],
        launch_all: Callable[[Sequence[CallLaunch]], None],
        *,
        copied: bool = False,
    ) -> None:
        """Launch the calls of a request. With `together` they are one graph, captured once and replayed without Python.
        A burst that copies its results has a graph of its own.

        A burst drops the graphs of the previous burst and of that burst's results, since these graphs hold memory.
        Graphs of empty calls stay.

        Raises:
            CaptureRefused: the calls cannot be one graph.
        """
        if not request["together"]:
            launch_all(self._launches(request))
            return
        key = method, request["part"], request["first"], copied
        if key not in self._graphs:
            if method == "burst":
                self._graphs = {key: graph for key, graph in self._graphs.items() if key[1] == "nothing"}
            launches = self._launches(request)
            self._graphs[key] = GraphLaunch(launches, capture(partial(launch_all, launches)))
        self._graphs[key]()

    def _share_memory(self) -> bool:
        return share_memory(self._laid, None if self.arena is None else self.arena.block)

    def _has_strided(self, request: dict[str, Any]) -> bool:
        """Return whether copying a result changed its layout in memory."""
        return request["part"] != "nothing" and any(self._laid[index].is_strided for index in request["indices"])

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def read_gpu_uuid(device: torch.device) -> str:
    """Return a GPU's UUID in NVML's form; "" for a CPU."""
    return "" if device.type == "cpu" else f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def describe_clock(clock: Clock) -> dict[str, Any]:
    """Return the traits of a clock as fields of a frame."""
    return {name: getattr(clock, name) for name in ("method", "cache_state", "fills_queue", "sees_operations")}


def flush_output() -> None:
    """Flush the solution's output, which must arrive before the answer. The solution may have broken both streams."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()


def describe_value(value: Any, inputs_at: range = range(0)) -> dict[str, Any]:
    """Describe a returned value without its content, and whether it uses forbidden memory."""
    kind = type(value)
    if kind in TENSORS:
        return {
            "kind": "tensor",
            "type": "Tensor",
            "shape": list(value.shape),
            "dtype": str(value.dtype).removeprefix("torch."),
            "device": value.device.type,
            "is_input": address_of(value) in inputs_at,
        }
    if kind in (int, float, bool):
        return {"kind": "scalar", "type": kind.__name__}
    names = f" with the keys {', '.join(map(str, value))}" if kind is dict else ""
    return {"kind": "other", "type": escape_surrogates(f"{kind.__module__}.{kind.__qualname__}{names}")[:500]}


def tick() -> int:
    """Return the clock's time in milliseconds."""
    return time.time_ns() // 1_000_000
