python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl && export PYTHONPATH=/tmp/site PYTHONUNBUFFERED=1 || exit
date +%s
(timeout 170 python3 -m pytest tests/golden --confcutdir=tests/golden -n 8 --dist loadfile -q -p no:cacheprovider -o addopts="" > $OUT/golden.txt 2>&1; tail -15 $OUT/golden.txt)
date +%s
(timeout 60 python3 -m pytest tests/gpu/test_fills_on_gpu.py -q -p no:cacheprovider > $OUT/fills.txt 2>&1; tail -5 $OUT/fills.txt)
date +%s
timeout 330 python3 benchmarks/before/oracle.py --full --part 1 --commit $1 --output $OUT/oracle_1.jsonl 2>$OUT/1.err; tail -c 1500 $OUT/1.err
date +%s
