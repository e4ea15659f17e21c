"""The flags that say which server a command speaks with, and how that server knows us."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from flashinfer_bench.client import Client
from flashinfer_bench.serve.token_file import read_token

RETRY_S: Final = 20.0
"""A server that does not answer is asked again for so many seconds."""


def open_client(args: argparse.Namespace, make_client: Callable[..., Client], **others: str | None) -> Client:
    """Return a client of the server that the flags name."""
    token = read_token(args.token_file) if args.token_file is not None else None
    return make_client(args.server, token, retry_s=RETRY_S, **others)
