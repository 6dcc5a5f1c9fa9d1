# Everything a person types. `make` alone lists it; nothing needs root, conda or an activated environment.

PYTHON ?= python3
# An activated conda environment is used instead of .venv with `make run VENV="$CONDA_PREFIX"` (see environment.yml).
VENV ?= .venv
# More arguments for pytest (make test ARGS="tests/unit -k plan"), for uv (make lock ARGS=--upgrade), for a benchmark, or for
# `docker build` (make image ARGS="--build-arg GOPROXY=https://...").
ARGS ?=

BIN := $(VENV)/bin
READY := $(VENV)/.keyshift-ready
ARCHIVED := $(VENV)/.keyshift-classes
PIP := $(BIN)/python -m pip --disable-pip-version-check
SOURCES := lib tests notebooks
NOTEBOOKS := find notebooks -name '*.ipynb' -not -path '*/.ipynb_checkpoints/*'
UV := uv==0.13.8
DOCKER ?= docker
# keyshift:TAG, the TAG from the version of the project and its lock; needs nothing installed.
IMAGE = keyshift:$$(PYTHONPATH=lib $(PYTHON) -m keyshift.place.image)
define REQUIRE_PYTHON
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo "keyshift needs Python 3.11 or newer; '$(PYTHON)' is: $$($(PYTHON) --version 2>&1 | head -n 1)." \
		"Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
endef

# Every command is a new process, and so is every part of a job: modules are compiled once, whatever the environment.
unexport PYTHONDONTWRITEBYTECODE

# An environment has whole paths: in a copy of this folder, or where it was moved to, it leads to the code of the other
# one. READY says to which; one of before, which is empty, is taken for ours.
LEADS_TO := $(or $(shell cat "$(READY)" 2>/dev/null),$(CURDIR))
ifneq ($(LEADS_TO),$(CURDIR))
.PHONY: $(READY)
endif

.DEFAULT_GOAL := help
.PHONY: help classes run lab up down test nightly lint format bench bench-state bench-strategies bench-peers bench-replication faults soak lock clean image kind test-kubernetes

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: classes ## first look: a running job moves its state live, beside one that stops and restarts
	@$(BIN)/keyshift notebook notebooks/start/00_quickstart.ipynb

lab: classes ## JupyterLab with the notebooks, on this machine only; its services stop with it
	@$(BIN)/keyshift lab

up: classes ## start Kafka, ZooKeeper and MinIO
	@$(BIN)/keyshift up

down: $(READY) ## stop them
	@$(BIN)/keyshift down

# The order of the folders is `testpaths` in pyproject.toml: xdist would begin with the files of most tests.
test: lint classes ## lint, then every test, those with real services too; two files at a time (one after the other: ARGS="-n 0")
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

nightly: classes ## property and contract tests with many more examples, thousands of threaded runs, every notebook
	@HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest tests/property tests/contract tests/notebooks tests/integration $(ARGS)
	@HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest tests/harness -o session_timeout=9000 $(ARGS)

lint: $(READY) ## style, types, layers, and no output left in notebooks
	@$(BIN)/ruff check -q --output-format=concise $(SOURCES)
	@$(BIN)/ruff format -q --check $(SOURCES)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(NOTEBOOKS) -exec $(BIN)/nbstripout --verify --keep-id {} +

format: $(READY) ## repair what can be repaired: style, import order, output left in notebooks
	@$(BIN)/ruff check -q --fix $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)
	@$(NOTEBOOKS) -exec $(BIN)/nbstripout --keep-id {} +

bench: classes ## what keyshift costs: ratios to a plain Spark job and to a bare copy (a part: ARGS="--part d")
	@$(BIN)/python -m bench $(ARGS)

bench-state: classes ## what stores of state, a chain, snapshots and a death cost (ARGS="--runs 3", "--large 4096": 4 GiB)
	@$(BIN)/python -m bench.state $(ARGS)

faults: classes ## what fails in each phase of a migration, and what becomes of the job; half an hour (once more: ARGS=--again)
	@$(BIN)/keyshift batch data/failures/01_faults-phases.yaml $(ARGS)

soak: classes ## a job for two hours, with faults and migrations: its verdict, and what grows (ARGS="--hours 0.2 --seed 3")
	@$(BIN)/python -m bench.soak $(ARGS)

# A bad verdict, or a point that died, ends it before the second line, which alone tells the aims of the other runs.
bench-strategies: classes ## every strategy on one load, and the aims for them; an hour (once more: ARGS=--again)
	@$(BIN)/keyshift batch data/compare/01_compare_presets-aims.yaml $(ARGS)
	@$(BIN)/python -m bench.aims

bench-peers: classes ## ours beside the state of Spark and Flink, and their ways to rescale, at two rates, and over the events in a frame, and the highest rates, five times; two and a half hours
	@$(BIN)/keyshift batch data/compare/05_engines-peers.yaml data/compare/05_engines-highest.yaml $(ARGS)

