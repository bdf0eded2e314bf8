# `make help` lists the targets. Everything is installed in .venv; stamp files there remember what was installed.

VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.installed-runtime
DEV := $(VENV)/.installed-dev
INPUTS := pyproject.toml client/pyproject.toml constraints.txt
COLLECTED := $(VENV)/.collected
COMPILED := $(VENV)/compiled
OPS_TOOLS := $(VENV)/ops-tools
LOCK := $(OPS_TOOLS)/bin/uv pip compile --quiet --constraint constraints.txt --generate-hashes --universal --python-version 3.11 \
	--no-annotate --no-header --no-emit-index-url
SETS := interop spark cluster postgres power
PIP_INSTALL := -m pip --disable-pip-version-check install --quiet
PIP := $(BIN)/python $(PIP_INSTALL) --constraint constraints.txt
# An editable install compiles nothing, and where PYTHONDONTWRITEBYTECODE is set each start would compile again.
COMPILE := $(BIN)/python -m compileall -q curbstone curbstone/*/ client/curbstone_client
# Tests start many programs, and compile themselves: what one has compiled the others read.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
# Processes that share the tests in `make test`; much of a test's time is waiting for other processes.
TEST_WORKERS ?= 4
COMPILED_TESTS ?= $(addprefix tests/,access backup core crash cross_protocol engines faults gateway mqks net sim stomp tracing \
	repo/test_compiled.py commands/test_drill.py commands/test_repair.py serve/test_interruption.py serve/test_serve.py)
# Seconds of simulated histories in `make soak`.
export CURBSTONE_SIM_SECONDS ?= 600
# The first interpreter that is new enough; `make PYTHON=/path/to/python install` chooses another.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	if command -v $$p >/dev/null && $$p -c '$(NEW_ENOUGH)' 2>/dev/null; then echo $$p; exit; fi; done)

.PHONY: $(SETS:%=%-deps) audit bench clean cluster compiled coverage dev docs format help install lint lock man ops-tools release run \
	sdk sdk-tools soak soak-fuzz soak-mutation soak-standby test test-compiled test-deps

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
install: $(RUNTIME)  ## Make .venv and install Curbstone in it (editable)
dev: $(DEV)  ## The same, with the tools for tests and checks
run: $(RUNTIME)  ## Start the server with its defaults
	@exec $(BIN)/curbstone serve
test: test-deps  ## Run the tests (soak tests left out)
	$(PYTEST) -n $(TEST_WORKERS) --no-loadscope-reorder
# Each set waits most of its time for a network or another process, so they are installed side by side.
test-deps: $(DEV)
	@$(MAKE) --no-print-directory --jobs=4 --output-sync sdk-tools ops-tools $(SETS:%=%-deps) $(COLLECTED)
coverage: test-deps  ## The tests, and which branches of the code they took: htmlcov/index.html
	$(BIN)/python -m coverage erase
	$(PYTEST) -n $(TEST_WORKERS) --no-loadscope-reorder --cov --cov-report=
	$(BIN)/python -m coverage html --quiet
	$(BIN)/python -m coverage report --skip-covered --sort=cover
compiled: $(COMPILED)/.installed  ## Install in .venv/compiled a build that is compiled to C, faster with many queues (needs a C compiler)
	@echo "compiled: start it with $(COMPILED)/bin/curbstone serve"
# What is on the path through the .pth file comes after what is installed, so tests import the compiled server.
test-compiled: compiled  ## The tests of the engine and its protocols on the compiled build (COMPILED_TESTS)
	PYTHONSAFEPATH=1 CURBSTONE_REQUIRE_COMPILED=1 env -u PYTHONDONTWRITEBYTECODE $(COMPILED)/bin/python -m pytest \
		-n $(TEST_WORKERS) -o pythonpath= -m "not soak and not source" $(COMPILED_TESTS)
audit: $(DEV) ops-tools  ## Look up known flaws of everything that is installed (asks the package index)
	$(OPS_TOOLS)/bin/pip-audit --strict --disable-pip --no-deps --requirement constraints.txt
lint: $(DEV)  ## Ruff, formatting, types, and the import rule
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) -q tests/repo/test_tidy.py
format: $(DEV)  ## Let ruff fix imports and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
soak: $(DEV) sdk-tools spark-deps  ## The long tests (CURBSTONE_SIM_SECONDS=600)
	CURBSTONE_RECORD=1 $(BIN)/python -m pytest -m soak
soak-fuzz: $(DEV)  ## Fuzz each decoder (Atheris) and the property tests (HypoFuzz) for CURBSTONE_FUZZ_SECONDS (300)
	$(PIP) atheris
	CURBSTONE_RECORD=1 $(BIN)/python -m tests.fuzz.run
	$(BIN)/python $(PIP_INSTALL) --upgrade --target build/hypofuzz hypofuzz 'hypothesis<6.156'  # the last that it can use
	CURBSTONE_RECORD=1 PYTHONPATH=build/hypofuzz $(BIN)/python -m tests.fuzz.properties
	CURBSTONE_RECORD=1 $(BIN)/python -m pytest -s -m soak tests/fuzz
soak-standby: $(DEV)  ## Failovers: simulated (CURBSTONE_SIM_SECONDS=600) and of real processes (CURBSTONE_CRASH_SECONDS=60)
	CURBSTONE_RECORD=1 $(BIN)/python -m pytest -s -m soak tests/standby tests/histories
soak-mutation: $(DEV)  ## Try the next mutants of the engine for CURBSTONE_MUTATION_SECONDS (600) of CPU time
	CURBSTONE_RECORD=1 $(BIN)/python -m tests.mutation.run
cluster: $(DEV) cluster-deps  ## Three RabbitMQ nodes, two gateways, and kills under load (CURBSTONE_CLUSTER_SECONDS=600)
	$(BIN)/python -m pytest -s -m soak tests/cluster
bench: $(DEV)  ## Measure; prints figures and never fails on them
	$(PIP) --editable ".[peers]"
	$(BIN)/python -m bench
sdk: sdk-tools  ## Make the Python and TypeScript clients in build/sdk
	$(VENV)/sdk-tools/bin/python tools/sdk/generate.py build/sdk
docs: ops-tools  ## Build the documentation in site/, and fail on a dead link
	NO_MKDOCS_2_WARNING=1 $(OPS_TOOLS)/bin/mkdocs build --strict --quiet
release: $(DEV) ops-tools  ## Make a release in dist/: make release VERSION=1.2.0 (commits and tags; uploads nothing)
	@test -n "$(VERSION)" || { echo "say which: make release VERSION=1.2.0" >&2; exit 1; }
	$(OPS_TOOLS)/bin/python tools/ops/release.py $(VERSION)
# The files name no index: each user chooses where packages are fetched, and the hashes identify them.
lock: ops-tools  ## Write deploy/docker/*.lock: constraints.txt with hashes, for the image and releases
	echo "# What the server needs, with hashes. \`make lock\` writes this file from constraints.txt." > deploy/docker/requirements.lock
	echo "# What builds the compiled wheel, with hashes. \`make lock\` writes this file from constraints.txt." > deploy/docker/build.lock
	$(LOCK) pyproject.toml >> deploy/docker/requirements.lock
	printf "mypy\nsetuptools\n" | $(LOCK) - >> deploy/docker/build.lock
man: $(DEV)  ## Write the man page and the completions of shells from the command line
	$(BIN)/python tools/ops/command_pages.py
clean:  ## Remove .venv, caches and build output; never a data directory
	rm -rf $(VENV) tests/interop/node_modules build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Curbstone needs Python 3.11 or newer, and none is on the PATH." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
$(RUNTIME): $(INPUTS) | $(BIN)/python
	@echo "Installing Curbstone in $(VENV), which takes a minute or two ..."
	@$(PIP) --editable ./client --editable .
	@$(COMPILE) && touch $@
$(DEV): $(INPUTS) | $(BIN)/python
	$(PIP) --editable "./client[celery,dramatiq,taskiq]" --editable ".[dev]"
	@$(COMPILE) && touch $(RUNTIME) $@
# mypyc is part of mypy, in the version that checks the types. The wheel in dist/compiled is for this kind of machine. The
# environment finds all other packages, the client and the tests where they are.
$(COMPILED)/.installed: setup.py pyproject.toml $(shell find -L curbstone -name "*.py" -o -name "*.c") | $(DEV)
	rm -rf build dist/compiled
	MYPY_CACHE_DIR=build/mypy CURBSTONE_COMPILED=1 $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist/compiled .
	$(BIN)/python -m venv --clear --without-pip $(COMPILED)
	$(BIN)/python -m pip --python $(COMPILED)/bin/python install --quiet --no-deps --no-index dist/compiled/*.whl
	printf "%s\n" $(CURDIR)/.venv/lib/python*/site-packages $(CURDIR)/client $(CURDIR) > "$$(echo $(COMPILED)/lib/python*/site-packages)/around.pth"
	@touch $@
