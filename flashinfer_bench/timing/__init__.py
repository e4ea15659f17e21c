"""Measures the duration of a call, by a clock and in a cache state. This package knows nothing of solutions."""
