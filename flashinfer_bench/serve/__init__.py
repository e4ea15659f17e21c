"""The server (`flashinfer-bench serve`): an engine behind HTTP, with accepted tasks that outlive the process.

    server.py     one process: socket, signals, drain          app.py        the routes
    strangers.py  connections that have not asked yet
    gate.py       who may ask, and how much                    bodies.py     what a request says
    service.py    tasks from acceptance to their end           live.py       an open task, as requests wait for it
    records.py    the disk's side: ledger.py, accepted tasks; recorded.py, which verdicts the set has already
    documents.py metrics.py docs_page.py                       what is answered

It needs the extra `serve`. Only `app.py`, `server.py` and `strangers.py` import the packages of that extra.
"""
