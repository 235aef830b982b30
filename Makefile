# The two commands of the README are `make demo` and `make test`; CI runs the second.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests that import torch: only the stage that installs it may collect them.
TORCH_TESTS := tests/torch_backend tests/device tests/audit_subjects/test_transformers.py
# The same for llama-cpp-python.
LLAMA_CPP_TESTS := tests/llama_cpp_backend
# Tests of the server's pages, in a browser.
BROWSER_TESTS := tests/server/test_playground.py tests/server/test_playground_access.py
# Draws on a Ray cluster; they skip themselves where Ray is not installed.
RAY_TESTS := tests/audit_ray
LEFT_OUT := $(addprefix --ignore=,$(TORCH_TESTS) $(LLAMA_CPP_TESTS) $(BROWSER_TESTS) $(RAY_TESTS))

.PHONY: help setup demo test lint types unit torch-tests model-tests test-llamacpp test-browser test-ray clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), f"Python {sys.version.split()[0]} found; 3.11 or later is needed"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(STAMP)

setup: $(STAMP)  ## Make the local virtual environment

demo: $(STAMP)  ## Decode two prompts with a real model, with and without speculation
	$(BIN)/draftproof demo

test: lint types unit model-tests torch-tests test-llamacpp test-browser test-ray  ## Everything that must be green

lint: $(STAMP)  ## Style, import directions, docstrings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/numpydoc lint $$(git ls-files 'src/*.py')

types: $(STAMP)  ## Static types
	$(BIN)/mypy

unit: $(STAMP)  ## Tests that need no weights
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'not model' $(LEFT_OUT)

model-tests: $(STAMP)  ## Tests on the weights of a real model
	$(BIN)/draftproof models pull smollm2
	$(BIN)/python -m pytest -m model $(LEFT_OUT)

torch-tests: $(STAMP)  ## Tests of the PyTorch runtime, which this installs
	$(BIN)/python -m pip install --quiet --editable '.[dev,torch]' 'triton; sys_platform == "linux"'
	$(BIN)/python -m pytest $(TORCH_TESTS)

test-llamacpp: $(STAMP)  ## Tests of the llama.cpp runtime, which this compiles (10 to 25 minutes once)
	@command -v c++ >/dev/null || { echo 'llama-cpp-python is compiled from source: a C++17 compiler (c++) is needed'; exit 1; }
	$(BIN)/python -m pip install --quiet --editable '.[dev,llamacpp]'
	$(BIN)/draftproof models pull smollm2
	$(BIN)/python -m pytest $(LLAMA_CPP_TESTS)

test-browser: $(STAMP)  ## Tests of the server's pages in a Chromium of this machine; left out where there is none
	$(BIN)/python -m pip install --quiet --editable '.[dev,browser]'
	$(BIN)/python -m pytest -rs $(BROWSER_TESTS)

test-ray: $(STAMP)  ## Audits on a Ray cluster of two local nodes
	$(BIN)/python -m pip install --quiet --editable '.[dev,ray]'
	$(BIN)/python -m pytest -rs $(RAY_TESTS)

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
