"""The frames between the host and a device session. Both are ours, so the frames are trusted. They are JSON.

host → session      {"hello": SessionConfig}        once, first
                    {"request": SessionRequest}   jobs of one definition, all of one solution together; one at a time is
                                            sent ahead of its beginning
                    {"begin": true}         run the request that was sent
                    {"drop": true}          forget the request that was sent and not begun
                    {"close": true}
session → host      {"ready": SessionReady}
                    {"phase": Phase}        what it does now, and how long that may take
                    {"verdict": JobVerdict}
                    {"fault": JobFault}
                    {"notice": str}
                    {"done": true}          the request is finished
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict

from flashinfer_bench.bench.evaluators.plug_ins import PlugIn
from flashinfer_bench.compile.artifact import Kind
from flashinfer_bench.errors import RanOut
from flashinfer_bench.timing.settings import USUAL, Assurance, TimingSettings

REFERENCE_PHASE: Final = "reference"
"""The reference runs and no worker holds a solution: a session that ends now is ended by the reference."""
EXPECTED_PHASE: Final = "expected"
"""The reference runs, and a worker may hold a solution."""

LONGEST_LIMIT_S: Final = 7 * 86_400.0
"""A longer limit is shortened to this: epoll refuses waits above 2**31 ms."""
LimitS = Annotated[float, AfterValidator(lambda limit_s: min(limit_s, LONGEST_LIMIT_S))]


class Frame(BaseModel):
    """A frozen value of this protocol."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SessionConfig(Frame):
    """What a session must know before its first request."""

    device: str
    """"cuda" or "cpu"; the host shows a session one GPU only."""
    hardware: str
    isolated: bool
    timeout_seconds: LimitS
    call_timeout_seconds: LimitS | None = None
    profile_baseline: bool
    time_budget_s: float
    baseline_budget_s: float
    timing: TimingSettings = USUAL
    keep_samples: bool = False
    baselines: Literal["use", "refresh", "off"] = "off"
    """Whether times of references are taken over from earlier runs: yes; no, but kept for later ones; neither."""
    gpu_uuid: str | None = None
    gpu_index: int | None = None
    """Its number as CUDA counts GPUs by PCI address, by which a worker finds it sooner; None to go by its UUID."""
    gpu_capability: tuple[int, int] | None = None
    """Its compute capability, (9, 0) for Hopper; None where nobody knows it yet."""
    worker_memory_bytes: int | None
    needs_triton: bool
    cache_root: str
    has_walls: bool = False
    """Workers read and write what they need, and connect to nothing."""
    sandbox_user: str = "unchanged"
    """Who a worker is; see `sandbox.User`."""
    hidden: list[str] = []
    """Folders that no worker reads, wherever they lie."""
    sessions: int = 1
    """Sessions that judge on GPUs of this machine, this one among them."""
    compiles_ahead: bool = False
    """Modules are compiled before their solutions have their turn; the host announces these."""
    expects_new: bool = False
    """Solutions come that nobody has sent yet; some workers are kept for them."""
    plug_ins: list[PlugIn] = []
    """Evaluators from outside the package, which the session imports and no worker does."""
    tool: tuple[str, str] | None = None
    """A module whose `Session` takes the place of `DeviceSession`, and its folder; None for a session that judges."""


class RequestedSolution(Frame):
    """One solution of a request, built."""

    name: str
    language: str
    declared_style: bool | None
    digest: str
    directory: str | None
    entry: str
    symbol: str
    kind: Kind
    files: dict[str, str] = {}
    """Path → sha256 of what was built."""
    sources: dict[str, str] = {}
    """Path → text, where the artifact is the sources themselves."""
    build_error: str | None
    """Set where the build failed; then there is no directory."""


class RequestedJob(Frame):
    """One job of a request."""

    index: int
    solution: str
    """Its key in the request's solutions."""
    workload: dict[str, Any]
    blob_root: str
    seed: int
    settings: dict[str, Any] = {}
    """Eval settings in which the job differs from its request: those of its workload's own tolerance."""
    assurance: Assurance | None = None
    """That of a confirmation, which has a worker of its own; None for the session's."""


class Announced(Frame):
    """A solution whose turn comes some time, on this device or on another."""

    solution: RequestedSolution
    definition: dict[str, Any]
    workloads: list[dict[str, Any]]


class SessionRequest(Frame):
    """Jobs of one definition, in the order in which they are to run."""

    definition: dict[str, Any]
    config: dict[str, Any]
    solutions: dict[str, RequestedSolution]
    """By key (`Job.solution_key`): two solutions may have one name."""
    jobs: list[RequestedJob]
    announced: list[Announced] = []
    """Solutions with modules, for this session to compile ahead."""


class SessionReady(Frame):
    """The session can take requests."""

    pid: int
    libs: dict[str, str]


class Phase(Frame):
    """What the session is doing; past `limit_s` seconds it is taken for lost."""

    job: int
    name: str
    limit_s: float


class JobVerdict(Frame):
    """A job's evaluation."""

    job: int
    evaluation: dict[str, Any]
    seconds: float
    ran_out: RanOut | None = None
    """In which call it ran out of time; "first call" only for a solution whose first call may compile."""


class JobFault(Frame):
    """A job that has no verdict."""

    job: int
    message: str
    retry: bool
    """Trying again on a fresh session may help."""
    is_left_out: bool = False
    """Nothing failed: a call of the solution ran out of time in another job."""
