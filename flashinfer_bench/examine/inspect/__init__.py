"""Looks at one call of a solution with a tool of the vendor's: Nsight Compute, or compute-sanitizer (docs/inspect.md).

Nothing here is a verdict: the solution shares its walls with the tool, and could forge what it says.
"""
