"""A worker: our loop and one solution. It answers the verbs of `protocol.py` until it is told to exit.

It holds the solution's artifact, its inputs and the output slots that the session laid out. It decides nothing.
"""

from __future__ import annotations

import base64
import os
import random
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import torch

from flashinfer_bench.base.wire import FrameReader, WireClosed, send_frame
from flashinfer_bench.sandbox.policy import confine
from flashinfer_bench.sandbox.processes import show_memory
from flashinfer_bench.timing.clocks import (
    CaptureRefused,
    Clock,
    ClockLost,
    Launch,
    Preamble,
    capture,
    capture_first,
    make_clock,
    see_operations,
)
from flashinfer_bench.worker.arena import MappedArena, open_arena
from flashinfer_bench.worker.calls import (
    CallLaunch,
    JoinedLaunch,
    LaidCall,
    ReplayLaunch,
    Shelf,
    SolutionFunctions,
    address_of,
    count_placements,
    lay_out_calls,
    share_memory,
)
from flashinfer_bench.worker.error_location import find_location, message_of
from flashinfer_bench.worker.gated_chain.calls import GatedChains
from flashinfer_bench.worker.jit.left_locks import enter_extensions
from flashinfer_bench.worker.jit.module_layer import link_modules
from flashinfer_bench.worker.jit.precompile import precompile
from flashinfer_bench.worker.load import load_entry
from flashinfer_bench.worker.protocol import MAX_TEXT, MOST_WORDS, answer_readings

KEPT_FRAMES: Final = 12
LARGE_BYTES: Final = 1 << 17
"""Memory of this size comes from the kernel, page by page, where no result has just given some back: a call of 0.8 ms
took 0.3 ms then. So results of calls are dropped at once where they are smaller only."""
PIECES: Final = 32
LARGEST_PIECE: Final = 1 << 14
"""Pieces of memory that shift what is allocated later, and the most bytes of one."""
VERBS: Final = ("load", "bind", "lay_out", "start", "calls", "burst", "relay", "collect", "stop", "recover", "unbind")
"""What a session may ask for, beside the end."""


def run_worker(order: dict[str, Any], fds: Sequence[int], supervisor: socket.socket) -> None:
    """Confine this process, serve the session, end the process.

    Or become the order's `program` in the same sandbox, or compile what its `precompile` tells.

    Args:
        order: from the session.
        fds: its socket, and the pipe for what is printed.
        supervisor: is sent the descriptor by which filtered calls ask.
    """
    try:
        confine(order, fds, supervisor)
        if order.get("program"):
            os.execve(order["program"][0], order["program"], os.environ)
        if order.get("precompile"):
            precompile(order["precompile"], order.get("shared_modules"))
            flush_output()
            return
        device = torch.device(order["device"])
        if device.type == "cuda":
            torch.zeros(1, device=device)
            torch.cuda.synchronize()
        else:
            torch.set_num_threads(int(order["threads"]))
            padding = shift_heap()  # noqa: F841 - it only has to be there
        timing = order["timing"]
        image = base64.b64decode(timing["image"]) if timing["image"] else None
        clock = make_clock(device, l2_cache=timing["l2_cache"], clock=timing["clock"], image=image)
        worker = Worker(socket.socket(fileno=fds[0]), device, clock)
        worker.shared_modules = order.get("shared_modules")
        worker.serve()
    except BaseException:
        traceback.print_exc()  # the session reads it where the worker was to start
        flush_output()
        os._exit(1)
    finally:
        os._exit(0)


def shift_heap() -> list[bytearray]:
    """Return memory to be held, so much as chance says: what is allocated after it lies elsewhere in each worker.

    Workers are forks of one template, so equal code would have equal addresses in all of them, and code that differs by
    a line others. Where tensors lie to each other, modulo a page, makes calls of 20 us up to a tenth slower. By chance
    that is a difference between workers, which intervals tell of, and none between two texts.
    """
    chance = random.SystemRandom()
    return [bytearray(chance.randrange(64, LARGEST_PIECE)) for _ in range(PIECES)]


