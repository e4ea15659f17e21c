"""Looks at one call of a solution with a tool of the vendor's: Nsight Compute, or compute-sanitizer (docs/inspect.md).

    target.py   names → InspectTarget
    ncu.py, sanitizer.py   a tool's plan, its output, the document and its text
    look.py     builds the solution, locks the GPU, and asks the inspector (`run_isolated`)
    inspector.py   that process: makes the inputs, and runs each program of the plan in a worker's sandbox

Nothing here is a verdict: the solution shares its sandbox with the tool, and could forge what it says.
"""
