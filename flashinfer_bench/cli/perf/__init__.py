"""`perf`: times FlashInfer's routines with the engine of `run`."""
