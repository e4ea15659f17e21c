"""Evaluation settings in layers, and the pure cascade that makes one frozen answer of them, each value with its origin.

`EvalConfig` is what one section says (partial), `ResolvedEvalConfig` is what an evaluator gets (complete). `config.py`
reads files and merges overrides; nothing here touches the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

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
from flashinfer_bench.bench.config_problems import ConfigProblem, to_validation_error, unknown_key
from flashinfer_bench.data.definition import normalise_op_type
from flashinfer_bench.data.digest import digest_of

DEFAULT_ORIGIN: Final = "default"
QUICK_ORIGIN: Final = "quick"
WORKLOAD_ORIGIN: Final = "the workload's tolerance"
Owner = Literal["bundled", "set", "user"]
"""Whose word a source is: this package's, a trace set's about itself, or the user's."""
EXTRA_DEPTH_LIMIT: Final = 20
AUTO: Final = "auto"
"""In place of a number of iterations: as many as the asked precision needs, and no more than by default."""
MOST_CALLS: Final = 10_000_000
"""Calls that are made, or trials: no run comes to more."""
LEAST_GB: Final = 0.25
"""GiB that a worker needs before it has loaded anything."""
MOST_GB: Final = 1_000_000
LONGEST_S: Final = 1_000_000
"""Seconds of a limit or a budget: eleven days. The waits of the system take no more than 2**31 ms."""


def _read_number(value: Any) -> Any:
    value = to_number(value)  # scripts take counts from numpy and torch
    # bool is an int to Python; `iterations: yes` in a YAML file would silently become 1.
    if isinstance(value, bool):
        raise PydanticCustomError("bool_for_number", "a number is needed, not true or false")
    return value


def _read_iterations(value: Any, count: ValidatorFunctionWrapHandler) -> Any:
    if isinstance(value, str) and value != AUTO and not value.strip().isdigit():
        raise PydanticCustomError("no_count", "a whole number or 'auto' is needed")
    return value if isinstance(value, str) and value == AUTO else count(value)


def none_to_empty(value: Any) -> Any:
    """Read a section that is there but empty (`extra:` with all its lines commented out) as an empty mapping."""
    return {} if value is None else value


