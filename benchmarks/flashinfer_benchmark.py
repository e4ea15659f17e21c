"""The command `flashinfer-bench perf` under the name that FlashInfer's documents use.

python3 benchmarks/flashinfer_benchmark.py --routine rmsnorm --batch_size 32 --hidden_size 4096 --refcheck -vv
python3 benchmarks/flashinfer_benchmark.py --testlist benchmarks/samples/sample_testlist.txt --output_path out.csv
"""

import sys

from flashinfer_bench.cli.main import cli

if __name__ == "__main__":
    sys.exit(cli(["perf", *sys.argv[1:]]))
