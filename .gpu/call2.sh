python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl && export PYTHONPATH=/tmp/site PYTHONUNBUFFERED=1 || exit
(timeout 150 python3 -m pytest tests/golden --confcutdir=tests/golden -n 8 --dist loadfile -q -p no:cacheprovider -p no:benchmark -o addopts="" > $OUT/golden.txt 2>&1; tail -15 $OUT/golden.txt)
date +%s
timeout 430 python3 benchmarks/before/oracle.py --full --part 2 --commit $1 --output $OUT/oracle_2.jsonl 2>$OUT/2.err; tail -c 2500 $OUT/2.err
date +%s
