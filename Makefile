# make demo    a chat server and its clients, talking over real frames
# make test    everything that must hold: lint, format, types, tests; ends with a table of its parts
# make quick   the tests that need no Java and no foreign peer, in an environment without those
# make versions  make quick on every supported Python that is found on PATH or under pyenv
# make system-packages  what tests need from Debian, by apt-get where there is one
# make bench   the benchmarks, beside all peers, about an hour, on the fastest Python that is found, or on PYTHON=...:
#              writes docs/explanation/performance.md anew;
#              PROFILE=1 keeps profiles of its runs in build/profiles, and says where the CPU goes
# make fuzz    mutated bytes by the million, for about half an hour: RUNS=20000 makes it a minute or two
# make gate    what is too long for make test, or judges times and memory: wants the machine to itself;
#              make -k gate goes on after what fails
# make cluster  the recipes of docs/spark-cluster.md, on a standalone Spark of two workers: five minutes
# make soak    everything at once for half an hour, then resumption and simulation in full: three quarters of an hour
# make peers   the conformance cases against implementations in other languages: writes docs/peers.md anew; then every
#              combination of peers, transports and types that make test tries by pairs
# make docs    the site of docs/ in build/site, with warnings as errors; fetches nothing but its packages
# make release-check  builds sdist and wheel, and tries the wheel alone on every Python from 3.11 to 3.14 that is found
# make docs-inventories  fetches the names that pages of Python and Trio have, to which the site links
# make clean   remove what the others made

PYTHON ?= python3
# Every interpreter that is named has an environment of its own.
ifeq ($(origin PYTHON),file)
VENV := .venv
else
VENV := .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
endif
BIN := $(VENV)/bin
# Tests start a thousand processes. Where the environment forbids compiled files, each would compile the package anew.
export PYTHONDONTWRITEBYTECODE :=
JS := tests/interop
WEB_CHAT := examples/web_chat
# Aeron's C library is within this package, which is published for Python 3.12 and newer and needs nothing of it: an older
# one unpacks it beside the others. Without it the tests over Aeron are skipped, or fail where CI is set, and say so.
PYAERON := pyaeron==0.1.0
AERON = if $(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 12))'; then \
	  $(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
	    --python-version 3.12 --dest $(VENV)/wheels $(PYAERON) && \
	  $(BIN)/python -m zipfile -e $(VENV)/wheels/pyaeron-*.whl \
	    "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || \
	  echo "$(PYAERON) not found: no Aeron"; fi
SPRING := build/spring
KOTLIN := build/kotlin
AERON_JAVA := build/aeron
KAFKA_JAVA := build/kafka
RSOCKET_JAVA := build/rsocket-java
TRANSPORT_TEST := build/transport-test
RSOCKET_GO := build/rsocket-go
SPARK_CONNECT := build/spark-connect
SPARK_VENV := build/spark-venv
PEERS := benchmarks/peers
# What tests need from Debian, each behind the command that it brings.
SYSTEM_PACKAGES := tshark:tshark ps:procps node:nodejs npm:npm javac:default-jdk-headless mvn:maven go:golang-go \
  nginx:nginx haproxy:haproxy nghttpx:nghttp2-proxy curl:curl \
  chromium:chromium
# Has Debian's packages start no service when they are installed: nginx and others would take ports.
POLICY := /usr/sbin/policy-rc.d
# Each part is a process, or a few, of its own: see qa/testrun. The longest come first.
PARTS := pure spark analytics commands peers kafka types lint
QUICK := commands pure
# Four at a time on two cores: many tests wait, for other processes or for time.
AT_ONCE := 4
RUN = $(BIN)/python -m qa.testrun
# Of the gate's parts: those that judge times and sizes, and those that may have another beside them.
ALONE := attacks load restarts times log
BESIDE := tests mutants spark kafka analytics conformance resume simulation
GATE := $(ALONE) $(BESIDE)

.DELETE_ON_ERROR:
.PHONY: demo test quick setup lacking versions system-packages bench bench-here fuzz gate cluster soak peers docs docs-inventories release-check clean
.PHONY: $(GATE:%=gate-%)

demo: $(VENV)/.runtime
	@$(BIN)/python examples/chat.py

