"""Writes a failure to files: judges a job once more, and writes the deciding call and a script.

start.py     runs the job in an ordinary `Benchmark`, and writes sources and script
capture.py   the session (`SessionConfig.tool`), which writes the call: tensors, metadata, map of errors
standalone.py   the script; it needs torch, and copies of the modules that compare outputs
"""
