"""Looks at one call of a solution with a tool of the vendor's: Nsight Compute, or compute-sanitizer (docs/inspect.md).

    tool_run.py names → a job, which an ordinary run gives to a session of ours; where the tools are
    session.py  that session (`Hello.tool`): it makes the inputs, and runs the programs in a worker's sandbox
    ncu.py, sanitizer.py   a tool's plan, its output, the document and its text

Nothing here is a verdict: the solution shares its sandbox with the tool, and could forge what it says.
"""
