# Every target installs what it needs. A fresh Debian or Ubuntu needs only Python 3.11, git and make.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint format docs pictures build bench simulate simulate-replication \
	crash-replicated faults fuzz soak clean

bin := .venv/bin

# Four workers even on two cores: most tests wait for processes, and there are four long groups of
# tests (tests/scheduling.py). Python keeps its bytecode files even if the environment disables that:
# otherwise every program that a test starts would compile its modules again.
PYTEST = PYTHONDONTWRITEBYTECODE= $(bin)/pytest --numprocesses 4 --dist loadgroup

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/.up-to-date ## send events of a shop through two brokers and Spark, kill a broker, check the results; KEEP=1 keeps them running
	@java_home=$$(scripts/ensure-java) && JAVA_HOME="$$java_home" $(bin)/python -m examples.shop.demo \
		$(if $(RATE),--rate $(RATE)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(KEEP),--keep)

test: .venv/.up-to-date .venv/spark-classes.jsa tests/interop/node_modules/.up-to-date ## run all tests; ARGS="-k name" for some
	@scripts/ensure-test-programs
	@java_home=$$(scripts/ensure-java) && JAVA_HOME="$$java_home" $(PYTEST) $(ARGS)

lint: .venv/.up-to-date ## check format, style, types and the import rule
	@$(bin)/ruff format --check . || { echo "run 'make format'" >&2; exit 1; }
	@$(bin)/ruff check .
	@$(bin)/mypy
	@$(bin)/lint-imports --no-logo

format: .venv/.up-to-date ## format the code and fix what ruff can fix
	@$(bin)/ruff format .
	@$(bin)/ruff check --fix .

docs: .venv/.up-to-date ## write the generated pages of docs/ and build the site in site/
	@$(bin)/python scripts/options_page.py
	@NO_MKDOCS_2_WARNING=1 $(bin)/mkdocs build --strict --quiet
	@echo "open site/index.html" >&2

pictures: .venv/.up-to-date ## take the pictures in docs/images (six minutes)
	@scripts/ensure-test-programs
	@java_home=$$(scripts/ensure-java) && JAVA_HOME="$$java_home" $(bin)/python scripts/pictures.py $(ARGS)

build: .venv/.up-to-date ## build the wheel and the source archive in dist/
	@$(bin)/python -m build --no-isolation --outdir dist .

bench: .venv/.up-to-date ## run the benchmarks; ARGS="--help" lists options
	@scripts/ensure-redis
	@scripts/ensure-nats
	@java_home=$$(scripts/ensure-java) && JAVA_HOME="$$java_home" $(bin)/python -m bench $(ARGS)

simulate: .venv/.up-to-date ## run SCHEDULES=10000 simulated schedules, from SEED=N on
	@$(bin)/python -m tests.simulation --seeds $(or $(SCHEDULES),10000) $(if $(SEED),--seed $(SEED)) $(ARGS)

simulate-replication: .venv/.up-to-date ## the same for a replicated node, and deliberate bugs
	@$(bin)/python -m tests.replication_simulation --mutations --seeds $(or $(SCHEDULES),10000) $(if $(SEED),--seed $(SEED)) $(ARGS)

crash-replicated: .venv/.up-to-date ## run the crash tests of a single nsqd on the leader of a replicated node
	@scripts/ensure-test-programs
	@REPLICATED=1 $(PYTEST) tests/crash/test_nsqd_*.py $(ARGS)

faults: .venv/.up-to-date ## run RUNS=50 of random faults on a replicated node in network namespaces (needs root)
	@scripts/ensure-test-programs
	@$(bin)/python -m tests.crash.replication_proof --runs $(or $(RUNS),50) $(ARGS)

fuzz: .venv/.up-to-date ## fuzz the parsers; ARGS="--help" lists options
	@$(bin)/python -m fuzz $(ARGS)

soak: .venv/.up-to-date ## run load and faults for MINUTES=20, check for leaks and lost messages
	@$(bin)/python -m soak $(ARGS)

clean: ## remove everything that the other targets made
	rm -rf .venv build dist site tests/interop/node_modules .hypothesis
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.up-to-date: pyproject.toml constraints.txt scripts/make-venv
	@scripts/make-venv
	@touch $@

# Saves a quarter of the time of a Spark test: Java does not load and verify Spark's classes again.
.venv/spark-classes.jsa: constraints.txt tests/spark/class_archive.py | .venv/.up-to-date
	@echo "archiving Spark's classes for the tests: half a minute, once" >&2
	@java_home=$$(scripts/ensure-java) && JAVA_HOME="$$java_home" $(bin)/python -m \
		tests.spark.class_archive $@ 2>$@.log || { cat $@.log >&2; exit 1; }

# The tests use an existing Node client. Without Node, these tests are skipped.
tests/interop/node_modules/.up-to-date: tests/interop/package.json
	@if command -v npm >/dev/null; then \
		echo "installing the Node client for NSQ (once)" >&2 && \
		npm install --prefix tests/interop --no-package-lock --no-audit --no-fund --silent && \
		touch $@; \
	fi
