"""The FlashInfer routines: what each takes, computes and costs, and which GPUs can run it. No torch; nothing runs here.

A routine turns flags into a `Case`; `materials` turns a case into a definition, a workload and a solution per backend.
"""
