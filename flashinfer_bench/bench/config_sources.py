"""Evaluation settings, the sources that give them, and the cascade over these sources. Nothing here touches the disk.

`EvalConfig` is partial: the fields that one section gives. `ResolvedEvalConfig` is complete: the settings of one
definition, each with its origin. A `Source` is one giver at its three levels: top level, op types, definitions.
`cascade` is the only place that decides which value wins:

    package defaults < eval_config.yaml < tolerances.yaml of the set < workload's tolerance < user's file < overrides

Within one source a definition's section beats its op type's, which beats the top level.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ModelWrapValidatorHandler,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from flashinfer_bench.base.plain_values import to_number
from flashinfer_bench.bench.config_file import as_validation_error, list_problems
from flashinfer_bench.data.definition import normalise_op_type
from flashinfer_bench.data.digest import digest_of

DEFAULT_ORIGIN: Final = "default"
OP_TYPES: Final = "op_type_config"
DEFINITIONS: Final = "definition_config"
SECTIONS: Final = (OP_TYPES, DEFINITIONS)
OWNERS: Final = ("bundled", "set", "user")
"""Who wrote a source: this package, a trace set about itself, or the user. A later one beats an earlier one."""
EXTRA_DEPTH_LIMIT: Final = 20
AUTO: Final = "auto"
"""Number of iterations that follows from `precision`, at most the default number."""
MOST_CALLS: Final = 10_000_000
LEAST_GB: Final = 0.25
"""GiB that a worker needs before it has loaded anything."""
MOST_GB: Final = 1_000_000
LONGEST_S: Final = 1_000_000
"""Seconds of a limit or budget. The system's waits take at most 2**31 ms."""


def _read_number(value: Any) -> Any:
    value = to_number(value)  # scripts take counts from numpy and torch
    if isinstance(value, bool):  # `iterations: yes` in YAML would become 1
        raise PydanticCustomError("bool_for_number", "a number is needed, not true or false")
    return value


def _read_iterations(value: Any, count: ValidatorFunctionWrapHandler) -> Any:
    if value == AUTO and isinstance(value, str):
        return value
    if isinstance(value, str) and not value.strip().isdigit():
        raise PydanticCustomError("no_count", "a whole number or 'auto' is needed")
    return count(value)


def none_to_empty(value: Any) -> Any:
    """Read an empty section, such as `extra:` with all its lines commented out, as an empty mapping."""
    return {} if value is None else value


