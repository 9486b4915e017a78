# make benchmark   environment, then the quick study on this machine, recorded in mlflow.db
# make check       linters, types, import rules and the quick tests
# make test        linters, types, import rules, and the tests that reach nearly all of the code, in ten minutes
# make test-all    linters, types, import rules and all tests
# make lint        linters, types and import rules only
# make coverage    all tests, with how much of the package they reach
# make docs        the documentation as a site, in docs/_build
# make dist        what a release consists of, in dist
# make ui          MLflow's web pages on what was recorded
# make results     the tables of docs/verification.md from benchmarks/records, and the paper's claims from results
# make clean       removes the environment and caches; keeps what was recorded

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
BIN := $(CURDIR)/$(VENV)/bin
STUDY ?= quick
DEVICE ?= xeon
SUPPORTED := import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))
# The first interpreter of a supported version that really starts; PYTHON=/path/to/python chooses another.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.10 python3.13 python3; do \
	"$$name" -c '$(SUPPORTED)' 2>/dev/null && { echo "$$name"; break; }; done)

# uv has its own word for places with wheels; both are to look in the same ones.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
export MLFLOW_TRACKING_URI ?= sqlite:///$(CURDIR)/mlflow.db
export MLFLOW_EXPERIMENT_NAME ?= ngraph
export PATH := $(BIN):$(PATH)

