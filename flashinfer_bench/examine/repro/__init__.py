"""A failure in files: a job is judged once more, and the call that decides is written down with a script.

start.py     builds the solution, asks for the session (`run_isolated`), and writes sources and script
session.py   that process: a session whose evaluator (`capture.py`) keeps the call; it writes tensors and map
standalone.py   the script; it needs torch alone. Outputs that are not compared element by element it gives to
judging.py   the judge's own check, in the caller's process
"""
