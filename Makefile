# A fresh machine needs only Python >= 3.11 (with venv and pip), git and make. Everything else lands in .venv*,
# in the project, and for `make live` in a cache folder outside it. The venvs are made again only when pyproject.toml
# or setup.cfg change: the package itself is installed as a link to this tree.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV PIP_USER PIP_TARGET

BIN := .venv/bin
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
# "compat": a plain path entry. The default import hook would cost every start of `bnd`.
EDITABLE := --config-settings editable_mode=compat
PYTEST := -m pytest -n 2
# Proofs on real CLIs take minutes: `make live` runs them.
LONG := --ignore=tests/live/test_proof_live.py
# More for pytest: make test ARGS='-k kimi'
ARGS ?=
PROJECT := pyproject.toml setup.cfg

export BND_LIVE_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/beyond-live
# NAME=PACKAGE@VERSION; each lands in a folder NAME-VERSION of that cache (.ci/live-clis).
LIVE_CLIS ?= claude=@anthropic-ai/claude-code@2.1.218 claude=@anthropic-ai/claude-code@2.1.332 \
    kimi=@moonshot-ai/kimi-code@0.28.0 kimi=@moonshot-ai/kimi-code@0.29.0 kimi=@moonshot-ai/kimi-code@2.1.0

.PHONY: help demo test test-3.11 test-3.13 live live-clis check lint bench clean

help:
	@echo 'make demo    install into .venv and show the main job on a bundled conversation'
	@echo 'make test    install what the tests need and run them, on 3.13 too where it is there'
	@echo 'make check   what CI runs: ruff, mypy --strict, import-linter, tests'
	@echo 'make live    install the real agent CLIs (outside the project) and test with them'
	@echo 'make bench   the measurements'
	@echo 'make clean   remove what these made in the project'

demo: .venv/stamp-run
	@$(BIN)/bnd demo

test: test-3.11 test-3.13

test-3.11: .venv/stamp-test
	$(BIN)/python $(PYTEST) $(LONG) $(ARGS)

# Where a 3.13 is found; nothing is asked of a machine that has none.
test-3.13:
	@if [ -e .venv-3.13/bin/python ] || .ci/python 3.13 >/dev/null; then \
	  $(MAKE) --no-print-directory .venv-3.13/stamp-test; \
	  echo '.venv-3.13/bin/python $(PYTEST) --ignore=tests/live $(ARGS)'; \
	  .venv-3.13/bin/python $(PYTEST) --ignore=tests/live $(ARGS); \
	else echo 'no Python 3.13 here: tested on one version'; fi

live: live-clis .venv/stamp-test
	$(BIN)/python $(PYTEST) --dist loadfile tests/live $(ARGS)
	@cat "$$BND_LIVE_CACHE/missing"

live-clis:
	@.ci/live-clis $(LIVE_CLIS)

lint: .venv/stamp-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

check: lint test

bench: .venv/stamp-bench
	$(BIN)/python -m tests.bench $(ARGS)

clean:
	rm -rf .venv .venv-3.13 build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis .coverage*
	find beyond tests -name __pycache__ -prune -exec rm -rf {} +

# --- the venvs -------------------------------------------------------------------------------------------------

# A venv whose interpreter has gone (the machine's Python was replaced) is made again.
ifneq ($(wildcard .venv),)
ifeq ($(wildcard .venv/bin/python),)
$(shell rm -rf .venv)
endif
endif
ifneq ($(wildcard .venv-3.13),)
ifeq ($(wildcard .venv-3.13/bin/python),)
$(shell rm -rf .venv-3.13)
endif
endif

.venv/stamp-venv:
	@python=$$(.ci/python); echo "$$python -m venv .venv"; rm -rf .venv; "$$python" -m venv .venv
	@touch $@

.venv-3.13/stamp-venv:
	@python=$$(.ci/python 3.13); echo "$$python -m venv .venv-3.13"; rm -rf .venv-3.13; "$$python" -m venv .venv-3.13
	@touch $@

%/stamp-run: %/stamp-venv $(PROJECT)
	$*/bin/python $(PIP_INSTALL) $(EDITABLE) -e .
	@touch $@

%/stamp-test: %/stamp-venv $(PROJECT)
	$*/bin/python $(PIP_INSTALL) $(EDITABLE) -e '.[test]'
	@touch $@ $*/stamp-run

%/stamp-dev: %/stamp-venv $(PROJECT)
	$*/bin/python $(PIP_INSTALL) $(EDITABLE) -e '.[dev]'
	@touch $@ $*/stamp-test $*/stamp-run

%/stamp-bench: %/stamp-venv $(PROJECT)
	$*/bin/python $(PIP_INSTALL) $(EDITABLE) -e '.[bench]'
	@touch $@ $*/stamp-run

.PRECIOUS: %/stamp-venv
