"""Reads the tables that `perf` writes."""

import csv


def read_rows(path):
    """Return the rows of a CSV, each a dict of texts."""
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))
