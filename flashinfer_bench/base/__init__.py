"""Helpers for the whole package: files, calls, text, the limits of the machine. They import no other part of the
package.

Each question is decided in one module. `files/reading.py` decides what is read, and `files/writing.py` where a write
may lead. `files/trees.py` limits the depth of a walk, and `files/locks.py` the wait for a lock. `host.py` counts cores
and memory. No definition, solution or device is known here, and no torch is imported.
"""
