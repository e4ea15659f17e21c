"""Trials whose worker is a script in the test: buffers in a real arena, contents, and who asks what of the worker."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from flashinfer_bench.bench.evaluators.inputs.contents import Contents, DealtContents
from flashinfer_bench.bench.evaluators.inputs.rules import VariedInput
from flashinfer_bench.bench.runner.workers.claims import OutputSpec
from flashinfer_bench.bench.runner.workers.timed.call_buffers import MOST_BUFFERS, CallBuffers
from flashinfer_bench.bench.runner.workers.timed.timed_calls import TimedCalls
from flashinfer_bench.timing.measurement import Sample
from flashinfer_bench.timing.settings import TimingSettings
from flashinfer_bench.worker.protocol import ClockTraits, answer_readings

NEVER_BASE = -1
WALL = ClockTraits(method="wall", cache_state="warm", fills_queue=False, sees_operations=False)
CUPTI = ClockTraits(method="cupti", cache_state="cold", fills_queue=True, sees_operations=True)
EVENTS = ClockTraits(method="cuda_events", cache_state="cold", fills_queue=True, sees_operations=False)


def vary(seed=7, *, mode="scaled", base_number=0):
    """Return what gives the calls of a kernel with one input their contents."""
    return lambda trial, inputs: Contents(inputs, [VariedInput("x", mode)], seed + trial, base_number)


def make_trial(arena, *, base_number=NEVER_BASE, **changes):
    """Return a trial of y = f(x) with `size` float32 elements each.

    Args:
        arena: shared memory on a CPU.
        base_number: the call that gets the base.
        changes: size, outputs (how many), most (buffers), way (how x differs), wanted (calls to keep), check_inputs
            (given what a call got and what lies there now), device_type, has_setup.
    """
    size = changes.get("size", 16)
    base = [torch.arange(1.0, size + 1)]
    specs = [OutputSpec(f"y{at}", (size,), torch.float32) for at in range(changes.get("outputs", 1))]
    buffers = CallBuffers(arena, base, specs, changes.get("most", MOST_BUFFERS))
    contents = DealtContents([Contents(base, [VariedInput("x", changes.get("mode", "scaled"))], 7, base_number)])
    check = changes.get("check_inputs", lambda inputs, now: None)

    def check_all(calls):
        for inputs, now in calls:
            check(inputs, now)

    timing = TimingSettings() if changes.get("device_type") == "cuda" else None
    how = {"has_setup": changes.get("has_setup", False), "chance": random.Random(1)}
    return TimedCalls(buffers, contents, changes.get("wanted", 2), check_all, timing, **how)


def run_calls(trial, indices, function=lambda x: x * 2):
    """Do in the test what a worker does: call a function in some buffers; the reader looks at what it gave. Outputs but
    the first are 1."""
    numbers = trial.write(indices)
    for index in indices:
        (x,), (y, *others) = trial.buffers.inputs(index), trial.buffers.outputs(index)
        result = function(x)
        if result is not None:
            y.copy_(result)
        for other in others:
            other.fill_(1)
    trial.check_calls(indices, numbers)
    return numbers


@dataclass
class ScriptedWorker:
    """Answers what a session asks of a worker; `asked` has every method with its fields.

    A call takes `call_ns`, a request `request_ns` on top, on a clock that stands still meanwhile (`now_ns`). Calls
    compute y = 2 x. Those of a batch bring it into the slots when it is collected; a lazy worker computes it then.
    """

    trial: TimedCalls
    clock: ClockTraits = WALL
    call_ns: int = 1_000_000
    setup_ns: int = 0
    request_ns: int = 0
    answers: dict[str, dict] = field(default_factory=dict)
    """Verb to fields that replace those of an honest answer."""
    lost: str | None = None
    """Why the first clock is lost when it is switched on."""
    is_lazy: bool = False
    calls_ns: Iterable[int] = ()
    """What each call of a batch takes, batch by batch, before it is `call_ns`."""
    collect_ns: int = 0
    """What it takes to collect the results of a batch."""
    refuses: str | None = None
    """Why it makes no graph of the calls of a batch."""
    touch_ns: int = 0
    late: dict[str, list[float]] = field(default_factory=dict)
    """Verb to what keeps the GPU from the session after the answer, time slice by time slice."""
    asked: list[tuple[str, dict]] = field(default_factory=list)
    now: int = 0
    kept: dict[int, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self):
        self.calls_ns, self.left = iter(self.calls_ns), []

    def now_ns(self):
        return self.now

    def touch(self, device):
        """Use the GPU in the session's place."""
        self.now += self.touch_ns + (self.left.pop() if self.left else 0)

    def methods(self):
        return [method for method, _ in self.asked]

    def fields_of(self, method):
        return [fields for asked, fields in self.asked if asked == method]

    def __call__(self, method, expected, what, **fields):
        meanwhile = fields.pop("meanwhile", None)
        self.asked.append((method, fields))
        fields = {"indices": range(fields.get("first", 0)), **fields}
        self.now += self.request_ns
        self.left = [*self.late.get(method, ())]
        if meanwhile is not None:
            meanwhile(lambda: False)
        answer = {"id": 1, **getattr(self, f"_{method}")(fields), **self.answers.get(method, {})}
        return expected.model_validate(answer)

    def _start(self, fields):
        if fields["fall_back"] is not None:
            self.clock, self.lost = EVENTS, None
        return {"clock": self.clock.model_dump(), "lost": self.lost}

    def _calls(self, fields):
        spent_ns = self._spend(fields)
        self._compute(fields)
        seen = {"busy_ns": 1, "operations": 1} if self.clock.sees_operations else {}
        samples = [Sample(span_ns=spent_ns, enqueue_ns=spent_ns, **seen)] * len(fields["indices"])
        return {"readings": answer_readings(samples), "facts": {}}

    def _burst(self, fields):
        self.call_ns = next(self.calls_ns, self.call_ns)
        self._spend(fields)
        if self.answers.get("burst", {}).get("copied"):
            self._compute(fields)
        elif not self.is_lazy:
            self.kept = {index: self.trial.buffers.inputs(index)[0] * 2 for index in fields["indices"]}
        return {"refused": self.refuses if fields["together"] else None, "copied": False}

    def _collect(self, fields):
        self.now += self.collect_ns
        if self.is_lazy:
            self._compute(fields)
        for index, result in self.kept.items():
            self.trial.buffers.outputs(index)[0].copy_(result)
        return {}

    def _stop(self, fields):
        return {}

    def _spend(self, fields):
        parts = {"setup": self.setup_ns, "both": self.setup_ns + self.call_ns}
        spent_ns = parts.get(fields["part"], self.call_ns)
        self.now += spent_ns * len(fields["indices"])
        return spent_ns

    def _compute(self, fields):
        for index in fields["indices"] if fields["part"] in ("run", "both") else ():
            torch.mul(self.trial.buffers.inputs(index)[0], 2, out=self.trial.buffers.outputs(index)[0])