def _read_extra(value: Any, depth: int = 0) -> Any:
    value = value if depth else none_to_empty(value)
    if depth > EXTRA_DEPTH_LIMIT:
        raise PydanticCustomError("too_deep", "values are nested too deep, or one contains itself")
    if isinstance(value, Mapping):
        return {key: _read_extra(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_read_extra(item, depth + 1) for item in value]
    return to_number(value)


NotBool = BeforeValidator(_read_number)
WarmupRuns = Annotated[int, NotBool, Field(ge=0, le=MOST_CALLS)]
Count = Annotated[int, NotBool, Field(ge=1, le=MOST_CALLS)]
if TYPE_CHECKING:
    Iterations = int | Literal["auto"]
else:  # a union would name both kinds in the place of each problem
    Iterations = Annotated[Count, WrapValidator(_read_iterations), PlainSerializer(lambda value: value)]
Tolerance = Annotated[float, NotBool, Field(ge=0, allow_inf_nan=False)]
PositiveNumber = Annotated[float, NotBool, Field(gt=0, allow_inf_nan=False)]
Gigabytes = Annotated[float, NotBool, Field(ge=LEAST_GB, le=MOST_GB, allow_inf_nan=False)]
Seconds = Annotated[float, NotBool, Field(gt=0, le=LONGEST_S, allow_inf_nan=False)]
Precision = Annotated[float, NotBool, Field(gt=0, le=0.5, allow_inf_nan=False)]
Ratio = Annotated[float, NotBool, Field(gt=0, le=1)]
Extra = Annotated[dict[str, JsonValue], BeforeValidator(lambda value: _read_extra(value))]
"""Parameters of one evaluator. Values are JSON's, since they cross to the judge's process."""


class StrictModel(BaseModel):
    """A frozen model that refuses unknown keys and names the nearest known one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _name_unknown_keys(cls, data: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        try:
            return handler(data)
        except ValidationError as error:
            problems = list_problems(error, known=list(cls.model_fields))
            raise as_validation_error(cls.__name__, problems) from None


class EvalSettings(StrictModel):
    """Eval fields with their global defaults."""

    warmup_runs: WarmupRuns = 10
    """Calls before timing starts."""
    iterations: Iterations = 50
    """Timed calls per trial; "auto": as many as `precision` needs, from 20 to 50."""
    num_trials: Count = 3
    """Independent trials, each with inputs of its own."""
    precision: Precision = 0.015
    """Target relative confidence half-width of a latency. Noisy kernels get more samples, slow kernels fewer."""
    rtol: Tolerance = 1e-2
    """Relative tolerance of an element."""
    atol: Tolerance = 1e-2
    """Absolute tolerance of an element."""
    required_matched_ratio: Ratio | None = None
    """Share of elements that must match; None leaves it to the evaluator (1.0 in the Default evaluator)."""
    norm_rule: bool = True
    """Compare the error's norm with the output's norm, overall and per row, whatever `atol` is."""
    lost_rows_rule: bool = True
    """With a matched ratio below 1, reject any fully wrong row except near-ties."""
    regimes_rule: bool = True
    """Judge some untimed calls on inputs of other scales, too."""
    power_rule: bool = True
    """Call a sampler of few rows until draws that omit a small mass would show."""
    extra: Extra = Field(default_factory=dict)
    """Parameters of one evaluator, by name."""


EVAL_FIELDS: Final = tuple(name for name in EvalSettings.model_fields if name != "extra")


class EvalConfig(StrictModel):
    """Eval settings of one section (an op type's, a definition's): only the fields that it gives.

    None means "not given". A required_matched_ratio given as None asks for the evaluator's own rule.
    """

    warmup_runs: WarmupRuns | None = None
    iterations: Iterations | None = None
    num_trials: Count | None = None
    precision: Precision | None = None
    rtol: PositiveNumber | None = None
    atol: PositiveNumber | None = None
    required_matched_ratio: Ratio | None = None
    norm_rule: bool | None = None
    lost_rows_rule: bool | None = None
    regimes_rule: bool | None = None
    power_rule: bool | None = None
    extra: Extra = Field(default_factory=dict)

    @classmethod
    def of_flat(cls, values: Mapping[str, Any]) -> EvalConfig:
        """Return a section of validated values, as `flat` gives them. A set may give an `atol` of 0, a user may not."""
        nested = nest(values)
        return cls.model_construct({*nested}, **nested)

    def given(self) -> dict[str, Any]:
        """Return the given fields by name, without `extra`."""
        values = {name: getattr(self, name) for name in EVAL_FIELDS if name in self.model_fields_set}
        return {name: value for name, value in values.items() if value is not None or name == "required_matched_ratio"}

    def flat(self) -> dict[str, Any]:
        """Return all that is given: fields by name, and `extra` by "extra.<key>"."""
        return flatten({**self.given(), "extra": self.extra})

    @model_serializer(mode="wrap")
    def _dump_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A dumped None would read back as a required_matched_ratio given as None.
        given = {*self.given(), *(["extra"] if self.extra else [])}
        return {name: value for name, value in handler(self).items() if name in given}


class ResolvedEvalConfig(EvalSettings):
    """Complete settings of one definition. Equality and digest are of the values; origins only explain them."""

    origins: dict[str, str] = Field(default_factory=dict, exclude=True, repr=False)
    """Origin of each value, by field or "extra.<key>": "default", "override", "my.yaml: op_type_config.moe"."""
    profile_baseline: bool = Field(default=True, exclude=True, repr=False)
    """Whether the run times references. It is a setting of the run and not one of the values."""

    def values(self) -> dict[str, Any]:
        """Return the settings as JSON-able values, without origins."""
        return self.model_dump(mode="json")

    def to_order(self) -> dict[str, Any]:
        """Return everything that an evaluator may ask for, as JSON-able values."""
        return {**self.values(), "profile_baseline": self.profile_baseline}

    def beyond(self, other: ResolvedEvalConfig) -> dict[str, Any]:
        """Return the values in which these settings differ from others."""
        if self is other:
            return {}
        theirs = other.values()
        return {name: value for name, value in self.values().items() if value != theirs[name]}

    def digest(self) -> str:
        """Return the sha256 (hex) of the values."""
        return digest_of(self.values())

    def __eq__(self, other: object) -> bool:
        return self.values() == other.values() if isinstance(other, ResolvedEvalConfig) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest())


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with the keys of `extra` beside them, as "extra.<key>"."""
    extra = {f"extra.{key}": value for key, value in values.get("extra", {}).items()}
    return {**{name: value for name, value in values.items() if name != "extra"}, **extra}


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat values with `extra` as a mapping of its own, if there is any."""
    extra = {name.removeprefix("extra."): value for name, value in flat.items() if name.startswith("extra.")}
    values = {name: value for name, value in flat.items() if not name.startswith("extra.")}
    return {**values, "extra": extra} if extra else values


@dataclass(frozen=True)
class Source:
    """Values of one giver: the bundled file, a set, a user's file, the overrides, the constructor."""

    origin: str
    levels: Mapping[tuple[str, ...], Mapping[str, Any]]
    """Flat values of the top level, (); and of each section, such as ("op_type_config", "moe")."""
    owner: Literal["bundled", "set", "user"] = "user"
    """Names in a user's sections have to exist in the set. Names in other sections need not."""

    @property
    def top(self) -> Mapping[str, Any]:
        """Values of the top level."""
        return self.levels.get((), {})

    def place(self, path: tuple[str, ...]) -> str:
        """Return the place of a level, as origins name it. A set's file has definitions alone, and no sections."""
        return ": ".join(filter(None, [self.origin, ".".join(path[self.owner == "set" :])]))

    def sections(self, section: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """Yield place, name and values of each section of op_type_config or definition_config."""
        for path, values in self.levels.items():
            if path[:1] == (section,):
                yield self.place(path), path[1], values


class Given(NamedTuple):
    """One value and its origin."""

    value: Any
    origin: str


QUICK: Final = Source("quick", {(): {"warmup_runs": 3, "iterations": 10, "num_trials": 1, "precision": 0.05}})
"""Values of a quick run. They lie just below the source that asks for it."""


def by_owner(sources: Iterable[Source]) -> list[Source]:
    """Return sources from the lowest to the highest owner. Those of one owner keep their order."""
    return sorted(sources, key=lambda source: OWNERS.index(source.owner))


def cascade(sources: Iterable[Source], definition: str = "", op_type: str = "") -> dict[str, Given]:
    """Return every value that is given for a definition, with its origin, by field or "extra.<key>"."""
    ordered = by_owner(sources)
    asking = [index for index, source in enumerate(ordered) if "quick" in source.top]
    if asking and ordered[asking[-1]].top["quick"]:
        ordered.insert(asking[-1], QUICK)
    found: dict[str, Given] = {}
    wanted = normalise_op_type(op_type)
    for source in ordered:
        layers = [(source.origin, source.top)]
        layers += [(place, it) for place, key, it in source.sections(OP_TYPES) if normalise_op_type(key) == wanted]
        layers += [(place, it) for place, key, it in source.sections(DEFINITIONS) if key == definition]
        found |= {name: Given(value, place) for place, values in layers for name, value in values.items()}
    return found


def merge_sections(sources: Iterable[Source], section: str) -> dict[str, EvalConfig]:
    """Return the sections of all sources as one source would write them.

    A value is left out if the top level of a higher source beats it. Two spellings of an op type are one section.
    """
    merged: dict[str, tuple[str, dict[str, Any]]] = {}
    for source in sources:
        for _, values in merged.values():
            for name in source.top.keys() & values.keys():
                del values[name]
        for _, key, given in source.sections(section):
            identity = normalise_op_type(key) if section == OP_TYPES else key
            merged.setdefault(identity, (key, {}))[1].update(given)
    return {key: EvalConfig.of_flat(values) for key, values in merged.values()}


def resolve(sources: Iterable[Source], definition: str, op_type: str, *, profile_baseline: bool) -> ResolvedEvalConfig:
    """Return the complete settings of a definition."""
    found = {
        name: given
        for name, given in cascade(sources, definition, op_type).items()
        if name in EVAL_FIELDS or name.startswith("extra.")
    }
    origins = dict.fromkeys(EVAL_FIELDS, DEFAULT_ORIGIN) | {name: given.origin for name, given in found.items()}
    values = nest({name: given.value for name, given in found.items()})
    return ResolvedEvalConfig(**values, origins=origins, profile_baseline=profile_baseline)