# Compiles all tests once; otherwise each worker compiles them. The packages that tests import are being installed
# meanwhile, so what this prints, or how it ends, means nothing: a test that can't be collected fails in `make test`.
$(COLLECTED): | $(DEV)
	@{ $(PYTEST) --collect-only -q; } >/dev/null 2>&1 || true
	@touch $@

# What a set of tests needs beside Python packages. Where it can't be installed, those tests fail or are left out, and say
# so; with CURBSTONE_REQUIRE_SPARK=1 and the like (see .ci/run) they fail.
interop-deps: ## Install the clients that tests/interop talks to: npm packages, Chromium, nc
spark-deps: ## Install what tests/spark needs: the extra `spark`, and Java
cluster-deps: ## Install what tests/cluster needs: RabbitMQ
postgres-deps: ## Install what tests/examples/test_outbox.py needs: PostgreSQL
power-deps: ## Install what tests/power, tests/models and tests of clocks need: FUSE, python3-pyfuse3, spin, faketime
INSTALL_interop := tests/interop/setup.sh
INSTALL_spark := tests/spark/install.sh $(BIN)/python
INSTALL_cluster := tests/cluster/install.sh
INSTALL_postgres := { command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 \
	|| tests/apt_get.sh postgresql PostgreSQL outbox; }
