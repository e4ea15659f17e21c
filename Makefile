# make demo: install, then run the bundled trace set.      make test: install, then run the tests.
# make check: format, lint, types, import contracts, tests.    Each sets up what it needs in $(VENV).
# make docs: build the documentation as a site, in site/; warnings are errors.
# make exploits: try every attack of benchmarks/exploits/ that needs no GPU on the engine; 5 to 12 minutes on two cores.
VENV ?= .venv
BIN := $(VENV)/bin
EXPLOIT_FLAGS ?= --again 2 --lanes 2
TEST_FLAGS ?= -n 2 --dist loadfile --no-loadscope-reorder
DEMO_FLAGS ?= --warmup-runs 2 --iterations 10 --num-trials 1

.PHONY: demo test check docs exploits clean

demo: $(VENV)/.ready-run
	$(BIN)/flashinfer-bench run --local flashinfer-trace $(DEMO_FLAGS)

test: $(VENV)/.ready-dev
	$(BIN)/python -m pytest $(TEST_FLAGS)

check: $(VENV)/.ready-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest $(TEST_FLAGS)

docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html opens from disk; its search needs a server: $(BIN)/python -m http.server -d site"

exploits: $(VENV)/.ready-dev
	$(BIN)/python benchmarks/run_exploits.py --no-save $(EXPLOIT_FLAGS)

clean:
	rm -rf $(VENV) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/.ready-run: pyproject.toml requirements-cpu.txt scripts/setup.sh
	scripts/setup.sh $(VENV)
	touch $@

$(VENV)/.ready-dev: pyproject.toml requirements-cpu.txt scripts/setup.sh
	scripts/setup.sh $(VENV) dev cluster
	touch $@ $(VENV)/.ready-run

$(VENV)/.ready-docs: pyproject.toml requirements-cpu.txt scripts/setup.sh
	scripts/setup.sh $(VENV) docs
	touch $@ $(VENV)/.ready-run
