"""Measures the duration of one launch, by a clock and in a cache state. It knows no solutions."""
