"""GPUs on other machines: `run --cluster ray`. The only room that imports ray, where a cluster is asked for.

    host: Scheduler ──batch──▶ RemoteSession ──▶ actor.judge ──▶ node: Scheduler of one device ──▶ session, workers
                    ◀────────────── verdicts, one by one ◀────────────

`actor.py` runs on a node: one actor for a GPU, or for a node's CPU. It builds a batch's solutions, lays its stored
inputs out, and judges it by the scheduler that judges on a single machine. `cluster.py` is the host's side: the slots,
and the session that stands for one of them in the host's scheduler. Ray places actors, restarts them, carries calls,
results and stored inputs, and tells which nodes are lost.
"""
