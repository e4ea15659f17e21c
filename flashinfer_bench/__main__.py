"""`python -m flashinfer_bench`: the same as the `flashinfer-bench` command."""

import sys

from flashinfer_bench.cli.main import cli

if __name__ == "__main__":
    sys.exit(cli())