bench-replication: classes ## 50 deaths under each of two orders, 10 without replicas: silence and its cost; two hours
	@$(BIN)/keyshift batch data/replication/01_deaths-kills.yaml $(ARGS)

lock: ## pin the dependencies after a change in pyproject.toml (all anew: make lock ARGS=--upgrade)
	@$(REQUIRE_PYTHON)
	@tools=$$(mktemp -d) && trap 'rm -rf "$$tools"' EXIT && \
	$(PYTHON) -m venv "$$tools" && "$$tools/bin/python" -m pip install -q --disable-pip-version-check $(UV) && \
	"$$tools/bin/uv" pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--extra dev --extra build pyproject.toml -o requirements.lock $(ARGS)
	@tag=$$(PYTHONPATH=lib $(PYTHON) -m keyshift.place.image) && for file in charts/*/Chart.yaml cluster/sparkapplication.yaml; do \
		sed -E "s/[0-9][0-9.]*-[0-9a-f]{12}/$$tag/" $$file > $$file.new && mv $$file.new $$file || exit 1; done

image: ## build the container image (Docker, or DOCKER=podman)
	@command -v $(DOCKER) >/dev/null || { \
		echo "make image needs $(DOCKER) on PATH; cluster/README.md has a way without" >&2; exit 1; }
	@$(REQUIRE_PYTHON)
	@image=$(IMAGE) && $(DOCKER) build -f cluster/Dockerfile -t "$$image" $(ARGS) . && echo "built $$image"

kind: ## try the charts on this machine: a cluster in containers (kind), with everything installed
	@for tool in $(DOCKER) kind kubectl helm; do command -v $$tool >/dev/null || { \
		echo "make kind needs $$tool on PATH; nothing was started" >&2; exit 1; }; done
	@$(MAKE) --no-print-directory image
	@kind get clusters 2>/dev/null | grep -qx keyshift || kind create cluster --config cluster/kind.yaml
	@kind load docker-image $(IMAGE) --name keyshift
	@helm upgrade --install keyshift charts/keyshift --kube-context kind-keyshift --wait --timeout 10m
	@echo "Remove it with: kind delete cluster --name keyshift"

test-kubernetes: $(READY) ## the tests that need a cluster: that of KUBECONFIG, with the image in it
	@$(BIN)/python -m pytest -m kubernetes tests/cluster $(ARGS)

clean: ## remove .venv, caches and build leftovers from this folder, and nothing outside it
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist
	@rm -rf spark-warehouse metastore_db derby.log
	@find $(SOURCES) -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
	@echo "Kept, because outside of this folder: results, running services, caches. 'keyshift down --wipe' is for those."

# Nothing is installed whose hash is not in requirements.lock. pyspark comes after the wheels, because it exists as source
# only: pip would build it, like keyshift itself, with whatever setuptools is newest, unchecked. By then the build tools of
# the lock are installed and used instead.
# --no-deps: nothing is left to resolve, and pip 23.2 fails when it tries to (where one package wants another with an
# extra, it takes the newest one, which has no hash here). "pip check" says if the lock is not whole.
# .venv begins anew if it leads elsewhere, or if it was never ready and another Python is named; an environment of
# another name is not ours.
# From nothing, on 2 cores with pip 23.2: 75 to 90 s, 440 MB fetched.
$(READY): pyproject.toml requirements.lock
	@$(REQUIRE_PYTHON)
	@echo "Setting up $(VENV): one to three minutes the first time"
	@[ "$(VENV)" != .venv ] || { [ "$(LEADS_TO)" = "$(CURDIR)" ] && \
		{ [ -e $@ ] || [ "$$($(BIN)/python -V 2>&1)" = "$$($(PYTHON) -V 2>&1)" ]; }; } || \
		$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@sed '/^pyspark==/,/[^\\]$$/d' requirements.lock > $(VENV)/wheels.lock
	@$(PIP) install -q --no-deps --require-hashes --only-binary=:all: -r $(VENV)/wheels.lock
	@$(PIP) install -q --no-deps --require-hashes --no-build-isolation -r requirements.lock
	@$(PIP) install -q --no-deps --no-build-isolation -e .
	@$(PIP) check
	@rm -f $(ARCHIVED)
	@echo "$(CURDIR)" > $@

# Spark's classes are archived when Java is another one than last time, before a target that starts Spark: each start
# takes half the time from then on (docs/performance.md). ARCHIVED has the Java of the archive, which took 35 s and has 170 MB. Without Java there
# is nothing to do here; whatever needs one says so. Where it fails Spark starts all the same, and the next target tries
# it again.
classes: $(READY)
	@java=$$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" --version 2>/dev/null); \
	[ "$$java" = "$$(cat $(ARCHIVED) 2>/dev/null)" ] || { \
		echo "Archiving Spark's classes: half a minute, once for this Java"; \
		$(BIN)/python -m keyshift.place.class_archive && echo "$$java" > $(ARCHIVED); } || true