INSTALL_power := tests/apt_get.sh "faketime fuse3 python3-pyfuse3 spin" "faketime, FUSE and Spin" power
$(SETS:%=%-deps): %-deps: $(VENV)/.installed-%
$(VENV)/.installed-interop: tests/interop/package-lock.json tests/interop/setup.sh
$(VENV)/.installed-spark: $(INPUTS) tests/spark/install.sh tests/spark/connect-requirements.txt tests/spark/dlt-requirements.txt tests/spark/frames-requirements.txt tests/spark/iceberg-requirements.txt tests/spark/s3-requirements.txt | $(DEV)
$(VENV)/.installed-cluster: tests/cluster/install.sh
$(SETS:%=$(VENV)/.installed-%): $(VENV)/.installed-%: tests/apt_get.sh | $(BIN)/python
	@if $(INSTALL_$*); then touch $@; else echo "$*-deps: not all is installed" >&2; fi

# Little of what these environments hold is ever imported, so it is compiled when it is, and not here.
sdk-tools: ## Install the tools that make and check the SDKs (needs Node.js 18 with npm)
ops-tools: ## Install the tools for releases, documentation, and the checks of deploy/
THEN_sdk := npm ci --prefix tools/sdk --no-audit --no-fund --ignore-scripts --loglevel=error &&
sdk-tools ops-tools: %-tools: $(VENV)/%-tools/.installed
$(VENV)/sdk-tools/.installed: tools/sdk/package-lock.json
$(VENV)/sdk-tools/.installed $(VENV)/ops-tools/.installed: $(VENV)/%-tools/.installed: tools/%/requirements.txt | $(BIN)/python
	@{ $(BIN)/python -m venv $(@D) && $(@D)/bin/python $(PIP_INSTALL) --no-compile --requirement $< && $(THEN_$*) touch $@; } \
	|| echo "$*-tools: not installed" >&2
