"""The server (`flashinfer-bench serve`): an engine behind HTTP, with accepted tasks that outlive the process.

    server.py    one process: socket, signals, drain       app.py       the routes
    tasks.py     tasks from acceptance to their end        requests.py  who may ask, and what a request says
    store.py     SQLite, and the lines of the set          metrics.py   what is counted

It needs the extra `serve`, except `limits.py` and `token_file.py`, which the command line reads.
Slow clients, TLS and rates of requests are left to a reverse proxy.
"""