# Everything that is fetched, side by side; Maven's projects after one another, for they share a repository.
SETUP := $(VENV)/.dev $(JS)/node_modules/.installed $(WEB_CHAT)/public/chat.js $(SPRING)/.built $(RSOCKET_JAVA)/.built $(RSOCKET_GO)/.built \
  $(AERON_JAVA)/.built $(KAFKA_JAVA)/.built $(KOTLIN)/.built $(TRANSPORT_TEST)/.built

# RECORD=1 writes the tables into docs/contributing/testing.md.
test: lacking
	@$(MAKE) --no-print-directory -j8 setup
	@$(RUN) begin
	@$(MAKE) --no-print-directory -k -j$(AT_ONCE) $(PARTS:%=part-%); \
	  $(RUN) table $(PARTS) $(if $(RECORD),--write)

setup: $(SETUP)

# Without a tool its tests are skipped, or fail where CI is set, and say so.
lacking:
	@for one in $(SYSTEM_PACKAGES); do \
	  command -v $${one%%:*} >/dev/null || echo "$${one%%:*} is lacking: its tests $(if $(CI),fail because CI is set,are skipped)"; \
	done

part-types:
	@$(RUN) command types -- $(BIN)/mypy

part-lint:
	@$(RUN) command lint -- sh -c '$(BIN)/ruff check && $(BIN)/ruff format --check'

part-%:
	@$(RUN) part $*

quick: $(VENV)/.quick
	@$(RUN) begin --run quick
	@$(MAKE) --no-print-directory -k -j2 $(QUICK:%=quick-%); \
	  $(RUN) table --run quick $(QUICK) $(if $(RECORD),--write)

quick-%:
	@$(RUN) part --run quick $*

# Those that are lacking are named; it fails where the tests do, on any of them.
versions:
	@failed=; for one in 3.11 3.12 3.13; do \
	  found=$$(command -v python$$one || ls -d $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$one.*/bin/python 2>/dev/null | tail -1); \
	  if [ -z "$$found" ]; then echo "Python $$one is lacking: not on PATH, and pyenv has none"; \
	  elif $(MAKE) --no-print-directory quick PYTHON=$$found; then echo "Python $$one passed"; \
	  else echo "Python $$one FAILED"; failed=1; fi; \
	done; [ -z "$$failed" ]

# Needs root, and does nothing where there is no apt-get or every command is there.
system-packages:
	@missing=; for one in $(SYSTEM_PACKAGES); do \
	  command -v $${one%%:*} >/dev/null || missing="$$missing $${one#*:}"; \
	done; \
	if [ -n "$$missing" ] && command -v apt-get >/dev/null; then \
	  if [ ! -e $(POLICY) ]; then \
	    trap 'rm -f $(POLICY)' EXIT; trap 'exit 1' INT TERM; printf '#!/bin/sh\nexit 101\n' >$(POLICY) && chmod +x $(POLICY) || exit; \
	  fi; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $$missing; \
	fi

# On the interpreter that PYTHON names, or the fastest of those found, in an environment of its own.
bench:
	@$(MAKE) --no-print-directory bench-here PYTHON=$(if $(filter file,$(origin PYTHON)),$$($(PYTHON) -m qa.pythons),$(PYTHON))

bench-here: $(VENV)/.bench $(JS)/node_modules/.installed $(RSOCKET_JAVA)/.built $(RSOCKET_GO)/.built
	$(BIN)/python -m benchmarks --json benchmarks/result.json $(if $(PROFILE),--profile build/profiles)
	$(BIN)/python -m benchmarks.report

RUNS ?= 2000000

fuzz: $(VENV)/.fuzz
	$(BIN)/python -m qa.fuzz decoders --runs $(RUNS)
	$(BIN)/python -m qa.fuzz guided --runs $$(( $(RUNS) * 5 / 2 ))
	$(BIN)/python -m qa.fuzz conversations --runs $$(( $(RUNS) / 10 ))
	$(BIN)/python -m qa.fuzz server --frames $$(( $(RUNS) / 10 ))

# Its parts, and what they run, are listed in qa/testrun/parts.py. It wants the machine to itself.
gate: $(VENV)/.dev $(KAFKA_JAVA)/.built
	@$(RUN) begin --run gate
	@$(MAKE) --no-print-directory $(ALONE:%=gate-%); \
	  $(MAKE) --no-print-directory -j2 $(BESIDE:%=gate-%); \
	  $(RUN) table --run gate $(GATE) $(if $(RECORD),--write)

