# make demo    a chat server and its clients, talking over real frames
# make test    everything that must hold: lint, format, types, tests
# make bench   the benchmarks
# make clean   remove what the others made

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JS := tests/interop

.DELETE_ON_ERROR:
.PHONY: demo test bench clean

demo: $(VENV)/.runtime
	@$(BIN)/python examples/chat.py

test: $(VENV)/.dev $(JS)/node_modules/.installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) $(JS)/node_modules build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "rsocket-trio needs Python 3.11 or newer, and '$(PYTHON)' is none: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/.runtime

# Without npm the tests against the JavaScript peers are skipped, or fail where CI is set, and say so.
$(JS)/node_modules/.installed: $(JS)/package.json
	@if command -v npm >/dev/null; then \
	  cd $(JS) && npm install --no-package-lock --no-audit --no-fund --loglevel=error; \
	else \
	  echo "npm not found: no JavaScript peers"; mkdir -p $(JS)/node_modules; \
	fi
	@if command -v npm >/dev/null; then touch $@; fi
