# Everything starts here: `make demo` and `make test` set up .venv by themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SEEDS  ?= 0

.PHONY: help demo test test-gpu lint format bench tiny lock install clean

help:
	@echo "make demo      train the embedded model and watch its reward rise (SEEDS=\"0 1 2\" for three runs)"
	@echo "make test      the tests: no network, no GPU, no key, no root"
	@echo "make lint      ruff, pyright, import contracts"
	@echo "make format    let ruff format and fix"
	@echo "make bench     the service beside plain transformers + PEFT, on the CPU"
	@echo "make test-gpu  the engine's tests on a CUDA device"
	@echo "make tiny      make the embedded model again, from nothing (about 20 minutes)"
	@echo "make clean     remove .venv and caches"

# The constraints pin torch exactly: a bare range would take the newest build with all of CUDA.
install: $(STAMP)
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tinsmith needs Python 3.11 or newer; try make PYTHON=python3.11")'
	@echo "setting up $(VENV), once; a few minutes with torch"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[local,dev]"
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/python scripts/demo.py $(SEEDS)

test: $(STAMP)
	@$(BIN)/python -m pytest -n 2 --dist loadgroup

test-gpu: $(STAMP)
	@$(BIN)/python -m pytest tests/gpu

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports

format: $(STAMP)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(STAMP)
	@$(BIN)/python bench/service_cpu.py

tiny: $(STAMP)
	@$(BIN)/python scripts/make_tiny.py

lock: $(STAMP)
	@$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu//' > constraints.txt

clean:
	@rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
