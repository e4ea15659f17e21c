"""Places on other machines: `run --cluster ray`. The only room that imports ray, where a cluster is asked for.

`cluster.py` is the table of places, `actor.py` what runs on a node. Between them stands no other transport, scheduler
or heartbeat than Ray's. What a node does (`node/`) and how the host speaks to it (`far_session.py`) know no Ray.
"""
