"""What this machine can measure, and how well.

machine.py   reads the machine without CUDA or torch, and names what is measured
probe.py     measures the device, in a process of its own (`run_isolated`)
examination.py  the whole examination: read, measure, have the engine check itself
findings.py  what was read and measured → what works, what is broken, what to do. Pure
"""
