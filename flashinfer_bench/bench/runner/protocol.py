"""The frames between the host and a device session.

The frames are JSON. Both processes run our code, so the frames are trusted.

host → session      {"config": SessionConfig}       once, first
                    {"request": SessionRequest}     jobs of one definition, grouped by solution; at most one request is
                                                    sent ahead
                    {"begin": true}                 run the request that was sent
                    {"drop": true}                  forget the request that was sent and has not begun
session → host      {"ready": SessionReady}
                    {"phase": Phase}                its activity, and the limit for it
                    {"verdict": JobVerdict}
                    {"fault": JobFault}
                    {"notice": str}
                    {"done": true}                  the request is finished
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict

from flashinfer_bench.bench.evaluators.plug_ins import PlugIn
from flashinfer_bench.bench.planning.first_call import FirstCall
from flashinfer_bench.compile.artifact import Kind
from flashinfer_bench.errors import RanOut
from flashinfer_bench.timing.libraries import LibraryCalls
from flashinfer_bench.timing.settings import USUAL, Assurance, TimingSettings

REFERENCE_PHASE: Final = "reference"
"""The reference runs and no worker holds a solution. If the session ends in this phase, the reference has ended it."""
EXPECTED_PHASE: Final = "expected"
"""The reference runs, and a worker can hold a solution."""

LONGEST_LIMIT_S: Final = 7 * 86_400.0
"""Longer limits are reduced to this many seconds: epoll refuses waits above 2**31 ms."""
LimitS = Annotated[float, AfterValidator(lambda limit_s: min(limit_s, LONGEST_LIMIT_S))]


class Frame(BaseModel):
    """A frozen value of this protocol."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SessionConfig(Frame):
    """Settings that a session needs before its first request."""

    device: str
    """"cuda" or "cpu". The session sees only one GPU."""
    hardware: str
    isolated: bool
    timeout_seconds: LimitS
    call_timeout_seconds: LimitS | None = None
    profile_baseline: bool
    compile_mode: str = ""
    """Mode of torch.compile for a second timing of each reference; empty for no second timing."""
    time_budget_s: float
    baseline_budget_s: float
    timing: TimingSettings = USUAL
    keep_samples: bool = False
    library_calls: LibraryCalls = "flag"
    baselines: Literal["use", "refresh", "off"] = "off"
    """Use of cached times of references: read and write, write only, or neither."""
    gpu_uuid: str | None = None
    gpu_index: int | None = None
    """The GPU's CUDA index in PCI bus order; None to use its UUID, which is slower."""
    gpu_capability: tuple[int, int] | None = None
    """The GPU's compute capability, such as (9, 0) for Hopper; None if it is unknown."""
    worker_memory_bytes: int | None
    needs_triton: bool
    cache_root: str
    is_sandboxed: bool = False
    """Workers can access only necessary files, and connect to no service."""
    sandbox_user: str = "unchanged"
    """The user of a worker; see `sandbox.User`."""
    hidden: list[str] = []
    """Folders that no worker may read, even inside a readable folder."""
    sessions: int = 1
    """Number of sessions on GPUs of this machine, including this session."""
    compiles_ahead: bool = False
    """Modules are compiled before their solutions run. The host announces these solutions."""
    expects_new: bool = False
    """Whether more solutions can be submitted. The session keeps some warm workers for new solutions."""
    plug_ins: list[PlugIn] = []
    """Evaluators from outside the package. The session imports them; workers do not."""
    tool: tuple[str, str] | None = None
    """A module whose `Session` replaces `DeviceSession`, and its folder; None for a session that judges."""


class RequestedSolution(Frame):
    """One built solution of a request."""

    name: str
    language: str
    declared_style: bool | None
    digest: str
    directory: str | None
    entry: str
    symbol: str
    kind: Kind
    files: dict[str, str] = {}
    """Path → sha256 of each built file."""
    sources: dict[str, str] = {}
    """Path → text, if the artifact consists of the sources."""
    first_call: FirstCall = FirstCall.NOTHING
    """The compilation in its first call."""
    build_error: str | None
    """Error of a failed build; None if the build succeeded. A failed build has no directory."""


class RequestedJob(Frame):
    """One job of a request."""

    index: int
    solution: str
    """The solution's key in the request's solutions."""
    workload: dict[str, Any]
    blob_root: str
    seed: int
    settings: dict[str, Any] = {}
    """Eval settings that differ from the request's, because the workload has its own tolerance."""
    assurance: Assurance | None = None
    """Assurance of a job that confirms a winner; None for the session's assurance. Such a job has its own worker."""


class Announced(Frame):
    """A solution that runs later, on this device or on another device."""

    solution: RequestedSolution
    definition: dict[str, Any]
    workloads: list[dict[str, Any]]


class SessionRequest(Frame):
    """Jobs of one definition, in execution order."""

    definition: dict[str, Any]
    config: dict[str, Any]
    solutions: dict[str, RequestedSolution]
    """By key (`Job.solution_key`), since two solutions can have the same name."""
    jobs: list[RequestedJob]
    announced: list[Announced] = []
    """Solutions with modules, for this session to compile ahead."""


class SessionReady(Frame):
    """The session can take requests."""

    libs: dict[str, str]


class Phase(Frame):
    """The current activity of the session. The session counts as lost after `limit_s` plus PHASE_GRACE_S seconds
    without a frame."""

    job: int
    name: str
    limit_s: float


class JobVerdict(Frame):
    """A job's evaluation."""

    job: int
    evaluation: dict[str, Any]
    seconds: float
    ran_out: RanOut | None = None
    """The call in which the job ran out of time. The value is "first call" only if the solution's first call may
    compile."""


class JobFault(Frame):
    """A job without a verdict."""

    job: int
    message: str
    retry: bool
    """Another try in a fresh session may help."""
    is_left_out: bool = False
    """The job did not fail, but was skipped, because a call of the solution ran out of time in another job."""
