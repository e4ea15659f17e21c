"""The FlashInfer routines: the flags, shapes, cost and supported GPUs of each. No torch; nothing runs here.

A routine turns flags into a `Case`. `case.generated_entry` turns a case into a definition, a workload, and a solution
for each backend.
"""
