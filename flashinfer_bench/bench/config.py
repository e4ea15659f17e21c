"""The configuration of a run: system fields, eval fields, and where each value came from.

`default()` and `from_yaml()` read one file and lay overrides on top of the whole of it; the constructor reads none.
`for_set()` lays what a trace set says of its own definitions below all that the user says.
`config_layers.py` holds the cascade. `plan.py` knows the trace set, and checks the names of definitions and op types.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from flashinfer_bench.bench.config_file import read_config_file
from flashinfer_bench.bench.config_layers import (
    DEFAULT_ORIGIN,
    WORKLOAD_ORIGIN,
    Count,
    EvalConfig,
    EvalSettings,
    Gigabytes,
    Layer,
    NotBool,
    Owner,
    PositiveNumber,
    ResolvedEvalConfig,
    Seconds,
    SectionKey,
    Source,
    none_to_empty,
    resolve_layers,
    with_quick_look,
)
from flashinfer_bench.bench.config_problems import ConfigProblem, describe_problems, placed, to_validation_error
from flashinfer_bench.bench.tolerances import FiledDefinitions, SetTolerances, find_tolerances
from flashinfer_bench.data.definition import normalise_op_type

__all__ = ["BenchmarkConfig", "EvalConfig", "ResolvedEvalConfig", "describe_problems"]

BUNDLED_FILE: Final = Path(__file__).with_name("eval_config.yaml")
OVERRIDE_ORIGIN: Final = "override"
CONSTRUCTOR_ORIGIN: Final = "BenchmarkConfig"
KNOWN_OP_TYPES: Final = ("dsa_paged", "lowbit", "moe", "sampling", "top_k")
"""Op types that the bundled file or a built-in evaluator names. op_type_config may name them though no set has them."""


OLD_EXTRAS: Final = frozenset({"sampling_validation_trials", "sampling_tvd_threshold"})
OLD_NAMES: Final = OLD_EXTRAS | {"log_dir"}
"""Settings that scripts give and that are none here: they are read, with a warning."""
BETWEEN: Final = ("flashinfer_bench", "pydantic")
"""Packages whose frames lie between the script that gives a setting and where it is read."""


def _ints_to_text(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [str(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in value]
    return value


def _false_to_off(value: Any) -> Any:
    # YAML reads a bare `off` as false.
    return "off" if value is False else value


def _check_reference(reference: str) -> str:
    module, colon, name = reference.partition(":")
    parts = [*module.split("."), *(name.split(".") if colon else [])]
    if not all(part.isidentifier() for part in parts):
        message = f"{reference!r} is no module; write `package.module` or `module:Class`, not a path"
        raise PydanticCustomError("no_module", "{what}", {"what": message})
    return reference


def _empty_sections(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: none_to_empty(section) for key, section in value.items()}
    return none_to_empty(value)


Names = Annotated[list[str], Field(min_length=1)]
DeviceNames = Annotated[Names, BeforeValidator(_ints_to_text)]
Sections = Annotated[dict[str, EvalConfig], BeforeValidator(_empty_sections)]
Seed = Annotated[int, NotBool, Field(ge=0, le=2**63 - 1)]
PlugInReference = Annotated[str, AfterValidator(_check_reference)]


class NamedDefinition(Protocol):
    """What the cascade needs to know of a definition."""

    @property
    def name(self) -> str:
        """Its name, a key of definition_config."""

    @property
    def op_type(self) -> str:
        """Its op type, a key of op_type_config."""


class BenchmarkConfig(EvalSettings):
    """Everything that decides how a run goes. A wrong value or key raises pydantic's ValidationError.

    A value that is assigned (`config.iterations = 20`) is an override: it beats every section, as a flag does.
    """

    model_config = ConfigDict(frozen=False)

    rtol: PositiveNumber = 1e-2
    """As in `EvalSettings`, but not 0."""
    atol: PositiveNumber = 1e-2
    """As in `EvalSettings`, but not 0."""

    use_isolated_runner: bool = False
    """A new worker process for each workload instead of one for each solution."""
    timeout_seconds: Seconds = 300
    """Limit of one solution on one workload, in seconds."""
    profile_baseline: bool = True
    """Time the reference too; without it there is no speed-up."""
    definitions: Names | None = None
    """Run only these definitions."""
    solutions: Names | None = None
    """Run only these solutions."""
    op_types: Names | None = None
    """Run only these op types."""
    authors: Names | None = None
    """Run only solutions of these authors."""
    workloads: Names | None = None
    """Run only these workloads: whole uuids, or prefixes that only one uuid has."""
    devices: DeviceNames | None = None
    """Use only these devices: "0", "cuda:1", a GPU's uuid, or "cpu"."""
    cluster: Literal["ray"] | None = None
    """Run on the places of a cluster instead of this machine's devices; needs the extra `cluster`."""
    cluster_address: str | None = None
    """Address of the cluster's head, such as "10.0.0.1:6379"; None for the cluster that this machine belongs to."""
    shared_blobs: bool = False
    """All nodes of the cluster see the trace sets under the same paths, so stored inputs do not travel."""
    seed: Seed | None = None
    """Seed of the inputs; None draws a secret one, which is recorded."""
    worker_memory_gb: Gigabytes | None = None
    """Limit on a worker's host memory; None leaves it to the machine."""
    build_jobs: Count | None = None
    """How many compilers run at once; None for one less than there are cores (on a CPU, which waits for them, all)."""
    time_budget_s: Seconds = 1.0
    """A measurement of a solution takes fewer samples where it would last longer than this."""
    baseline_budget_s: Seconds = 2.0
    """A measurement of the reference takes fewer samples where it would last longer than this."""
    l2_cache: Literal["cold", "warm"] = "cold"
    """State of a GPU's L2 before each timed call: flushed, or as the call before left it."""
    clock: Literal["auto", "cuda_events"] = "auto"
    """How GPU work is timed: CUPTI where it is to be had, or CUDA events."""
    cuda_graphs: bool = True
    """A call of several GPU operations is timed as the replay of a CUDA graph, where it can be captured."""
    assurance: Literal["standard", "full"] = "standard"
    """How far a GPU's latency is bound from outside: by a chain of calls, or at full by batches of calls, too."""
    keep_samples: bool = False
    """Write every reading into the trace, not only what they come to."""
    quick: bool = False
    """A first look: one trial, few readings, a coarse precision. Its traces are marked, never best, never resumed from.
    """
    interpret: bool = False
    """Without a GPU, run Triton solutions that are for GPUs alone in Triton's interpreter; else they are skipped."""
    fresh_baselines: bool = False
    """Time every reference in this run; otherwise what an earlier run kept of the same GPU is taken over."""
    sandbox: Annotated[Literal["strict", "auto", "off"], BeforeValidator(_false_to_off)] = "auto"
    """How far workers are confined: all of it or no run, all that this machine gives, or not."""
    trust_definitions: bool = False
    """Make custom inputs by the code of definitions from any set, not from the first one's own files alone."""
    evaluator_modules: list[PlugInReference] = Field(default_factory=list)
    """Modules with evaluators of the user's own, asked before the built-in ones: `package.module` or `module:Class`."""
    op_type_config: Sections = Field(default_factory=dict)
    """Eval fields by op type; they beat the top level."""
    definition_config: Sections = Field(default_factory=dict)
    """Eval fields by definition; they beat op_type_config."""

    _sources: tuple[Source, ...] = PrivateAttr(default=())
    """Lowest first; each one beats the whole of those before it."""

    @model_validator(mode="before")
    @classmethod
    def _read_old_names(cls, data: Any) -> Any:
        return _without_old_names(data) if isinstance(data, Mapping) and not OLD_NAMES.isdisjoint(data) else data

    @field_validator("op_type_config")
    @classmethod
    def _check_one_spelling(cls, sections: dict[str, EvalConfig]) -> dict[str, EvalConfig]:
        first: dict[str, str] = {}
        for key in sections:
            other = first.setdefault(normalise_op_type(key), key)
            if other != key:
                message = f'"{other}" and "{key}" are two spellings of one op type; keep one section'
                raise PydanticCustomError("two_spellings", "{what}", {"what": message})
        return sections

    def model_post_init(self, context: Any, /) -> None:
        """Remember what was given, for the cascade and for origins."""
        super().model_post_init(context)
        self._sources = (self._as_source(CONSTRUCTOR_ORIGIN),)

    @classmethod
    def default(cls, **overrides: Any) -> BenchmarkConfig:
        """Load the bundled eval_config.yaml with overrides on top."""
        return cls._load(BUNDLED_FILE, overrides, bundled=True)

    @classmethod
    def from_yaml(cls, path: str | Path, **overrides: Any) -> BenchmarkConfig:
        """Load another file instead of the bundled one, with overrides on top.

        Raises:
            ConfigError: the file cannot be read as a mapping.
            ValidationError: keys or values of the file or the overrides are wrong; all at once, each with its place.
        """
        return cls._load(Path(path), overrides, bundled=False)

    def resolve_eval_config(
        self, definition: NamedDefinition, tolerance: EvalConfig | None = None
    ) -> ResolvedEvalConfig:
        """Return the complete eval settings of a definition; with a workload's own tolerance, those of the workload."""
        name, op_type = definition.name, definition.op_type
        own = [] if tolerance is None else [Layer(WORKLOAD_ORIGIN, tolerance.given(), tolerance.extra)]
        users = [source for source in self._layered() if source.owner == "user"]
        others = [source for source in self._layered() if source.owner != "user"]
        below, above = (
            [layer for source in sources for layer in source.layers(name, op_type)] for sources in (others, users)
        )
        resolved = resolve_layers([*below, *own, *above])
        return resolved.model_copy(update={"profile_baseline": self.profile_baseline})

    def origins(self) -> dict[str, str]:
        """Return where the value of each top-level field came from, by field name or "extra.<key>"."""
        sections = {"op_type_config", "definition_config", "extra"}
        found = {name: DEFAULT_ORIGIN for name in type(self).model_fields if name not in sections}
        for source in self._layered():
            found.update({name: source.origin for name in source.given if name in found})
            found.update({f"extra.{key}": source.origin for key in source.top.extra})
        return found

    def op_type_keys(self) -> list[SectionKey]:
        """Return the op types that the user's own sections name."""
        return [key for source in self._sources if source.owner == "user" for key in source.op_type_keys()]

    def definition_keys(self) -> list[SectionKey]:
        """Return the definitions that the user's own sections name."""
        return [key for source in self._sources if source.owner == "user" for key in source.definition_keys()]

    def section_places(self, section: str, key: str) -> set[str]:
        """Return the places at which sources have a section, as origins name them.

        Args:
            section: op_type_config or definition_config.
            key: the op type or the definition.
        """
        return {source.place_of(section, key) for source in self._sources}

    def for_set(self, trace_set: FiledDefinitions) -> BenchmarkConfig:
        """Return this configuration with what a trace set says of its definitions (`tolerances.py`), and no other set.

        Raises:
            ConfigError: what it says cannot be used.
        """
        users = [source for source in self._sources if source.owner == "user"]
        bundled = [source for source in self._sources if source.owner == "bundled"]
        sources = (*bundled, *map(_as_set_source, find_tolerances(trace_set)), *users)
        sections: dict[str, EvalConfig] = {}
        for source in sources:
            sections = _merge(sections, source.definitions, source.top, str)
        given = {name: getattr(self, name) for name in self.model_fields_set}
        config = type(self)(**{**given, **({"definition_config": sections} if sections else {})})
        config._sources = sources
        return config

    def timing_mark(self) -> str | None:
        """Return how this run's timing differs from the usual one, for a job's fingerprint; None where it does not."""
        marks = [
            "quick" if self.quick else "",
            "warm L2" if self.l2_cache == "warm" else "",
            self.clock if self.clock != "auto" else "",
            "" if self.cuda_graphs else "no graphs",
        ]
        return ", ".join(filter(None, marks)) or None

    def with_overrides(self, **overrides: Any) -> BenchmarkConfig:
        """Return a configuration with overrides on top of everything in this one."""
        given, problems = _validate(type(self), overrides, lambda problem: placed(problem, OVERRIDE_ORIGIN, {}))
        if given is None:
            raise to_validation_error(type(self).__name__, problems)
        return self._under(given)

    def with_defaults(self, origin: str, **values: Any) -> BenchmarkConfig:
        """Return this configuration with other defaults of eval fields: whatever a source gives beats them.

        Args:
            origin: where they are told to come from.
            **values: by field.
        """
        below = Source(origin, frozenset(values), EvalConfig(**values), {}, {}, owner="bundled")
        config = self.model_copy()
        config._sources = (below, *self._sources)
        return config

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> BenchmarkConfig:
        """Return a copy; `update` is checked and counts as overrides (pydantic's own would miss the cascade)."""
        copy = super().model_copy(deep=deep)
        return copy.with_overrides(**update) if update else copy

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
            return
        changed = self.with_overrides(**{name: value})
        for part in ("__dict__", "__pydantic_fields_set__", "__pydantic_private__"):
            object.__setattr__(self, part, getattr(changed, part))

    def _layered(self) -> tuple[Source, ...]:
        return with_quick_look(self._sources) if self.quick else self._sources

    @classmethod
    def _load(cls, path: Path, overrides: Mapping[str, Any], *, bundled: bool) -> BenchmarkConfig:
        file = read_config_file(path)
        base, problems = _validate(cls, file.values, lambda problem: placed(problem, str(path), file.lines))
        above, more = _validate(cls, overrides, lambda problem: placed(problem, OVERRIDE_ORIGIN, {}))
        if base is None or above is None:
            raise to_validation_error(str(path) if problems else cls.__name__, [*problems, *more])
        base._sources = (base._as_source(path.name, owner="bundled" if bundled else "user"),)
        return base._under(above) if overrides else base

    def _as_source(self, origin: str, *, owner: Owner = "user") -> Source:
        given = {name: getattr(self, name) for name in EvalSettings.model_fields if name in self.model_fields_set}
        return Source(
            origin=origin,
            given=frozenset(self.model_fields_set),
            top=EvalConfig.model_construct(set(given), **given),
            op_types=self.op_type_config,
            definitions=self.definition_config,
            owner=owner,
        )

    def _under(self, above: BenchmarkConfig) -> BenchmarkConfig:
        source = above._as_source(OVERRIDE_ORIGIN)
        merged = {name: getattr(config, name) for config in (self, above) for name in sorted(config.model_fields_set)}
        merged["extra"] = {**self.extra, **above.extra}
        merged["op_type_config"] = _merge(self.op_type_config, above.op_type_config, source.top, normalise_op_type)
        merged["definition_config"] = _merge(self.definition_config, above.definition_config, source.top, str)
        config = type(self)(**merged)
        config._sources = (*self._sources, source)
        return config


