"""Runs a tool of NVIDIA on one call of a solution: Nsight Compute, or compute-sanitizer (docs/inspect.md).

    tool_runs.py names → one job, which an ordinary run gives to our own session; finds the tools
    session.py  that session (`SessionConfig.tool`): it makes the inputs, and runs the programs in a worker's sandbox
    ncu.py, sanitizer.py   a tool's plan, its output, the document and its text

The result is not a verdict: the solution shares its sandbox with the tool, and could forge the tool's output.
"""
