"""What confines solution code: which files, calls, users, processes and how much memory it gets.

`confine.py` enters what one worker may reach, by `landlock.py` (files, TCP, processes), `seccomp.py` (system calls),
`user.py` and `namespaces.py` (for tools). `supervisor.py` watches the worker from outside and answers what the
seccomp filter asks (`notifications.py`). `process_tree.py` reads and ends process trees. Nothing here knows torch, a
solution or a result. Each part can be had alone, as compilers need files and a network only.
"""
