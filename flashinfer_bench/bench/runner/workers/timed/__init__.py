"""Calls that are timed: where they lie, what they are given, who times them, which outputs are compared."""
