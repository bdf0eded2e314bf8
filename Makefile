# `make help` lists what there is. Everything happens inside .venv; stamp files there
# remember what was installed, so only the first run takes time.

VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.installed-runtime
DEV := $(VENV)/.installed-dev
INPUTS := pyproject.toml client/pyproject.toml constraints.txt
INTEROP := $(VENV)/.installed-interop
SPARK := $(VENV)/.installed-spark
CLUSTER := $(VENV)/.installed-cluster
POSTGRES := $(VENV)/.installed-postgres
POWER := $(VENV)/.installed-power
COLLECTED := $(VENV)/.collected
SDK_TOOLS := $(VENV)/sdk-tools
OPS_TOOLS := $(VENV)/ops-tools
COMPILED := $(VENV)/compiled
PIP := $(BIN)/python -m pip --disable-pip-version-check
# An editable install compiles nothing, and where PYTHONDONTWRITEBYTECODE is set each start would compile anew.
COMPILE := $(BIN)/python -m compileall -q curbstone curbstone/*/ client/curbstone_client
# Tests start many programs, and compile themselves: what one has compiled the others read.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest

# The first interpreter that is new enough; `make PYTHON=/path/to/python install` chooses another.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	if command -v $$p >/dev/null && $$p -c '$(NEW_ENOUGH)' 2>/dev/null; then echo $$p; exit; fi; done)

# Processes that share the tests in `make test`; much of a test's time is waiting for other processes.
TEST_WORKERS ?= 4

# Seconds of simulated histories in `make soak`.
CURBSTONE_SIM_SECONDS ?= 600
export CURBSTONE_SIM_SECONDS

.PHONY: cluster cluster-deps postgres-deps power-deps interop-deps spark-deps sdk sdk-tools ops-tools test-deps docs help install dev lock man run test \
	test-compiled compiled coverage audit \
	lint format soak bench release clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(RUNTIME)  ## Make .venv and install Curbstone in it (editable)

dev: $(DEV)  ## The same, with the tools for tests and checks

run: $(RUNTIME)  ## Start the server with its defaults
	@exec $(BIN)/curbstone serve

test: test-deps  ## Run the tests (soak tests left out)
	$(PYTEST) -n $(TEST_WORKERS) --no-loadscope-reorder

# Each set waits most of its time for a network or another process, so they are installed side by side.
test-deps: $(DEV)
	@$(MAKE) --no-print-directory --jobs=4 --output-sync sdk-tools interop-deps spark-deps cluster-deps postgres-deps power-deps ops-tools $(COLLECTED)

coverage: test-deps  ## The tests, and which branches of the code they took: htmlcov/index.html
	$(BIN)/python -m coverage erase
	$(PYTEST) -n $(TEST_WORKERS) --no-loadscope-reorder --cov --cov-report=
	$(BIN)/python -m coverage html --quiet
	$(BIN)/python -m coverage report --skip-covered --sort=cover

# mypyc comes with mypy, in the version the types are checked with. The wheel in dist/compiled is for this kind of machine.
compiled: $(DEV)  ## Install in .venv/compiled a build that is compiled to C, faster with many queues (needs a C compiler)
	rm -rf build dist/compiled
	CURBSTONE_COMPILED=1 $(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist/compiled .
	$(BIN)/python -m venv --clear $(COMPILED)
	$(COMPILED)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt --editable ./client dist/compiled/*.whl
	@echo "compiled: start it with $(COMPILED)/bin/curbstone serve"

# The checkout comes after what is installed, so it is the compiled server that tests and what they start import.
test-compiled: compiled  ## The tests of the engine and its protocols on the compiled build
	$(COMPILED)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt \
		--editable "./client[celery,dramatiq,taskiq]" "curbstone[dev]"
	echo "$(CURDIR)" > "$$($(COMPILED)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/checkout.pth"
	PYTHONSAFEPATH=1 CURBSTONE_REQUIRE_COMPILED=1 $(COMPILED)/bin/python -m pytest -n $(TEST_WORKERS) -o pythonpath= -m "not soak and not source" \
		$(addprefix tests/,access backup core crash cross_protocol engines faults gateway mqks net sim stomp tracing) \
		tests/test_compiled.py tests/test_drill.py tests/test_interruption.py tests/test_repair.py tests/test_serve.py

audit: $(DEV) ops-tools  ## Look up known flaws of everything that is installed (asks the package index)
	$(OPS_TOOLS)/bin/pip-audit --strict --disable-pip --no-deps --requirement constraints.txt

lint: $(DEV)  ## Ruff, formatting, types, and the import rule
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) -q tests/test_tidy.py

format: $(DEV)  ## Let ruff fix imports and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

soak: $(DEV) sdk-tools spark-deps  ## The long tests (CURBSTONE_SIM_SECONDS=600)
	$(BIN)/python -m pytest -m soak

cluster: $(DEV) cluster-deps  ## Three RabbitMQ nodes, two gateways, and kills under load (CURBSTONE_CLUSTER_SECONDS=600)
	$(BIN)/python -m pytest -s -m soak tests/cluster

bench: $(DEV)  ## Measure; prints figures and never fails on them
	$(PIP) install --quiet --constraint constraints.txt --editable ".[peers]"
	$(BIN)/python -m bench

sdk: sdk-tools  ## Make the Python and TypeScript clients in build/sdk
	$(SDK_TOOLS)/bin/python tools/sdk/generate.py build/sdk

docs: ops-tools  ## Build the documentation in site/, and fail on a dead link
	NO_MKDOCS_2_WARNING=1 $(OPS_TOOLS)/bin/mkdocs build --strict --quiet

release: $(DEV) ops-tools  ## Make a release in dist/: make release VERSION=1.2.0 (commits and tags; uploads nothing)
	@test -n "$(VERSION)" || { echo "say which: make release VERSION=1.2.0" >&2; exit 1; }
	$(OPS_TOOLS)/bin/python tools/ops/release.py $(VERSION)

# It has no address of an index: whoever installs chooses where the files are fetched, and the hashes say which they are.
lock: ops-tools  ## Write deploy/docker/requirements.lock anew: constraints.txt with hashes, for the image and releases
	echo "# Exact versions with hashes of what the image installs, for the image and releases. \`make lock\` writes it from constraints.txt." \
		> deploy/docker/requirements.lock
	echo "setuptools" | $(OPS_TOOLS)/bin/uv pip compile --quiet --constraint constraints.txt --generate-hashes --universal --python-version 3.11 \
		--no-annotate --no-header --no-emit-index-url pyproject.toml - >> deploy/docker/requirements.lock

man: $(DEV)  ## Make the man page and the completions of shells anew, from the command line
	$(BIN)/python tools/ops/command_pages.py

interop-deps: $(INTEROP)  ## Install the clients that tests/interop talks to: npm packages, Chromium, nc

spark-deps: $(SPARK)  ## Install what tests/spark needs: the extra `spark`, and Java

cluster-deps: $(CLUSTER)  ## Install what tests/cluster needs: RabbitMQ

postgres-deps: $(POSTGRES)  ## Install what tests/test_outbox.py needs: PostgreSQL

power-deps: $(POWER)  ## Install what tests/power needs: FUSE and python3-pyfuse3

sdk-tools: $(SDK_TOOLS)/.installed  ## Install the tools that make and check the SDKs

ops-tools: $(OPS_TOOLS)/.installed  ## Install the tools for releases, documentation, and the checks of deploy/

clean:  ## Remove .venv, caches and build output; never a data directory
	rm -rf $(VENV) tests/interop/node_modules build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Curbstone needs Python 3.11 or newer, and none is on the PATH." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Where it is impossible this says so and goes on: the tests that need the tools then fail and name them. Little of what is
# installed is ever imported, so that is compiled then, and not all of it here.
$(SDK_TOOLS)/.installed: tools/sdk/requirements.txt tools/sdk/package-lock.json | $(BIN)/python
	@{ $(BIN)/python -m venv $(SDK_TOOLS) \
	&& $(SDK_TOOLS)/bin/python -m pip --disable-pip-version-check install --quiet --no-compile --requirement tools/sdk/requirements.txt \
	&& npm ci --prefix tools/sdk --no-audit --no-fund --ignore-scripts --loglevel=error \
	&& touch $@; } || echo "sdk-tools: not installed; Node.js 18 with npm is needed" >&2

# Likewise: without them those checks are left out, or fail where CURBSTONE_REQUIRE_OPS=1.
$(OPS_TOOLS)/.installed: tools/ops/requirements.txt | $(BIN)/python
	@{ $(BIN)/python -m venv $(OPS_TOOLS) \
	&& $(OPS_TOOLS)/bin/python -m pip --disable-pip-version-check install --quiet --no-compile --requirement tools/ops/requirements.txt \
	&& touch $@; } || echo "ops-tools: not installed" >&2

$(RUNTIME): $(INPUTS) | $(BIN)/python
	$(PIP) install --quiet --constraint constraints.txt --editable ./client --editable .
	@$(COMPILE)
	@touch $@

$(DEV): $(INPUTS) | $(BIN)/python
	$(PIP) install --quiet --constraint constraints.txt --editable "./client[celery,dramatiq,taskiq]" --editable ".[dev]"
	@$(COMPILE)
	@touch $(RUNTIME) $@

# Likewise: without them the tests of real clients fail and say so, all others run.
$(INTEROP): tests/interop/package-lock.json tests/interop/setup.sh | $(BIN)/python
	@if tests/interop/setup.sh; then touch $@; else echo "interop-deps: not all clients are installed" >&2; fi

# Likewise: without it the tests of the pipeline are left out, or fail where CURBSTONE_REQUIRE_SPARK=1.
$(SPARK): $(INPUTS) tests/spark/install.sh tests/spark/connect-requirements.txt tests/spark/s3-requirements.txt | $(DEV)
	@if tests/spark/install.sh $(BIN)/python; then touch $@; else echo "spark-deps: not all is installed" >&2; fi

# Likewise: without it the tests on a real node are left out, or fail where CURBSTONE_REQUIRE_RABBITMQ=1.
$(CLUSTER): tests/cluster/install.sh tests/apt_get.sh | $(BIN)/python
	@if tests/cluster/install.sh; then touch $@; else echo "cluster-deps: RabbitMQ is not installed" >&2; fi

# Compiles all tests once, beside downloads; else each worker would, for itself. What is wrong with one, the tests tell.
$(COLLECTED): | $(DEV)
	@$(PYTEST) --collect-only -q >/dev/null || true
	@touch $@

# Likewise: without it the tests of the outbox are left out, or fail where CURBSTONE_REQUIRE_POSTGRES=1.
$(POSTGRES): tests/apt_get.sh | $(BIN)/python
	@if command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 \
	|| tests/apt_get.sh postgresql PostgreSQL outbox; then touch $@; else echo "postgres-deps: PostgreSQL is not installed" >&2; fi

# Likewise, with CURBSTONE_REQUIRE_FUSE=1. It belongs to the system's Python, which mounts the file system.
$(POWER): tests/apt_get.sh | $(BIN)/python
	@if tests/apt_get.sh "fuse3 python3-pyfuse3" FUSE power; then touch $@; else echo "power-deps: FUSE is not installed" >&2; fi