$(GATE:%=gate-%): gate-%: $(VENV)/.dev
	@$(RUN) gate --run gate $*

gate-times gate-kafka: $(KAFKA_JAVA)/.built

# What the recipes need beside: packages of a client of Spark Connect, and a venv to be sent along.
cluster: $(VENV)/.dev $(SPARK_CONNECT)/.built $(SPARK_VENV)/.built
	RSOCKET_TRIO_ALL_CASES=1 $(BIN)/pytest -q -o faulthandler_timeout=900 tests/spark/cluster tests/spark/jvm/test_foreach_batch.py

soak: $(VENV)/.dev
	$(BIN)/python -m qa.soak --minutes 30
	$(BIN)/python -m qa.resume --cuts 1000 --dialect rsocket/1.0
	$(BIN)/python -m qa.resume --cuts 1000 --dialect reactivesocket/0.2
	$(BIN)/python -m qa.resume --cuts 200 --dialect rsocket/2.0-draft
	$(BIN)/python -m qa.simulation --seeds 3400 --resume
	$(BIN)/python -m qa.simulation --seeds 3400

# Each peer that has its tools here is installed by them; CI=1 fails where one is lacking.
peers: $(SETUP)
	$(BIN)/python -m qa.peers
	@$(RUN) begin --run peers
	RSOCKET_TRIO_ALL_CASES=1 $(RUN) part --run peers peers

docs: $(VENV)/.dev
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/site
	@echo "build/site/index.html"

release-check: $(VENV)/.dev
	$(BIN)/python -m qa.release

docs-inventories:
	curl -fsSL -o docs/inventories/python.inv https://docs.python.org/3/objects.inv
	curl -fsSL -o docs/inventories/trio.inv https://trio.readthedocs.io/en/stable/objects.inv

clean:
	rm -rf .venv .venv-* $(JS)/node_modules $(WEB_CHAT)/node_modules $(WEB_CHAT)/public/chat.js build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "rsocket-trio needs Python 3.11 or newer, and '$(PYTHON)' is none: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml | $(BIN)/python
	@echo "fetching Python packages (4 MB)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "fetching Python packages (900 MB, half of it Spark)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@$(AERON)
	@touch $@ $(VENV)/.runtime

$(VENV)/.quick: pyproject.toml | $(BIN)/python
	@echo "fetching Python packages (100 MB)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cli,test,log,capture,services,http2]'
	@touch $@

$(VENV)/.fuzz: pyproject.toml $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	@touch $@

# A peer that can't be installed is left out, and the report names it.
$(VENV)/.bench: pyproject.toml $(VENV)/.dev
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]' || \
	  for one in grpcio protobuf grpclib matplotlib; do \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check $$one || echo "$$one is left out"; \
	  done
	@touch $@

# Without npm the tests against the JavaScript peers are skipped, or fail where CI is set, and say so.
$(JS)/node_modules/.installed: $(JS)/package.json
	@if command -v npm >/dev/null; then \
	  echo "fetching packages of npm"; cd $(JS) && npm install --no-package-lock --no-audit --no-fund --loglevel=error; \
	else \
	  echo "npm not found: no JavaScript peers"; mkdir -p $(JS)/node_modules; \
	fi
	@if command -v npm >/dev/null; then touch $@; fi

