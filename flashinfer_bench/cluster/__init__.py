"""GPUs on other machines: `run --cluster ray`. The only package that imports ray, and only if a cluster is requested.

    host: Scheduler ──batch──▶ RemoteSession ──▶ actor.judge ──▶ node: Scheduler of one device ──▶ session, workers
                    ◀────────────── verdicts, one by one ◀────────────

`actor.py` runs on a node: one actor for a GPU, or for a node's CPU. The actor builds the solutions of a batch, writes
the stored inputs to files, and judges the batch with the scheduler of a single machine. `cluster.py` is the host's
side: the slots, and the session of each slot in the host's scheduler. Ray starts actors, restarts them, transports
calls, results and stored inputs, and reports lost nodes.
"""
