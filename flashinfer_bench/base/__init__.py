"""What every other room may use, and what knows none of them: files, calls, text, the limits of the machine.

One place decides each: `files/reading.py` what is read, `files/writing.py` where a write may lead, `files/trees.py` how
far a walk goes, `files/locks.py` how long a lock is waited for, `host.py` how many cores and how much memory there are.
No definition, solution or device is known here, and no torch is imported.
"""
