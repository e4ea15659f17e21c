"""Helpers for the whole package: files, calls, text, the limits of the machine. They import no other part of the
package.

One module decides each question. `files/reading.py` decides what is read, `files/writing.py` where a write may lead,
`files/trees.py` how deep a walk goes, and `files/locks.py` how long a lock is waited for. `host.py` counts cores and
memory. No definition, solution or device is known here, and no torch is imported.
"""
