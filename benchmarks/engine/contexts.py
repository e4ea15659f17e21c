"""What contexts of a GPU cost that are made side by side: the least that a worker for each job can take.

    python -m benchmarks.engine.contexts --count 24 --widths 1 4 8

Forks processes of one that has imported torch, as the engine's template does, so many at once. Each makes a context as
a worker does, says so, and ends; the next is forked once one has said so. Prints, as JSON, width → seconds a context.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import time

import torch


def make_contexts(count: int, width: int) -> float:
    """Return the seconds in which so many contexts are made, at most `width` at once."""
    begin_s = time.monotonic()
    left, children = count, []
    with selectors.DefaultSelector() as selector:
        while left or selector.get_map():
            while left and len(selector.get_map()) < width:
                read, write = os.pipe()
                children.append(fork_one(write))
                os.close(write)
                selector.register(read, selectors.EVENT_READ)
                left -= 1
            for key, _ in selector.select():
                selector.unregister(key.fd)
                said = os.read(key.fd, 1)
                os.close(key.fd)
                if not said:
                    raise SystemExit("a process could not make its context")
    seconds = time.monotonic() - begin_s
    for child in children:
        os.waitpid(child, 0)
    return seconds


def fork_one(write: int) -> int:
    """Fork a process that makes a context, writes a byte and ends; return its id."""
    child = os.fork()
    if child == 0:
        try:
            torch.zeros(1, device="cuda")
            torch.cuda.synchronize()
            os.write(write, b"1")
        finally:
            os._exit(0)
    return child


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 4, 8])
    asked = parser.parse_args()
    make_contexts(1, 1)  # the first on a machine takes longer
    print(json.dumps({width: make_contexts(asked.count, width) / asked.count for width in asked.widths}))


if __name__ == "__main__":
    main()