class Worker:
    """The loop's state: the entry function, the arena that is bound, the calls that are laid out, the clock."""

    def __init__(self, sock: socket.socket, device: torch.device, clock: Clock) -> None:
        self.sock = sock
        self.device = device
        self.function: SolutionFunctions | None = None
        self.arena: MappedArena | None = None
        self.clock = clock
        self.shared_modules: str | None = None
        """FlashInfer's modules that were compiled ahead, where the solution has a layer of its own over them."""
        self.reader = FrameReader(sock)
        self._laid: list[LaidCall] = []
        self._laid_bytes = 0
        """Bytes of the outputs of one of these calls."""
        self._no_call = make_no_call(device)
        self._latest_tick = 0
        """The clock's millisecond in which the latest call ended that was not timed."""
        self._returns_same = False
        """The solution returns the same memory each time, as far as was seen."""
        self._is_looked_at = False
        """What a burst of the calls that are laid out returned was looked at for that."""
        self._shelf = Shelf(1, 0)
        self._replays: dict[int, ReplayLaunch] = {}
        self._joins: dict[tuple[Any, ...], Launch] = {}
        self._gated_chains = GatedChains(device)
        self._running = ExitStack()

    def serve(self) -> None:
        """Answer one request after the other; returns when told to exit or when the session is gone."""
        verbs = {name: getattr(self, name) for name in VERBS}
        gaps = {"launch_gap_ns": self.clock.launch_gap_ns(), "chain_gap_ns": self.clock.chain_gap_ns()}
        capture_first(self.device)
        found = {"clock": describe_clock(self.clock), "gpu_uuid": read_gpu_uuid(self.device)}
        send_frame(self.sock, {"id": 0, "ready": True, **gaps, **found})
        while True:
            try:
                request = self.reader.read()
            except WireClosed:
                return
            if request["verb"] == "exit":
                return
            try:
                answer = verbs[request["verb"]](request)
            except BaseException as error:
                answer = {"error": describe_error(error)}
            flush_output()
            send_frame(self.sock, {"id": request["id"], **answer})

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Import the solution."""
        show_memory()  # from here on the supervisor looks at what this process holds
        os.environ.update(request["environment"])
        if self.shared_modules is not None:
            link_modules(Path(self.shared_modules), Path(os.environ["FLASHINFER_WORKSPACE_BASE"]))
        if "TORCH_EXTENSIONS_DIR" in os.environ:
            enter_extensions(Path(os.environ["TORCH_EXTENSIONS_DIR"]))
        place = Path(request["directory"]), request["entry"], request["symbol"]
        loaded = load_entry(*place, kind=request["kind"])
        takes = loaded.setup_signature
        self.function = SolutionFunctions(loaded.function, loaded.setup, None if takes is None else takes.maximum)
        signature = loaded.signature.model_dump() if loaded.signature else None
        return {"signature": signature, "has_setup": loaded.setup is not None}

    def bind(self, request: dict[str, Any]) -> dict[str, Any]:
        """Map the arena that came with the request in place of the one before."""
        self._forget_calls()
        if self.arena is not None:
            self.arena.release()
        self.arena = open_arena(request["arena"], self.reader.take_fds())
        return {"bound": True}

    def lay_out(self, request: dict[str, Any]) -> dict[str, Any]:
        """Take the places of a job's calls."""
        if self.function is None or self.arena is None:
            raise RuntimeError("the worker was asked to lay out calls before load and bind")
        self._forget_calls()
        self._laid = lay_out_calls(self.function, self.arena.block, request)
        size = self._laid_bytes = sum(output.nbytes for output in self._laid[0].outputs) if self._laid else 0
        is_cold_gpu = self.device.type == "cuda" and self.clock.cache_state == "cold"
        self._shelf = Shelf(count_placements(size, self.device) if is_cold_gpu else 1, size)
        return {"laid_out": len(self._laid)}

    def _forget_calls(self) -> None:
        self._returns_same = self._returns_same or share_memory(self._laid)
        self._laid, self._shelf, self._is_looked_at = [], Shelf(1, 0), False
        has_graphs = self._gated_chains.forget() or bool(self._replays or self._joins)
        self._replays.clear()
        self._joins.clear()
        if has_graphs:
            with suppress(RuntimeError):  # a broken device will say so again
                torch.cuda.empty_cache()

    def start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Switch the clock on; after a loss, the one that takes its place."""
        self._running.close()
        if request["fall_back"] is not None:
            self.clock = self.clock.fall_back(request["fall_back"]) or self.clock
        try:
            self._running.enter_context(self.clock)
        except ClockLost as lost:
            return {"clock": describe_clock(self.clock), "lost": str(lost)[:MOST_WORDS]}
        return {"clock": describe_clock(self.clock), "lost": None}

    def calls(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make the calls of some places, each once, in order; read the clock where there is a lead."""
        try:
            launches = self._launches(request)
        except CaptureRefused as refused:
            return {"readings": None, "returned": None, "refused": str(refused)[:MOST_WORDS]}
        if request["lead"] is not None:
            try:
                samples = self.clock.sample(launches, [Preamble(**one) for one in request["lead"]])
            except ClockLost as lost:
                return {"readings": None, "returned": None, "lost": str(lost)[:MOST_WORDS]}
            return {"readings": answer_readings(samples), "facts": self.clock.facts(), "returned": None}
        returned = []
        for index, launch in zip(request["indices"], launches, strict=True):
            while tick() == self._latest_tick:  # samplers seed themselves by it, and two would draw the same
                continue
            launch()
            self._latest_tick = tick()
            values = self._laid[index].values() if launch.puts_away else []
            returned.append([describe_value(value, self._laid[index].inputs_at) for value in values])
            launch.put_away()
        self._synchronize()
        return {"readings": None, "returned": returned if any(launch.puts_away for launch in launches) else None}

    def burst(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make calls back to back, and leave what they gave where it is."""
        copied = bool(self._returns_same or request["part"] == "nothing")
        try:
            if request["together"] and request["indices"]:
                launch = self._joined(request, copied=copied)
            else:
                launches = [self._eager(index, request["part"]) for index in request["indices"]]
                drops = copied and self._is_looked_at and self._laid_bytes < LARGE_BYTES
                launch = in_turn(launches, put_away=copied, drops=drops)
        except CaptureRefused as refused:
            return {"refused": str(refused)[:MOST_WORDS]}
        launch()
        self._synchronize()
        if request["part"] in ("run", "both") and not self._is_looked_at:  # once, for it takes longer than a short call
            self._returns_same, self._is_looked_at = self._returns_same or share_memory(self._laid), True
        return {"refused": None, "copied": copied, "strided": self._has_strided(request)}

    def relay(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make calls one by one, each as soon as the board that came with the request has the key of its inputs."""
        assert self.arena is not None  # calls are laid out
        calls = [self._eager(index, request["part"]) for index in request["indices"]]
        (memory,) = self.reader.take_fds()
        answer = self._gated_chains.run(request, memory, calls, self.arena.block.data_ptr())
        return {**answer, "strided": self._has_strided(request)}

    def _has_strided(self, request: dict[str, Any]) -> bool:
        """Say whether the copy of any result changed how it lies in memory."""
        return request["part"] != "nothing" and any(self._laid[index].is_strided for index in request["indices"])

    def collect(self, request: dict[str, Any]) -> dict[str, Any]:
        """Bring what the latest calls of some places gave into their output slots."""
        self._put_all_away(request)
        self._synchronize()
        return {"collected": True, "strided": self._has_strided(request)}

    def _joined(self, request: dict[str, Any], *, copied: bool) -> Launch:
        """Return one graph of a burst's calls, each of `operations` at the least; it is captured once."""
        key = request["part"], copied, *request["indices"]
        if key not in self._joins:
            # The graphs of the batch before, and of its results, are dropped: they hold memory.
            self._joins = {key: launch for key, launch in self._joins.items() if key[0] == "nothing"}
            launches = first, *others = [self._eager(index, request["part"]) for index in request["indices"]]

            def launch_all() -> None:
                first()
                see_operations(request["operations"])
                if copied:
                    first.put_away()
                in_turn(others, put_away=copied)()

            self._joins[key] = JoinedLaunch(launches, capture(launch_all))
        return self._joins[key]

    def _put_all_away(self, request: dict[str, Any]) -> None:
        """Put away what several calls gave; as a graph, captured once, what the latest burst's graph gives."""
        together, key = request["together"], ("collect", request["part"], *request["indices"])

        def put_away() -> None:
            for index in request["indices"]:
                self._eager(index, request["part"]).put_away()

        if together and key not in self._joins:
            self._joins[key] = put_away
            with suppress(CaptureRefused):
                self._joins[key] = capture(put_away)
        launch = self._joins[key] if together else put_away
        launch()

    def stop(self, request: dict[str, Any]) -> dict[str, Any]:
        """Switch the clock off."""
        del request
        self._running.close()
        return {"stopped": True}

    def recover(self, request: dict[str, Any]) -> dict[str, Any]:
        """Forget the calls of a job that failed. A broken context raises here."""
        del request
        self._running.close()
        self._forget_calls()
        self._synchronize()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return {"recovered": True}

    def unbind(self, request: dict[str, Any]) -> dict[str, Any]:
        """Give up the arena that is bound, and the memory that no call needs now."""
        self.recover(request)
        if self.arena is not None:
            self.arena.release()
            self.arena = None
        return {"unbound": True}

    def _launches(self, request: dict[str, Any]) -> list[CallLaunch | ReplayLaunch]:
        return [self._launch(index, request["part"], replay=request["replay"]) for index in request["indices"]]

    def _launch(self, index: int, part: str, *, replay: bool) -> CallLaunch | ReplayLaunch:
        """Return a call's launch; a replay is captured once for each place."""
        eager = self._eager(index, part)
        if not replay:
            return eager
        if index not in self._replays:
            self._replays[index] = ReplayLaunch(eager, self.clock.replays(lambda _index: eager)(0))
        return self._replays[index]

    def _eager(self, index: int, part: str) -> CallLaunch:
        return CallLaunch(self._no_call if part == "nothing" else self._laid[index], self._shelf, part)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def make_no_call(device: torch.device) -> LaidCall:
    """Return a call that computes nothing, and gives back one number that is copied."""
    given, slot = torch.zeros(1, device=device), torch.zeros(1, device=device)
    return LaidCall(SolutionFunctions(lambda: given, None), {}, {"": slot}, "value")


def in_turn(launches: Sequence[CallLaunch], *, put_away: bool, drops: bool = False) -> Launch:
    """Return a launch that makes several calls, one behind the other, and puts away what each gave, or leaves it.

    Where it `drops` results then, the next call finds their memory in the caches: of a hundred calls no two would else
    share any, and a call would take longer than one that is timed alone.
    """

    def launch_all() -> None:
        for launch in launches:
            launch()
            if put_away:
                launch.put_away()
            if drops:
                launch.result = None

    return launch_all


def read_gpu_uuid(device: torch.device) -> str:
    """Return a GPU's UUID as NVML spells it; nothing for a CPU."""
    return "" if device.type == "cpu" else f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def describe_clock(clock: Clock) -> dict[str, Any]:
    """Return the traits of a clock as fields of a frame."""
    return {name: getattr(clock, name) for name in ("method", "cache_state", "fills_queue", "sees_operations")}


def flush_output() -> None:
    """Flush what the solution printed, which has to arrive before the answer. It may have broken both streams."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()


def describe_value(value: Any, inputs_at: int = 0) -> dict[str, Any]:
    """Say what a solution returned, without its content, and whether it lies where no output may lie."""
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        device = value.device.type
        return {
            "kind": "tensor",
            "type": "Tensor",
            "shape": list(value.shape),
            "dtype": str(value.dtype).removeprefix("torch."),
            "device": device,
            "is_input": inputs_at != 0 and address_of(value) == inputs_at,
        }
    if kind in (int, float, bool):
        return {"kind": "scalar", "type": kind.__name__}
    names = f" with the keys {', '.join(map(str, value))}" if kind is dict else ""
    return {"kind": "other", "type": escape_surrogates(f"{kind.__module__}.{kind.__qualname__}{names}")[:500]}


def tick() -> int:
    """Return the clock's time in milliseconds."""
    return time.time_ns() // 1_000_000


def describe_error(error: BaseException) -> dict[str, str]:
    """Return what was raised as a bounded text; our own frames are left out of the traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(str(Path(__file__).parent)):
        trace = trace.tb_next
    try:
        message = message_of(error)
    except BaseException as second:
        message = f"(its message could not be read: {type(second).__name__})"
    try:
        location = find_location(error)
        lines = traceback.format_exception(type(error), error, trace, limit=-KEPT_FRAMES)
    except BaseException:  # a cause that cannot be read
        location, lines = "", []
    said = (type(error).__name__, message, location, "".join(lines))
    kind, message, location, told = map(escape_surrogates, said)
    return {
        "type": kind[:500],
        "message": message[:MAX_TEXT],
        "location": location[:MOST_WORDS],
        "traceback": told[-MAX_TEXT:],
    }


def escape_surrogates(text: str) -> str:
    """Return a text that UTF-8 can encode: half a surrogate pair becomes an escape sequence."""
    return str.encode(text, "utf-8", "backslashreplace").decode()
