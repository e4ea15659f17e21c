"""Reports whether this machine can measure, and how well.

machine.py   reads the machine without CUDA or torch, and declares the results of a probe
probe.py     measures the device, in its own process (`run_isolated`)
examination.py  the whole examination: read, measure, have the engine check itself
findings.py  results → findings: what works, what is broken, and advice. Pure
"""
