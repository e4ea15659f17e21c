"""A stopwatch for ranks that are threads of a test."""

from itertools import pairwise
from time import perf_counter


class WallStopwatch:
    """The host's clock."""

    def __init__(self):
        self._marks = []

    def mark(self):
        """Note the time."""
        self._marks.append(perf_counter())

    def read(self):
        """Return milliseconds between the marks."""
        marks, self._marks = self._marks, []
        return [(end - start) * 1e3 for start, end in pairwise(marks)]
