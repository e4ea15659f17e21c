"""Configuration of a run: its fields, and how a file, overrides and a trace set make one configuration.

A `BenchmarkConfig` is a list of levels (`config_sources.py`) and their merged values. `default()` and `from_yaml()`
read one file and put overrides on top; the constructor reads no file. `for_set()` adds a trace set's settings of its
own definitions. Wrong keys and values of all sources are reported together. The plan, which knows the set, checks names
of definitions, op types and so on.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails

from flashinfer_bench.bench.config_sources import (
    DEFAULT_ORIGIN,
    DEFINITIONS,
    EVAL_FIELDS,
    SECTIONS,
    Count,
    EmptyIfNone,
    EvalConfig,
    EvalSettings,
    Gigabytes,
    Level,
    Levels,
    NotBool,
    PositiveNumber,
    ResolvedEvalConfig,
    Seconds,
    as_validation_error,
    by_owner,
    cascade,
    describe_problems,
    flatten,
    list_problems,
    merge_sections,
    nest,
)
from flashinfer_bench.bench.tolerances import find_tolerances
from flashinfer_bench.data.store.yaml_file import read_yaml_file

if TYPE_CHECKING:
    from flashinfer_bench.data import TraceSet

__all__ = ["BenchmarkConfig", "EvalConfig", "ResolvedEvalConfig", "describe_problems"]

BUNDLED_FILE: Final = Path(__file__).with_name("eval_config.yaml")
OVERRIDE_ORIGIN: Final = "override"
EDITED_CALL_S: Final = 20.0
"""Default `call_timeout_seconds` of edited files and of submissions. A hang then costs only seconds."""
OLD_EXTRAS: Final = frozenset({"sampling_validation_trials", "sampling_tvd_threshold"})
OLD_NAMES: Final = OLD_EXTRAS | {"log_dir"}
"""Fields of the public package that have another location here, and are read with a warning."""
BETWEEN: Final = ("flashinfer_bench", "pydantic")
"""Packages whose frames lie between a script's call and the validator."""


