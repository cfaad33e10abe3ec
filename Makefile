# Every target does its own set-up; the second time there is nothing left to do.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# Tests start thousands of processes. Without bytecode each of them compiles the sources, which takes half of its start.
unexport PYTHONDONTWRITEBYTECODE

# For two processors: tests of clusters mostly wait, so there is one process of tests more. tests/conftest.py has the order.
JOBS ?= 3
IN_PROCESSES = -n $(JOBS) --dist loadgroup --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help run test test-kafka test-clients check bench bench-kafka explore fuzz torture docs types docs-check demo clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.run ## Start a broker on 127.0.0.1:9092, data in ./skep-data; prints what to type next
	@exec $(BIN)/skep serve $(ARGS)

test: $(VENV)/.dev system-packages ## Run every test
	$(BIN)/python -m pytest $(IN_PROCESSES) --durations=25 $(ARGS)

test-kafka: $(VENV)/.dev jdk maven ## Test with Apache Kafka's own tools and Spark's Kafka connector, which Maven downloads
	$(BIN)/python -m pytest -m kafka tests/kafka_tools $(ARGS)

test-clients: $(VENV)/.dev jdk maven ## Test with the share consumers of franz-go (needs Go) and Java (from Maven)
	@command -v go >/dev/null || [ -x /usr/local/go/bin/go ] || echo "skep: Go is missing, so franz-go is left out: https://go.dev/dl" >&2
	$(BIN)/python -m pytest -m "clients or kafka" tests/clients tests/kafka_tools/test_java_share_consumer.py tests/kafka_tools/test_java_share_member.py $(ARGS)

check: $(VENV)/.dev ## Format, lint, types, layers, fast tests
	$(BIN)/ruff format --check src tests bench pipelines
	$(BIN)/ruff check src tests bench pipelines
	$(BIN)/mypy
	$(BIN)/python -m pytest -q $(IN_PROCESSES) --durations=10 tests/architecture tests/unit tests/wire tests/contract

bench: $(VENV)/.bench java ## Measure against references of the same run; table, JSON and PNG in bench/results
	$(BIN)/python -m bench $(ARGS)

bench-kafka: $(VENV)/.bench java maven ## Measure beside Apache Kafka, one node and three (ARGS="produce latency --rounds 9")
	$(BIN)/python -m bench.kafka $(ARGS)

explore: $(VENV)/.dev ## Search at random for failures that the fixed examples of the tests miss (MINUTES=10)
	$(BIN)/python -m tests.explore --minutes $(or $(MINUTES),10) -- -n $(JOBS) $(ARGS)

fuzz: $(VENV)/.dev ## Throw hostile bytes at every listener of a broker (SECONDS=60)
	$(BIN)/python -m tests.fuzz $(or $(SECONDS),60)

torture: $(VENV)/.dev java ## An hour of faults against a cluster, then the long tests (MINUTES=60, ARGS="--seed 7")
	$(BIN)/python -m tests.torture --minutes $(or $(MINUTES),60) $(ARGS)
	SKEP_TEST_LENGTH=long $(BIN)/python -m pytest -m long --timeout 7200 tests

demo: $(VENV)/.spark java ## Show it all: a broker, events, a pipeline on Spark, results in a topic and in Parquet
	@$(BIN)/python -m pipelines.demo $(ARGS)

docs: $(VENV)/.dev ## Write docs/CONFIGURATION.md, COMPATIBILITY.md and SPARK-OPTIONS.md from their tables
	$(BIN)/python -m tests.architecture.printed_docs

types: $(VENV)/.dev ## Write the types of request bodies, after a change of the versions served or of kio
	$(BIN)/python -m tests.architecture.printed_types

docs-check: $(VENV)/.dev java ## Do what README and docs say, in page order, from a fresh clone (ARGS="docs/SPARK.md")
	$(BIN)/python -m tests.docs $(ARGS)

clean: ## Remove what the other targets made
	rm -rf $(VENV) torture-results .pytest_cache .mypy_cache .ruff_cache .hypothesis bench/results

$(BIN)/python:
	@echo "skep: making a virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "skep: Python 3.11 or newer is needed, $(PYTHON) is older" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) >/dev/null || { \
	  rm -rf $(VENV); \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  echo "skep: installing python3-venv, which Debian keeps apart from Python" && \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null && \
	  $(PYTHON) -m venv $(VENV); \
	} || { rm -rf $(VENV); echo "skep: cannot make it; on Debian: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.run: $(BIN)/python pyproject.toml
	@echo "skep: installing what the broker needs"
	@$(call install,.[fast$(comma)tls])
	@touch $@

$(VENV)/.spark: $(BIN)/python pyproject.toml
	@echo "skep: installing what Spark needs; that takes some minutes the first time"
	@$(call install,.[spark])
	@touch $@ $(VENV)/.run

$(VENV)/.dev: $(BIN)/python pyproject.toml
	@echo "skep: installing what the tests need"
	@$(call install,.[dev])
	@$(BIN)/skep compile
	@touch $@ $(VENV)/.run $(VENV)/.spark

$(VENV)/.bench: $(BIN)/python pyproject.toml
	@echo "skep: installing what the benchmarks need"
	@$(call install,.[dev$(comma)bench])
	@$(BIN)/skep compile
	@touch $@ $(VENV)/.run $(VENV)/.spark $(VENV)/.dev

# Spark is 450 MB, and a minute without a word looks like a hang: pip's lines about large files and slow steps are shown.
comma := ,
define install
	bash -o pipefail -c '$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -e "$(1)" | sed -un \
	  -e "s/^ *Downloading \([^ ]*\) (\([0-9.]* [MG]B\))/  downloading \1, \2/p" \
	  -e "s/^ *Using cached \([^ ]*\) (\([0-9.]* [MG]B\))/  from the cache: \1, \2/p" \
	  -e "s/^Building wheels for collected packages: /  building /p" \
	  -e "s/^Installing collected packages.*/  unpacking/p"'
endef

# Debian packages: kcat is a client that the tests use, openssl makes their certificates, PostgreSQL is the database of a
# transaction with one (the tests start a server of their own), Spark runs on Java 17 or newer.
.PHONY: system-packages java jdk maven
system-packages: java
	@$(call debian-package,kcat,command -v kcat)
	@$(call debian-package,openssl,command -v openssl)
	@$(call debian-package,postgresql,command -v initdb || ls /usr/lib/postgresql/*/bin/initdb)

java:
	@$(call debian-package,default-jre-headless,[ "$$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p')" -ge 17 ])

jdk: java
	@$(call debian-package,default-jdk-headless,command -v javac)

maven:
	@$(call debian-package,maven,command -v mvn)

# Installs package $(1) if the command $(2) fails.
define debian-package
	{ $(2); } >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "skep: installing $(1)"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(1) >/dev/null; \
	  else \
	    echo "skep: $(1) is needed and cannot be installed from here: apt-get install $(1)" >&2; exit 1; \
	  fi; }
endef