STAMP := $(VENV)/.installed
PLUGINS := $(wildcard plugins/*/pyproject.toml)
COMMA := ,

.PHONY: help benchmark check test test-all lint coverage docs dist ui results clean environment

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

environment: $(STAMP)

# An environment stays as long as its interpreter is supported and, where PYTHON was given, is that one.
SAME := import os, sys; print(*sys.version_info[:2], os.path.realpath(sys.base_prefix))
GIVEN := $(filter command environment,$(firstword $(origin PYTHON)))
FITS = "$(VENV)/bin/python" -c '$(SUPPORTED)' 2>/dev/null $(if $(GIVEN),&& \
	test "$$("$(VENV)/bin/python" -c '$(SAME)')" = "$$("$(PYTHON)" -c '$(SAME)' 2>/dev/null)")
.PHONY: another
$(STAMP): $(if $(shell { $(FITS); } && echo yes),,another)

TOOK = echo "== that took $$((SECONDS - begin)) s"

# What the environment holds is written in the pyproject.toml of package and plugins; it is made again when that changes. torch goes first, by
# itself: pip then keeps the build that the machine offers (one without CUDA where there is one) instead of choosing again.
$(STAMP): pyproject.toml $(PLUGINS)
	@test -n "$(PYTHON)" || { echo "no Python 3.10 to 3.13 found; name one with PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c '$(SUPPORTED)' 2>/dev/null || { \
		echo "$(PYTHON) is $$("$(PYTHON)" --version 2>&1 | tail -n 1): Python 3.10 to 3.13 is needed;" \
		"name one with PYTHON=/path/to/python" >&2; exit 1; }
	@if ! { $(FITS); }; then \
		test ! -e "$(VENV)/pyvenv.cfg" || echo "== $(VENV) has another Python: making it anew"; \
		"$(PYTHON)" -m venv $$(test ! -e "$(VENV)/pyvenv.cfg" || echo --clear) "$(VENV)"; fi
	@echo "== environment: $(VENV), with $$($(VENV)/bin/python --version); usually 2 to 5 minutes the first time, mostly downloads"
	@echo "== installing torch (1 of 2): usually about a minute; a build with CUDA has gigabytes to download, and takes longer"
	@begin=$$SECONDS; $(VENV)/bin/python -m pip install --quiet \
		"$$(sed -n 's/^torch-release = .*"\(torch==[^"]*\)".*/\1/p' pyproject.toml)" && $(TOOK)
	@echo "== installing mlflow-ngraph and its plugins with the compilers of device xeon and the tools of its tests (2 of 2):" \
		"usually 1 to 3 minutes"
	@begin=$$SECONDS; $(VENV)/bin/python -m pip install --quiet --editable '.[xeon,dev]' \
		$(PLUGINS:%/pyproject.toml=--editable ./%) && $(TOOK)
	@echo "== $$($(VENV)/bin/python -m mlflow_ngraph.torchvision_hook 2>&1)"
	@touch $(STAMP)

# torch-compile and tvm generate code that a C++ compiler builds; a machine without one measures the other four.
NO_CXX := $(shell command -v g++ c++ clang++ $(CXX) >/dev/null || echo yes)
BENCHMARK := mlflow run . -e benchmark -P device=$(DEVICE) -P study='$(STUDY)' $(if $(NO_CXX),-P \
	compilers=identity$(COMMA)torchscript$(COMMA)onnxruntime$(COMMA)openvino) --env-manager local

benchmark: $(STAMP)
	$(if $(NO_CXX),@echo "== no C++ compiler found: leaving out torch-compile and tvm; install g++ to have them")
	@echo "== $(BENCHMARK)"
	@echo "== recording in $$MLFLOW_TRACKING_URI; the results in a browser, afterwards: make ui"
	$(if $(filter quick,$(STUDY)),@echo "== usually 3 to 4 minutes the first time$(COMMA) of which most are compiling; its last lines are the answer")
	@$(BENCHMARK)

# Another word leaves types out, where libraries are of other versions than those that the types were written with.
MYPY ?= mypy
# It is short so that a reader can check it, and has no line for types.
UNTYPED := benchmarks/recompute_tables.py

lint: $(STAMP)
	@echo "== ruff" && ruff check . && ruff format --check .
	@echo "== mypy" && $(MYPY)
	@cd benchmarks && MYPYPATH=.. $(MYPY) --config-file ../pyproject.toml --cache-dir ../.mypy_cache/benchmarks \
		-p support $(patsubst benchmarks/%.py,-m %,$(filter-out $(UNTYPED),$(wildcard benchmarks/*.py)))
	@cd results && MYPYPATH=.. $(MYPY) --config-file ../pyproject.toml --cache-dir ../.mypy_cache/results -p evidence -m claims
	@echo "== import rules" && lint-imports
	@echo "== docstrings" && find mlflow_ngraph plugins/*/mlflow_ngraph_* -name '*.py' -print0 | xargs -0 -P 2 -n 141 numpydoc lint

# What make says about where to record is not for tests.
TESTED := env -u MLFLOW_TRACKING_URI -u MLFLOW_EXPERIMENT_NAME
# Files in the order of tests/support/quick.py: those that take longest are begun first. A worker that crashes ends the run with
# its name: one that takes its place may be given nothing, and pytest waits for it for ever.
PYTEST := pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# All that needs no process, server or compiler; tests/support/quick.py sees to it.
check: lint
	@echo "== pytest" && $(TESTED) python -m pytest -n 2 --dist worksteal -q -m 'not slow'

test: lint
	@echo "== pytest" && $(TESTED) python -m $(PYTEST) -m 'not (slow and long)' --durations=25

test-all: lint
	@echo "== pytest" && $(TESTED) python -m $(PYTEST) --durations=25

# Settings and the floor are in pyproject.toml.
coverage: $(STAMP)
	@coverage erase
	@echo "== pytest" && { $(TESTED) python -m coverage run -m $(PYTEST) && passed=0 || passed=$$?; } && \
		echo "== coverage" && coverage combine --quiet && coverage report && exit $$passed

docs: $(STAMP)
	@python -m sphinx -W --keep-going -q -b html docs docs/_build && echo "== docs/_build/index.html"

# Without what earlier builds left behind, which would be packed, too.
dist: $(STAMP)
	@rm -rf dist build plugins/*/build
	@for project in . $(PLUGINS:%/pyproject.toml=%); do python -m build --outdir dist "$$project" >/dev/null; done
	@twine check --strict dist/*
	@rm -rf build plugins/*/build

ui: $(STAMP)
	@mlflow server --app-name ngraph --backend-store-uri "$$MLFLOW_TRACKING_URI" --port 5000

results: $(STAMP)
	@python benchmarks/render_records.py
	@python results/claims.py

clean:
	rm -rf $(VENV) .nox mutants build dist *.egg-info plugins/*/build plugins/*/*.egg-info htmlcov .coverage .coverage.*
	rm -rf docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
