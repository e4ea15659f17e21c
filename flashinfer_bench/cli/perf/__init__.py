"""`perf`: time FlashInfer's routines. A second front door to the engine that `run` uses."""
