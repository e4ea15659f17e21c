"""The doctor: what this machine can measure, by which method, and how far its numbers can be trusted.

machine.py     versions, compilers and a GPU at rest, without CUDA or torch
probe.py       a process that measures the device (`run_isolated`)
self_check.py  runs of the engine: the same kernels as two solutions, and programs of ours
findings.py    findings of all that, as pure text
visit.py       the whole: a Report
"""