# Without npm the chat for browsers says what is missing, and its test is skipped, or fails where CI is set.
$(WEB_CHAT)/public/chat.js: $(WEB_CHAT)/package.json $(wildcard $(WEB_CHAT)/src/*.ts) | $(JS)/node_modules/.installed
	@if command -v npm >/dev/null; then \
	  cd $(WEB_CHAT) && npm install --no-package-lock --no-audit --no-fund --loglevel=error && npm run --silent build -- --log-level=error; \
	fi

# Without Maven and a JDK the tests against Spring are skipped, or fail where CI is set, and say so.
$(SPRING)/.built: $(JS)/spring/pom.xml $(wildcard $(JS)/spring/src/*.java)
	@if command -v mvn >/dev/null && command -v javac >/dev/null; then \
	  echo "fetching Spring"; mvn -q -B -Dstyle.color=never -f $(JS)/spring compile && touch $@ || echo "no Spring peer"; \
	else \
	  echo "mvn or javac not found: no Spring peer"; \
	fi

# Apart from the environment of the tests: pandas and numpy are not to be needed there.
$(SPARK_CONNECT)/.built: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target $(@D) 'grpcio>=1.76' \
	  'grpcio-status>=1.76' 'googleapis-common-protos>=1.71' 'pandas>=2.2,<3' 'zstandard>=0.25' 'pyyaml>=6'
	@touch $@

$(SPARK_VENV)/.built: pyproject.toml $(shell find rsocket_trio pyspark_rsocket -name '*.py') | $(BIN)/python
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check . 'pyarrow>=18' venv-pack2 setuptools
	@touch $@

# What can't be built is left out of the benchmarks, which name it; its test is skipped, or fails where CI is set.
$(RSOCKET_JAVA)/.built: $(PEERS)/java/pom.xml $(wildcard $(PEERS)/java/src/*.java) | $(SPRING)/.built
	@if command -v mvn >/dev/null && command -v javac >/dev/null; then \
	  echo "fetching rsocket-java"; mvn -q -B -Dstyle.color=never -f $(PEERS)/java compile && touch $@ || echo "no rsocket-java in the benchmarks"; \
	else \
	  echo "mvn or javac not found: no rsocket-java in the benchmarks"; \
	fi

# go.mod is copied, because go completes it and writes go.sum beside it.
$(RSOCKET_GO)/.built: $(wildcard $(PEERS)/go/*)
	@if command -v go >/dev/null; then \
	  echo "fetching rsocket-go"; mkdir -p $(@D) && cp $(PEERS)/go/go.mod $(@D) && cd $(PEERS)/go && \
	  go build -mod=mod -modfile=$(abspath $(@D))/go.mod -o $(abspath $(@D))/server . && touch $(abspath $@) || \
	  echo "no rsocket-go in the benchmarks"; \
	else \
	  echo "go not found: no rsocket-go in the benchmarks"; \
	fi

# Without Maven and a Java the tests against Aeron's driver in Java are skipped, or fail where CI is set, and say so.
$(AERON_JAVA)/.built: $(JS)/aeron/pom.xml | $(RSOCKET_JAVA)/.built
	@if command -v mvn >/dev/null && command -v java >/dev/null; then \
	  echo "fetching Aeron's driver in Java"; mvn -q -B -Dstyle.color=never -f $(JS)/aeron compile && touch $@ || \
	  echo "no Aeron driver in Java"; \
	else \
	  echo "mvn or java not found: no Aeron driver in Java"; \
	fi

# Without Maven and a JDK the tests against rsocket-kotlin are skipped, or fail where CI is set, and say so. The compiler
# of Kotlin comes with Maven's plugin.
$(KOTLIN)/.built: $(JS)/kotlin/pom.xml $(wildcard $(JS)/kotlin/src/*.kt) | $(KAFKA_JAVA)/.built
	@if command -v mvn >/dev/null && command -v javac >/dev/null; then \
	  echo "fetching rsocket-kotlin"; mvn -q -B -Dstyle.color=never -f $(JS)/kotlin compile && touch $@ || echo "no Kotlin peer"; \
	else \
	  echo "mvn or javac not found: no Kotlin peer"; \
	fi

# Without Maven and a JDK rsocket-java's own tests through a forwarder are skipped, or fail where CI is set, and say so.
$(TRANSPORT_TEST)/.built: $(JS)/transport/pom.xml $(wildcard $(JS)/transport/src/*.java) | $(KOTLIN)/.built
	@if command -v mvn >/dev/null && command -v javac >/dev/null; then \
	  echo "fetching rsocket-java's tests"; mvn -q -B -Dstyle.color=never -f $(JS)/transport compile && touch $@ || \
	  echo "no tests of rsocket-java"; \
	else \
	  echo "mvn or javac not found: no tests of rsocket-java"; \
	fi

# Without Maven and a Java the tests against Kafka are skipped, or fail where CI is set, and say so.
$(KAFKA_JAVA)/.built: tests/kafka/pom.xml | $(AERON_JAVA)/.built
	@if command -v mvn >/dev/null && command -v java >/dev/null; then \
	  echo "fetching Kafka"; mvn -q -B -Dstyle.color=never -f tests/kafka compile && touch $@ || echo "no Kafka broker"; \
	else \
	  echo "mvn or java not found: no Kafka broker"; \
	fi
