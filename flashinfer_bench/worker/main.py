"""A worker: our loop and one solution. It answers the verbs of `protocol.py` until it is told to exit.

It holds the solution's artifact, its inputs and the output slots that the session laid out. It decides nothing.
"""

from __future__ import annotations

import base64
import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from flashinfer_bench.timing.clocks import Clock, capture_first, make_clock
from flashinfer_bench.timing.places import Kept, choose_places, note_places, written_elsewhere
from flashinfer_bench.timing.progress import Recipe
from flashinfer_bench.timing.recipe import take_trial
from flashinfer_bench.worker.arena import MappedArena, Slot, open_arena
from flashinfer_bench.worker.confine import confine
from flashinfer_bench.worker.linux import show_memory
from flashinfer_bench.worker.load import load_entry
from flashinfer_bench.worker.protocol import MAX_TEXT, answer_trial
from flashinfer_bench.worker.walls.module_layer import link_modules
from flashinfer_bench.worker.wire import FrameReader, WireClosed, send_frame

KEPT_FRAMES: Final = 12


def run_worker(order: dict[str, Any], fds: Sequence[int], guard: socket.socket) -> None:
    """Confine this process, serve the session, end the process.

    Args:
        order: from the session.
        fds: its socket, and the pipes for what is printed.
        guard: the guard is sent what it answers filtered calls by.
    """
    try:
        confine(order, fds, guard)
        device = torch.device(order["device"])
        if device.type == "cuda":
            torch.zeros(1, device=device)
            torch.cuda.synchronize()
        else:
            torch.set_num_threads(int(order["threads"]))
        timing = order["timing"]
        image = base64.b64decode(timing["image"]) if timing["image"] else None
        clock = make_clock(device, l2_cache=timing["l2_cache"], clock=timing["clock"], image=image)
        worker = Worker(socket.socket(fileno=fds[0]), device, clock)
        worker.shared_modules = (order.get("walls") or {}).get("shared_modules")
        worker.serve()
    except BaseException:
        traceback.print_exc()  # the session reads it where the worker was to start
        flush_output()
        os._exit(1)
    finally:
        os._exit(0)


class Worker:
    """The loop's state: the entry function, the arena that is bound."""

    def __init__(self, sock: socket.socket, device: torch.device, clock: Clock) -> None:
        self.sock = sock
        self.device = device
        self.function: Callable[..., Any] | None = None
        self.arena: MappedArena | None = None
        self.clock = clock
        self.shared_modules: str | None = None
        """FlashInfer's modules that were compiled ahead, where the solution has a layer of its own over them."""
        self.reader = FrameReader(sock)

    def serve(self) -> None:
        """Answer one request after the other; returns when told to exit or when the session is gone."""
        verbs = {"load": self.load, "bind": self.bind, "call": self.call, "measure": self.measure}
        gaps = {"launch_gap_ns": self.clock.launch_gap_ns(), "chain_gap_ns": self.clock.chain_gap_ns()}
        capture_first(self.device)
        send_frame(self.sock, {"id": 0, "ready": True, **gaps})
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
        show_memory()  # from here on the guard looks at what this process holds
        os.environ.update(request["environment"])
        if self.shared_modules is not None:
            link_modules(Path(self.shared_modules), Path(os.environ["FLASHINFER_WORKSPACE_BASE"]))
        place = Path(request["directory"]), request["entry"], request["symbol"]
        self.function, signature = load_entry(*place, kind=request["kind"])
        return {"signature": signature.model_dump() if signature else None}

    def bind(self, request: dict[str, Any]) -> dict[str, Any]:
        """Map the arena that came with the request in place of the one before."""
        if self.arena is not None:
            self.arena.release()
        self.arena = open_arena(request["arena"], self.reader.take_fds())
        return {"bound": True}

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call the solution once; bring what it returns into the output slots where it fits."""
        function, outputs = self._prepare(request)
        result = function(*outputs) if request["style"] == "dps" else function()
        returned = None
        if request["style"] == "value":
            values = list(result) if isinstance(result, (tuple, list)) else [result]
            returned = [describe_value(value) for value in values]
            for value, slot in zip(values, outputs, strict=False):
                store(value, slot)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return {"returned": returned}

    def measure(self, request: dict[str, Any]) -> dict[str, Any]:
        """Take one trial: warm-up and timed calls on one set of inputs, outputs in several places."""
        function, outputs = self._prepare(request)
        size = sum(output.nbytes for output in outputs)
        places = choose_places(size, calls=request["warmup_runs"], clock=self.clock, device=self.device)
        kept = Kept(function, places, size)
        launch = written_elsewhere(function, outputs, places) if request["style"] == "dps" else kept
        recipe = Recipe(
            warmup_runs=request["warmup_runs"],
            iterations=request["iterations"],
            budget_s=request["budget_s"],
            cuda_graphs=request["cuda_graphs"],
            was_called=True,  # to be checked
        )
        trial = take_trial(lambda _index: launch, self.clock, recipe)
        trial = note_places(trial, places if request["style"] == "dps" else kept.places)
        kept.give_back(trial)
        return answer_trial(trial)

    def _prepare(self, request: dict[str, Any]) -> tuple[Callable[..., Any], list[torch.Tensor]]:
        """Return the entry function with its inputs bound, and the output slots."""
        function, arena = self.function, self.arena
        if function is None or arena is None:
            raise RuntimeError("the worker was asked to call before load and bind")
        arguments = [
            argument["scalar"] if "scalar" in argument else Slot.from_json(argument).view(arena.block)
            for argument in request["arguments"]
        ]
        outputs = [Slot.from_json(slot).view(arena.block) for slot in request["outputs"]]
        return partial(function, *arguments), outputs


def flush_output() -> None:
    """Flush what the solution printed, which has to arrive before the answer. It may have broken both streams."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()


def describe_value(value: Any) -> dict[str, Any]:
    """Say what a solution returned, without its content."""
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        device = value.device.type
        return {
            "kind": "tensor",
            "type": "Tensor",
            "shape": list(value.shape),
            "dtype": str(value.dtype).removeprefix("torch."),
            "device": device,
        }
    if kind in (int, float, bool):
        return {"kind": "scalar", "type": kind.__name__}
    return {"kind": "other", "type": escape_surrogates(f"{kind.__module__}.{kind.__qualname__}")[:500]}


def store(value: Any, slot: torch.Tensor) -> None:
    """Bring a returned value into its output slot; one that does not fit is left for the session to judge."""
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        if value.shape == slot.shape and value.dtype == slot.dtype:
            slot.copy_(value.detach())
    elif kind in (int, float, bool) and slot.ndim == 0:
        slot.fill_(value)


def describe_error(error: BaseException) -> dict[str, str]:
    """Return what was raised as a bounded text; our own frames are left out of the traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(str(Path(__file__).parent)):
        trace = trace.tb_next
    try:
        message = str(error)
        lines = traceback.format_exception(type(error), error, trace, limit=-KEPT_FRAMES)
    except BaseException as second:
        message, lines = f"(its message could not be read: {type(second).__name__})", []
    kind, message, told = map(escape_surrogates, (type(error).__name__, message, "".join(lines)))
    return {"type": kind[:500], "message": message[:MAX_TEXT], "traceback": told[-MAX_TEXT:]}


def escape_surrogates(text: str) -> str:
    """Return a text that UTF-8 can encode: half a surrogate pair becomes an escape sequence."""
    return str.encode(text, "utf-8", "backslashreplace").decode()
