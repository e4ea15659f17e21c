"""Rows of traces as a pandas data frame. pandas is optional; this file alone imports it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from flashinfer_bench.data.sets.columns import COLUMNS, Kind, list_judged
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    import pandas

    from flashinfer_bench.data.trace_set import TraceSet

DTYPES_OF_FRAMES: Final[dict[Kind, str]] = {
    "text": "string",
    "number": "float64",
    "count": "Int64",
    "truth": "boolean",
    "time": "datetime64[ns, UTC]",
}
"""Kind of a column → its dtype in pandas. An absent number is NaN; any other absent value is NA or NaT."""


def import_export_library(name: str) -> Any:
    """Import pandas or pyarrow, or say which extra brings it.

    Raises:
        ConfigError: it is not installed.
    """
    import importlib  # heavy and optional libraries alone come this way

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"this needs {name}, which cannot be imported ({error}); install it by "
            "`pip install 'flashinfer-bench[export]'`; CSV and JSON lines need neither pandas nor pyarrow"
        ) from None


def make_frame(trace_set: TraceSet, traces: Iterable[AnyTrace] | None = None) -> pandas.DataFrame:
    """Make the frame: one row a trace, in the order of the files, with the columns of `COLUMNS`.

    Raises:
        ConfigError: pandas is not installed.
    """
    library = import_export_library("pandas")
    judged = list(list_judged(trace_set, traces))
    columns = {}
    for column in COLUMNS:
        values = [column.read(item) for item in judged]
        if column.kind == "time":
            times = library.to_datetime(
                library.Series(values, dtype="object"), utc=True, errors="coerce", format="ISO8601"
            )
            columns[column.name] = times.astype(DTYPES_OF_FRAMES["time"])
        else:
            columns[column.name] = library.Series(values, dtype=DTYPES_OF_FRAMES[column.kind])
    return library.DataFrame(columns)
