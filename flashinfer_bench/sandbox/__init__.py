"""Confines solution code: its files, system calls, users, processes and memory.

`confine.py` applies a worker's limits, by `landlock.py` (files, TCP, processes), `seccomp.py` (system calls), `user.py`
and `namespaces.py` (for tools). `supervisor.py` watches the worker from outside and answers the seccomp filter's
questions (`notifications.py`). `process_tree.py` reads and ends process trees. This package does not depend on torch,
solutions or results. Each part can be used alone: compilers, for example, need only limits of files and network.
"""