def _without_old_names(data: Mapping[Any, Any]) -> dict[Any, Any]:
    """Read keys of the public package that have another place here, and warn of each."""
    given = {key: value for key, value in data.items() if key not in OLD_NAMES}
    level = _level_of_script()
    if "log_dir" in data:
        warnings.warn("log_dir has no effect: each trace holds its log", DeprecationWarning, stacklevel=level)
    for key in sorted(OLD_EXTRAS & set(data)):
        warnings.warn(f'{key} belongs into extra={{"{key}": ...}}', DeprecationWarning, stacklevel=level)
        given["extra"] = {key: data[key], **(given.get("extra") or {})}
    return given


def _level_of_script() -> int:
    """Return the stack level, seen from the caller, of the script that gave the settings."""
    level, frame = 1, inspect.currentframe()
    frame = frame.f_back if frame is not None else None
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(BETWEEN):
        level, frame = level + 1, frame.f_back
    return level


def _as_set_source(found: SetTolerances) -> Source:
    return Source(str(found.file), frozenset(), EvalConfig(), {}, found.sections, owner="set")


def _validate(
    model: type[BenchmarkConfig], values: Mapping[Any, Any], place: Callable[[ConfigProblem], ConfigProblem]
) -> tuple[BenchmarkConfig | None, list[ConfigProblem]]:
    try:
        return model.model_validate(dict(values)), []
    except ValidationError as error:
        return None, [place(ConfigProblem.from_details(details)) for details in error.errors(include_url=False)]


def _merge(
    below: Mapping[str, EvalConfig], above: Mapping[str, EvalConfig], top: EvalConfig, identity: Callable[[str], str]
) -> dict[str, EvalConfig]:
    """Lay sections over sections; what `top` gives beats the lower ones, so it is taken out of them."""
    spelt = {identity(key): key for key in below}
    merged = {key: config.without(top.given(), top.extra) for key, config in below.items()}
    for key, config in above.items():
        own = spelt.get(identity(key), key)
        merged[own] = merged[own].under(config) if own in merged else config
    return merged
