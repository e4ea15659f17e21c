"""The test kit: makers of small valid models and writers of small trace sets. Nothing here asserts."""

from tests.kit.make import (
    DOUBLE,
    DOUBLE_INTO,
    make_definition,
    make_evaluation,
    make_solution,
    make_trace,
    make_workload,
    write_trace_set,
)

__all__ = [
    "DOUBLE",
    "DOUBLE_INTO",
    "make_definition",
    "make_evaluation",
    "make_solution",
    "make_trace",
    "make_workload",
    "write_trace_set",
]