Names = Annotated[list[str], Field(min_length=1)]
DeviceNames = Annotated[list[Annotated[str, Field(coerce_numbers_to_str=True)]], Field(min_length=1)]
Sections = Annotated[dict[str, Annotated[EvalConfig, EmptyIfNone]], EmptyIfNone]
Seed = Annotated[int, NotBool, Field(ge=0, le=2**63 - 1)]
PlugInReference = Annotated[str, Field(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*(\.[^\W\d]\w*)*)?$")]
CompiledBaseline = Annotated[
    Literal[
        "compile",
        "compile:default",
        "compile:reduce-overhead",
        "compile:max-autotune",
        "compile:max-autotune-no-cudagraphs",
    ],
    AfterValidator(lambda value: "compile:default" if value == "compile" else value),
]
SandboxLevel = Annotated[  # YAML reads a bare `off` as false
    Literal["strict", "auto", "off"], BeforeValidator(lambda value: "off" if value is False else value)
]


class NamedDefinition(Protocol):
    """The fields of a definition that the cascade needs."""

    @property
    def name(self) -> str:
        """Its name, a key of definition_config."""

    @property
    def op_type(self) -> str:
        """Its op type, a key of op_type_config."""


class BenchmarkConfig(EvalSettings):
    """All settings of a run. A wrong value or key raises pydantic's ValidationError.

    An assigned value (`config.iterations = 20`) is an override: like a flag, it beats every section.
    """

    model_config = ConfigDict(frozen=False)

    rtol: PositiveNumber = 1e-2
    """Relative tolerance of an element, above 0."""
    atol: PositiveNumber = 1e-2
    """Absolute tolerance of an element, above 0."""

    use_isolated_runner: bool = False
    """Start a new worker process for each workload, instead of one for each solution."""
    timeout_seconds: Seconds = 300
    """Limit of one solution on one workload, in seconds."""
    call_timeout_seconds: Seconds | None = None
    """Limit of a solution's later calls, and of its first call while nothing compiles, in seconds; None for no limit. A
    call may always take 50 times as long as the reference. `run --solution`, `repro`, `serve` and `Engine` set 20,
    --watch and --quick 5."""
    profile_baseline: bool = True
    """Time the reference; without its time there is no speed-up."""
    baseline: CompiledBaseline | None = None
    """A second baseline, besides the reference: the reference under torch.compile, in this mode."""
    definitions: Names | None = None
    """Run only these definitions."""
    solutions: Names | None = None
    """Run only these solutions."""
    op_types: Names | None = None
    """Run only these op types."""
    authors: Names | None = None
    """Run only solutions of these authors."""
    workloads: Names | None = None
    """Run only these workloads: whole uuids, prefixes that only one uuid has, or sizes such as `batch_size=7`."""
    devices: DeviceNames | None = None
    """Use only these devices: "0", "cuda:1", a GPU's uuid, or "cpu"."""
    cluster: Literal["ray"] | None = None
    """Run on the slots of a cluster instead of this machine's devices; needs the extra `cluster`."""
    cluster_address: str | None = None
    """Address of the cluster's head, such as "10.0.0.1:6379"; None for the cluster that this machine belongs to."""
    shared_blobs: bool = False
    """All nodes of the cluster see the trace sets under the same paths, so stored inputs do not travel."""
    seed: Seed | None = None
    """Seed of the inputs; None draws a secret seed, which is recorded."""
    worker_memory_gb: Gigabytes | None = None
    """Limit on a worker's host memory; None leaves it to the machine."""
    build_jobs: Count | None = None
    """Number of compilers that may run at once. None: the number of cores on a CPU, that number minus one on a GPU."""
    time_budget_s: Seconds = 1.0
    """A measurement of a solution takes fewer samples if it would last longer than this."""
    baseline_budget_s: Seconds = 2.0
    """A measurement of the reference takes fewer samples if it would last longer than this."""
    l2_cache: Literal["cold", "warm"] = "cold"
    """State of a GPU's L2 before each timed call: flushed, or unchanged since the previous call."""
    clock: Literal["auto", "cuda_events"] = "auto"
    """Clock of GPU work: CUPTI if it is available, or CUDA events."""
    cuda_graphs: bool = True
    """Time a call of several GPU operations as the replay of a captured CUDA graph."""
    assurance: Literal["standard", "full"] = "standard"
    """How a GPU's latency is checked from outside the worker: by a gated chain, and at full also by batches."""
    confirm: bool = True
    """Judge the best of each workload again at full assurance, on a GPU, to confirm it."""
    library_calls: Literal["allow", "flag", "refuse"] = "flag"
    """A solution whose kernels on a GPU are all a library's (cuBLAS, cuDNN, FlashInfer, torch): allow it, flag its
    time, or refuse it as RUNTIME_ERROR."""
    keep_samples: bool = False
    """Write every sample into the trace, not only their summary."""
    quick: bool = False
    """A first check: one trial, few samples, a coarse precision. Its traces are marked, never best, never resumed from.
    """
    interpret: bool = False
    """On a machine without a GPU, run Triton solutions that need a GPU in Triton's interpreter. Without this setting,
    such solutions are skipped."""
    fresh_baselines: bool = False
    """Time every reference in this run, instead of reusing the times of an earlier run on the same GPU."""
    sandbox: SandboxLevel = "auto"
    """Sandbox of workers: strict (required), auto (best available), off."""
    trust_definitions: bool = False
    """Let the code of definitions in any set make custom inputs; without it, only definitions in the first set's own
    files."""
    evaluator_modules: list[PlugInReference] = Field(default_factory=list)
    """Modules with the user's own evaluators, which come before the built-in ones: `package.module` or
    `module:Class`."""
    op_type_config: Sections = Field(default_factory=dict)
    """Eval fields by op type; they beat the top level."""
    definition_config: Sections = Field(default_factory=dict)
    """Eval fields by definition; they beat op_type_config."""

    _levels: Levels = PrivateAttr(default=())

    @model_validator(mode="before")
    @classmethod
    def _read_old_names(cls, data: Any) -> Any:
        """Move fields of the public package to their location here, and warn of each at the line of the script."""
        if not isinstance(data, Mapping) or OLD_NAMES.isdisjoint(data):
            return data
        level, frame = 1, inspect.currentframe()
        while frame is not None and str(frame.f_globals.get("__name__")).startswith(BETWEEN):
            level, frame = level + 1, frame.f_back
        given = {key: value for key, value in data.items() if key not in OLD_NAMES}
        if "log_dir" in data:
            warnings.warn("log_dir has no effect: each trace holds its log", DeprecationWarning, stacklevel=level)
        for key in sorted(OLD_EXTRAS & set(data)):
            warnings.warn(f'{key} belongs into extra={{"{key}": ...}}', DeprecationWarning, stacklevel=level)
            given["extra"] = {key: data[key], **(given.get("extra") or {})}
        return given

    def model_post_init(self, context: Any, /) -> None:
        """Record the given values as one source."""
        super().model_post_init(context)
        self._levels = self._as_levels(type(self).__name__)

    @classmethod
    def default(cls, **overrides: Any) -> BenchmarkConfig:
        """Load the bundled eval_config.yaml with overrides on top."""
        return cls._read_file(BUNDLED_FILE, "bundled", overrides)

    @classmethod
    def from_yaml(cls, path: str | Path, **overrides: Any) -> BenchmarkConfig:
        """Load another file instead of the bundled one, with overrides on top.

        Raises:
            ConfigError: the file cannot be read as a mapping.
            ValidationError: keys or values of the file or the overrides are wrong; all at once, each with its source.
        """
        return cls._read_file(Path(path), "user", overrides)

    def with_overrides(self, **overrides: Any) -> BenchmarkConfig:
        """Return a configuration with overrides on top of everything in this one."""
        return self._lay(self._levels, overrides)

    def with_defaults(self, origin: str, **values: Any) -> BenchmarkConfig:
        """Return this configuration with these defaults of eval fields. A value from any source beats such a default.

        Args:
            origin: their origin.
            **values: by field.
        """
        return self._merge((Level(origin, EvalConfig(**values).flat(), "bundled"), *self._levels))

    def for_set(self, trace_set: TraceSet) -> BenchmarkConfig:
        """Return this configuration with the settings that a trace set has for its definitions (`tolerances.py`).
        Settings of other sets are dropped.

        Raises:
            ConfigError: a tolerances file cannot be used.
        """
        result = [
            Level(str(one.file), flatten(values), "set", DEFINITIONS, name)
            for one in find_tolerances(trace_set)
            for name, values in one.sections.items()
        ]
        return self._merge((*(level for level in self._levels if level.owner != "set"), *result))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> BenchmarkConfig:
        """Return a copy. `update` is checked and counts as overrides; pydantic's method would bypass the cascade."""
        copy = super().model_copy(deep=deep)
        return copy.with_overrides(**update) if update else copy

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
            return
        changed = self.with_overrides(**{name: value})
        for part in ("__dict__", "__pydantic_fields_set__", "__pydantic_private__"):
            object.__setattr__(self, part, getattr(changed, part))

    def resolve_eval_config(
        self, definition: NamedDefinition, tolerance: Mapping[str, Any] | None = None
    ) -> ResolvedEvalConfig:
        """Return the complete eval settings of a definition, or of a workload.

        Args:
            definition: the definition.
            tolerance: the workload's own, from `own_tolerance`.
        """
        levels = self._levels
        if tolerance is not None:
            levels = by_owner((*levels, Level("the workload's tolerance", tolerance, "set")))
        given = cascade(levels, definition.name, definition.op_type)
        result = {name: one for name, one in given.items() if name in EVAL_FIELDS or name.startswith("extra.")}
        origins = dict.fromkeys(EVAL_FIELDS, DEFAULT_ORIGIN) | {name: origin for name, (_, origin) in result.items()}
        values = nest({name: value for name, (value, _) in result.items()})
        return ResolvedEvalConfig(**values, origins=origins, profile_baseline=self.profile_baseline)

    def origins(self) -> dict[str, str]:
        """Return the origin of each top-level field, by field name or "extra.<key>"."""
        result = {name: DEFAULT_ORIGIN for name in type(self).model_fields if name not in (*SECTIONS, "extra")}
        return result | {name: origin for name, (_, origin) in cascade(self._levels).items()}

    def section_locations(self, section: str, *, users_only: bool = False) -> Iterator[tuple[str, str]]:
        """Yield source and name of each section of op_type_config or definition_config, in all sources or only in the
        user's."""
        for level in self._levels:
            if level.section == section and (level.owner == "user" or not users_only):
                yield level.location, level.name

    @property
    def compile_mode(self) -> str:
        """Mode of torch.compile for the second baseline; empty without that baseline."""
        return (self.baseline or "").partition(":")[2] if self.profile_baseline else ""

    def timing_key(self) -> str | None:
        """Return the timing settings that differ from the usual settings, for a job's fingerprint; None if there are
        none."""
        parts = [
            "quick" if self.quick else "",
            "warm L2" if self.l2_cache == "warm" else "",
            self.clock if self.clock != "auto" else "",
            "" if self.cuda_graphs else "no graphs",
        ]
        return ", ".join(filter(None, parts)) or None

    @classmethod
    def _read_file(cls, path: Path, owner: Literal["bundled", "user"], overrides: Mapping[str, Any]) -> BenchmarkConfig:
        file = read_yaml_file(path)
        try:
            below, problems = cls.model_validate(file.values)._as_levels(path.name, owner), list[InitErrorDetails]()
        except ValidationError as error:
            below, problems = (), list_problems(error, source=str(path), lines=file.lines)
        return cls._lay(below, overrides, problems)

    @classmethod
    def _lay(
        cls, below: Levels, overrides: Mapping[str, Any], problems: Sequence[InitErrorDetails] = ()
    ) -> BenchmarkConfig:
        """Put overrides on top of levels. All problems, including those of the levels below, are raised at once."""
        above: Levels = ()
        try:
            above = cls.model_validate(dict(overrides))._as_levels(OVERRIDE_ORIGIN)
        except ValidationError as error:
            problems = [*problems, *list_problems(error, source=OVERRIDE_ORIGIN)]
        if problems:
            raise as_validation_error(cls.__name__, problems)
        return cls._merge((*below, *above))

    @classmethod
    def _merge(cls, levels: Levels) -> BenchmarkConfig:
        levels = by_owner(levels)
        top = nest({name: value for level in levels if not level.section for name, value in level.values.items()})
        sections = {section: merge_sections(levels, section) for section in SECTIONS}
        config = cls(**top, **{section: configs for section, configs in sections.items() if configs})
        config._levels = levels
        return config

    def _as_levels(self, origin: str, owner: Literal["bundled", "user"] = "user") -> Levels:
        given = {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}
        sections = [(section, name, one) for section in SECTIONS for name, one in given.pop(section, {}).items()]
        top = Level(origin, flatten(given), owner)
        return (top, *(Level(origin, one.flat(), owner, section, name) for section, name, one in sections))
