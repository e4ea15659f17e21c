"""The flags that say which server a command speaks with, and how that server knows us."""

from __future__ import annotations

import argparse
from typing import Final

from flashinfer_bench.cli.parser import Parser
from flashinfer_bench.client import DEFAULT_URL, Client
from flashinfer_bench.serve.token_file import read_token

RETRY_S: Final = 20.0
"""Seconds for which a server that does not answer is asked again."""


def add_server(parser: Parser, json_help: str) -> None:
    """Add the flags, and the one that asks for JSON."""
    parser.add_argument("--server", default=DEFAULT_URL, metavar="URL", help="(default: %(default)s)")
    parser.add_argument("--token-file", metavar="FILE", help="a file with the server's token")
    parser.add_argument("--json", action="store_const", const="json", default="table", dest="format", help=json_help)


def open_client(args: argparse.Namespace, submitter: str | None = None) -> Client:
    """Return a client of the server that the flags name."""
    token = read_token(args.token_file) if args.token_file is not None else None
    return Client(args.server, token, submitter=submitter, retry_s=RETRY_S)
