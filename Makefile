# Everything runs from .venv, which is made on first use. `make` alone lists the targets.
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help demo demo-run up test fast quick check coverage durations docs chaos fuzz integrations bench benches lock .venv

# Demo and tests start dozens of processes, and each would compile all its imports without stored bytecode.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
PYTEST_ARGS ?= --numprocesses auto --dist loadfile
# Tests of rules, contracts and pages that start neither a server nor a process of the product.
QUICK_TESTS := tests/rules tests/reference_model tests/unit tests/store/test_memory.py \
    tests/view/test_memory.py tests/mutations/test_anchor.py \
    --ignore=tests/unit/test_tasks.py --ignore=tests/unit/test_clock.py

help: ## list the targets
	@grep -hE '^[a-z.-]+:.*## ' Makefile | sed -E 's/^([a-z.-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-12s %s\n", $$1, $$2}'

demo: .venv ## the embedded stack serves a workload log, then stops (TRACE=log.swf.gz JOBS=60 SPEED=600 STAY=1)
	@$(BIN)/leasehold demo $(if $(TRACE),--trace "$(TRACE)") $(if $(JOBS),--jobs "$(JOBS)") $(if $(SPEED),--speed "$(SPEED)") $(if $(STAY),--stay)

demo-run: .venv ## 30 commands and a gang run on machines that come and go; one machine is interrupted
	@$(BIN)/leasehold demo --commands

up: .venv ## the embedded stack until Ctrl-C
	@$(BIN)/leasehold up

test: check ## all checks: `make check`, then pytest (PYTEST_ARGS=...)
	@echo "== pytest"
	@$(BIN)/python -m pytest $(PYTEST_ARGS)
	@echo "== all checks and tests passed"

fast: check ## `make check`, then all tests but those of tests/system, ops, console and chaos (PYTEST_ARGS=...)
	@echo "== pytest"
	@$(BIN)/python -m pytest $(PYTEST_ARGS) $(addprefix --ignore=tests/,system ops console chaos)

quick: .venv ## after a change of a rule: ruff, import contracts, tests without processes
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet --diff .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m pytest --numprocesses logical --dist loadfile $(QUICK_TESTS)

# mypy ends with status 2 if its workers do not start in time, as on a loaded machine. Then it runs without them.
check: .venv ## all checks except pytest: ruff, formatting, mypy, import contracts
	@echo "== ruff check"
	@$(BIN)/ruff check --quiet .
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check --quiet --diff .
	@echo "== mypy"
	@$(BIN)/mypy --no-error-summary --num-workers 2 || { test $$? -eq 2 && $(BIN)/mypy --no-error-summary; }
	@echo "== lint-imports"
	@$(BIN)/lint-imports --no-logo
	@echo "== checks passed"

coverage: .venv ## pytest with branch coverage, which is slower
	@$(BIN)/python -m pytest $(PYTEST_ARGS) --cov --cov-report term:skip-covered

durations: .venv ## pytest, and write the duration of each file to tests/durations.json, which orders later runs
	@$(BIN)/python -m pytest $(PYTEST_ARGS) --write-durations

docs: .venv ## the pages as a site with search, in build/docs; fails on a dead link
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --jobs auto -b dirhtml docs build/docs
	@echo "== build/docs/index.html"

chaos: .venv ## inject faults for SECONDS=600 over SEEDS=50 and check the promises (DATABASE=sqlite or pgbouncer, ONLY=calls,kill, OFF=term; COMMANDS=1: of commands on leases)
	@$(BIN)/python -m tests.chaos.run --seconds $(or $(SECONDS),600) --seeds $(or $(SEEDS),$(if $(COMMANDS),20,50)) \
	    --first $(or $(FIRST),1) --database $(or $(DATABASE),both) $(if $(COMMANDS),--commands) $(if $(FULL),--full) \
	    $(if $(ONLY),--only "$(ONLY)") $(if $(OFF),--off $(OFF))

fuzz: .venv ## odd requests to the API and odd command lines: none may fail (REQUESTS=36000 LINES=5000 FIRST=0)
	@$(BIN)/python -m tests.fuzz.run --requests $(or $(REQUESTS),36000) --lines $(or $(LINES),5000) --first $(or $(FIRST),0)

# Packages that only these tests need stand in an environment of their own, which sees those of .venv.
integrations: .venv ## tests with foreign software in environments of their own under build/: Dask on leases; the wheel on the oldest Python
	@test -x build/integrations/bin/python || $(BIN)/python -m venv build/integrations
	@build/integrations/bin/python -m pip install --quiet --disable-pip-version-check 'distributed>=2025.1'
	@printf '%s\n' "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
	    > "$$(build/integrations/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/leasehold-venv.pth"
	@PATH="$(CURDIR)/$(BIN):$$PATH" build/integrations/bin/python -m pytest --override-ini addopts= -p no:valkey tests/integrations
	@EVERY_PYTHON=1 $(BIN)/python -m pytest tests/ops/test_installed_wheel.py

bench: .venv ## what was asked of the speed and what is reached, into docs/explanation/performance.md (QUICK=1)
	@$(BIN)/python -m bench.targets $(if $(QUICK),--quick,--large) --write --picture docs/explanation/growth.svg

benches: .venv ## run each benchmark by itself: bench/*.py without tests, bench.targets, bench.easy (needs a log)
	@set -e; for file in $$(ls bench/[!_]*.py 2>/dev/null | grep -v -e targets.py -e easy.py -e test_); do \
	    name=$$(basename $$file .py); echo "== bench.$$name"; $(BIN)/python -m bench.$$name; done

lock: .venv ## make requirements.lock from pyproject.toml (UPGRADE=1 takes newer versions)
	@.ci/lock $(if $(UPGRADE),--upgrade)

# Always runs, and ends at once if nothing changed: it compares contents, not times of files.
.venv: ## install exactly the packages of requirements.lock into .venv
	@.ci/venv