def _tuples_to_lists(value: Any, depth: int) -> Any:
    if depth > EXTRA_DEPTH_LIMIT:
        raise PydanticCustomError("too_deep", "values are nested too deep, or one contains itself")
    if isinstance(value, Mapping):
        return {key: _tuples_to_lists(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_tuples_to_lists(item, depth + 1) for item in value]
    return to_number(value)


def _read_extra(value: Any) -> Any:
    return _tuples_to_lists(none_to_empty(value), 0)


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
Extra = Annotated[dict[str, JsonValue], BeforeValidator(_read_extra)]
"""Parameters of one evaluator. Values are JSON's: they cross to the process that judges."""


class StrictModel(BaseModel):
    """A frozen model that refuses unknown keys and names the nearest known one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _name_unknown_keys(cls, data: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        try:
            return handler(data)
        except ValidationError as error:
            problems = [ConfigProblem.from_details(details) for details in error.errors(include_url=False)]
            known = list(cls.model_fields)
            raise to_validation_error(cls.__name__, [unknown_key(problem, known) for problem in problems]) from None


class EvalSettings(StrictModel):
    """The eval fields with their global defaults."""

    warmup_runs: WarmupRuns = 10
    """Calls before timing starts."""
    iterations: Iterations = 50
    """Timed calls per trial; "auto": as many as `precision` needs, from 20 to 50."""
    num_trials: Count = 3
    """Independent trials, each with inputs of its own."""
    precision: Precision = 0.015
    """Share of its time to which a call is to be known after all trials. If it scatters, it gets more readings than
    `iterations`; a slow one, for which these would take too long, stops earlier."""
    rtol: Tolerance = 1e-2
    """Relative tolerance of an element."""
    atol: Tolerance = 1e-2
    """Absolute tolerance of an element."""
    required_matched_ratio: Ratio | None = None
    """Share of elements that must match; None leaves it to the evaluator (1.0 in the Default evaluator)."""
    norm_rule: bool = True
    """The error's norm is held against the output's, in all and by row; a share of the output, whatever `atol` is."""
    lost_rows_rule: bool = True
    """Where some elements may fail, no row may be wrong as a whole, but for rows near a tie."""
    regimes_rule: bool = True
    """Some calls that are not timed get inputs of other scales, and their outputs have to be right, too."""
    power_rule: bool = True
    """A sampler of few rows is called more often, until draws that leave out a small mass would show."""
    extra: Extra = Field(default_factory=dict)
    """Parameters of one evaluator, by name."""


EVAL_FIELDS: Final = tuple(name for name in EvalSettings.model_fields if name != "extra")


class EvalConfig(StrictModel):
    """What one section (an op type's, a definition's) says: only the fields it gives.

    None means "not given", except for a required_matched_ratio given as None: that asks for the evaluator's own rule.
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

    def given(self) -> dict[str, Any]:
        """Return the given fields by name, without `extra`."""
        may_be_none = {"required_matched_ratio"}
        values = {name: getattr(self, name) for name in EVAL_FIELDS if name in self.model_fields_set}
        return {name: value for name, value in values.items() if value is not None or name in may_be_none}

    def without(self, fields: Iterable[str], extra_keys: Iterable[str]) -> EvalConfig:
        """Return a section that no longer gives these fields and `extra` keys."""
        dropped, dropped_extra = set(fields), set(extra_keys)
        kept = {name: value for name, value in self.given().items() if name not in dropped}
        return _of_checked(kept, {key: value for key, value in self.extra.items() if key not in dropped_extra})

    def under(self, above: EvalConfig) -> EvalConfig:
        """Return this section with another one laid on top, field by field."""
        return _of_checked({**self.given(), **above.given()}, {**self.extra, **above.extra})

    @model_serializer(mode="wrap")
    def _dump_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A dumped None would read back as a required_matched_ratio given as None.
        given = {*self.given(), *(["extra"] if self.extra else [])}
        return {name: value for name, value in handler(self).items() if name in given}


def _of_checked(given: Mapping[str, Any], extra: dict[str, JsonValue]) -> EvalConfig:
    # Nothing is checked again: a section of a set may give an `atol` of 0, which a user's may not.
    return EvalConfig.model_construct({*given, "extra"}, **given, extra=extra)


class ResolvedEvalConfig(EvalSettings):
    """The complete settings of one definition. Equality and digest are the values'; origins only explain them."""

    origins: dict[str, str] = Field(default_factory=dict, exclude=True, repr=False)
    """Where each value came from, by field or "extra.<key>": "default", "override", "my.yaml: op_type_config.moe"."""
    profile_baseline: bool = Field(default=True, exclude=True, repr=False)
    """Whether the run times references, for evaluators that ask; it is a setting of the run, and none of the values."""

    def values(self) -> dict[str, Any]:
        """Return the settings as JSON-able values, without origins."""
        return self.model_dump(mode="json")

    def to_order(self) -> dict[str, Any]:
        """Return all that an evaluator may ask for, as JSON-able values."""
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


@dataclass(frozen=True)
class Layer:
    """Some values and the place that gave them."""

    origin: str
    values: Mapping[str, Any]
    extra: Mapping[str, JsonValue] = field(default_factory=dict)


def resolve_layers(layers: Iterable[Layer]) -> ResolvedEvalConfig:
    """Merge layers, the later one winning field by field (and key by key in `extra`), over the global defaults."""
    values: dict[str, Any] = {}
    extra: dict[str, JsonValue] = {}
    origins = dict.fromkeys(EVAL_FIELDS, DEFAULT_ORIGIN)
    for layer in layers:
        values.update(layer.values)
        extra.update(layer.extra)
        origins.update(dict.fromkeys(layer.values, layer.origin))
        origins.update({f"extra.{key}": layer.origin for key in layer.extra})
    return ResolvedEvalConfig(**values, extra=extra, origins=origins)


@dataclass(frozen=True)
class SectionKey:
    """A name that a source's section is keyed by, and the place where it stands."""

    place: str
    name: str


@dataclass(frozen=True)
class Source:
    """What one source (the bundled file, a file, the overrides, the constructor) says, at its three levels."""

    origin: str
    given: frozenset[str]
    """All fields that the source gives, system fields too."""
    top: EvalConfig
    op_types: Mapping[str, EvalConfig]
    definitions: Mapping[str, EvalConfig]
    owner: Owner = "user"
    """Who wrote the source. What the user names has to be in the set; what others name need not."""

    def layers(self, definition: str, op_type: str) -> Iterator[Layer]:
        """Yield what applies to a definition, the most specific level last."""
        yield _layer(self.origin, self.top)
        wanted = normalise_op_type(op_type)
        yield from self._section_layers("op_type_config", self.op_types, lambda key: normalise_op_type(key) == wanted)
        yield from self._section_layers("definition_config", self.definitions, lambda key: key == definition)

    def _section_layers(
        self, section: str, configs: Mapping[str, EvalConfig], matches: Callable[[str], bool]
    ) -> Iterator[Layer]:
        for key, config in configs.items():
            if matches(key):
                yield _layer(self.place_of(section, key), config)

    def place_of(self, section: str, key: str) -> str:
        """Return where a section stands in this source; a set's file has no sections, only definitions."""
        return f"{self.origin}: {key if self.owner == 'set' else f'{section}.{key}'}"

    def op_type_keys(self) -> list[SectionKey]:
        """Return the keys of op_type_config with their places."""
        return [SectionKey(self.place_of("op_type_config", name), name) for name in self.op_types]

    def definition_keys(self) -> list[SectionKey]:
        """Return the keys of definition_config with their places."""
        return [SectionKey(self.place_of("definition_config", name), name) for name in self.definitions]


QUICK: Final = EvalConfig(warmup_runs=3, iterations=10, num_trials=1, precision=0.05)
"""What a quick look takes, but for what is said by the source that asks for one, and by those above it."""


def with_quick_look(sources: Sequence[Source]) -> tuple[Source, ...]:
    """Return the sources, with what a quick look takes right below the one that asks for it."""
    at = max(index for index, source in enumerate(sources) if "quick" in source.given)
    look = Source(QUICK_ORIGIN, frozenset(QUICK.given()), QUICK, {}, {})
    return (*sources[:at], look, *sources[at:])


def _layer(origin: str, config: EvalConfig) -> Layer:
    return Layer(origin, config.given(), config.extra)
