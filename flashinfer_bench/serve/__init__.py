"""The server (`flashinfer-bench serve`): an engine behind HTTP. Accepted tasks survive a restart.

    server.py    one process: socket, signals, drain       app.py       the routes
    tasks.py     tasks from acceptance to their end        requests.py  access checks and parsing of requests
    store.py     SQLite, and the lines of the set          metrics.py   counters

It needs the extra `serve`, except `limits.py` and `token_file.py`, which the command line imports.
A reverse proxy must handle slow clients, TLS and rate limits.
"""
