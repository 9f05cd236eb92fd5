# Every target does its own set-up: on a fresh Debian or Ubuntu, Python 3.11, git and make will do.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint format docs pictures build bench simulate fuzz soak clean

bin := .venv/bin

# Four workers, also on two cores: most tests wait for a process now and then, and there are four
# long chains of them (tests/scheduling.py). What Python compiles is kept, whatever it is told
# elsewhere: every program that a test starts would compile it again.
PYTEST = PYTHONDONTWRITEBYTECODE= $(bin)/pytest --numprocesses 4 --dist loadgroup

help: ## show this
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/.up-to-date ## a shop's events through two brokers and Spark, a kill -9, and nothing lost; KEEP=1
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

format: .venv/.up-to-date ## format the code, and mend what can be mended
	@$(bin)/ruff format .
	@$(bin)/ruff check --fix .

docs: .venv/.up-to-date ## write the generated pages of docs/, and build the site in site/
	@$(bin)/python scripts/options_page.py
	@NO_MKDOCS_2_WARNING=1 $(bin)/mkdocs build --strict --quiet
	@echo "open site/index.html" >&2

pictures: .venv/.up-to-date ## take the pictures in docs/images, in six minutes
	@scripts/ensure-test-programs
	@java_home=$$(scripts/ensure-java) && JAVA_HOME="$$java_home" $(bin)/python scripts/pictures.py $(ARGS)

build: .venv/.up-to-date ## make the wheel and the source archive, in dist/
	@$(bin)/python -m build --no-isolation --outdir dist .

bench: .venv/.up-to-date ## measure against the reference points; ARGS="--help" for choices
	@scripts/ensure-redis
	@java_home=$$(scripts/ensure-java) && JAVA_HOME="$$java_home" $(bin)/python -m bench $(ARGS)

simulate: .venv/.up-to-date ## run SCHEDULES=10000 simulated schedules; SEED=N for certain ones
	@$(bin)/python -m tests.simulation --seeds $(or $(SCHEDULES),10000) $(if $(SEED),--seed $(SEED)) $(ARGS)

fuzz: .venv/.up-to-date ## look for input that breaks something; ARGS="--help" for choices
	@$(bin)/python -m fuzz $(ARGS)

soak: .venv/.up-to-date ## load and faults for MINUTES=20: nothing may grow, nothing get lost
	@$(bin)/python -m soak $(ARGS)

clean: ## remove everything that the other targets made
	rm -rf .venv build dist site tests/interop/node_modules .hypothesis
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.up-to-date: pyproject.toml constraints.txt scripts/make-venv
	@scripts/make-venv
	@touch $@

# A quarter of a Spark test would be Java reading and checking Spark's classes.
.venv/spark-classes.jsa: constraints.txt tests/spark/class_archive.py | .venv/.up-to-date
	@echo "keeping Spark's classes for the tests, in half a minute (once)" >&2
	@java_home=$$(scripts/ensure-java) && JAVA_HOME="$$java_home" $(bin)/python -m \
		tests.spark.class_archive $@ 2>$@.log || { cat $@.log >&2; exit 1; }

# The Node client is one of the existing clients we test with. Where there is no Node, those tests
# say that they were left out.
tests/interop/node_modules/.up-to-date: tests/interop/package.json
	@if command -v npm >/dev/null; then \
		echo "installing the Node client for NSQ (once)" >&2 && \
		npm install --prefix tests/interop --no-package-lock --no-audit --no-fund --silent && \
		touch $@; \
	fi
