"""A failure in files: a job is judged once more, and the call that decides is written down with a script.

start.py     runs the job in an ordinary `Benchmark`, and writes sources and script
capture.py   the session (`SessionConfig.tool`): its evaluator is wrapped; it writes the call: tensors, facts, map
standalone.py   the script; it needs torch and copies of the files that compare outputs
"""
