"""The doctor: what this machine can measure, by which method, and how far its numbers can be trusted.

`machine` reads what is told without CUDA, `probe` measures in a process of its own, `self_check` runs the engine on
twins, `diagnosis` makes findings of all that, and `examination` is the whole visit.
"""
