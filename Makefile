# make demo: sets everything up and opens the demo. make test: sets everything up and runs every check.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
INSTALL := $(RUN) -m pip install --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup target demo browser setup-tests test

help:
	@echo "make demo   set everything up, fetch the embedded model, start the web page"
	@echo "make test   set everything up, then lint, type-check and run all tests"
	@echo "make setup  only create $(VENV) with the demo's packages"

setup: $(VENV)/.demo-installed
	@echo "== $(VENV) is ready"

target: setup
	@echo "== Providing the embedded model (fetched and converted the first time)"
	@$(RUN) -m eagle3_demo fetch

demo: target
	@echo "== Starting the page (Ctrl+C ends it)"
	@$(RUN) app.py

browser:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then \
		echo "== Browser for the tests: $$(command -v chromium)"; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "== Installing chromium and chromium-driver for the browser tests"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver; \
	else \
		echo "== chromium and chromedriver are missing and only root can install them: browser tests will be skipped"; \
	fi

setup-tests: $(VENV)/.tests-installed
	@echo "== The test tools are ready"

test: setup-tests browser target
	@echo "== Lint, format and types"
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@echo "== Tests"
	@$(RUN) -m pytest

$(VENV)/.demo-installed: requirements.txt constraints.txt
	@echo "== Installing the demo's packages into $(VENV) (some minutes the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version + "; name another one: make PYTHON=python3.12 demo")'
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) --requirement requirements.txt
	@touch $@

$(VENV)/.tests-installed: $(VENV)/.demo-installed requirements-dev.txt
	@echo "== Installing the test tools into $(VENV)"
	@$(INSTALL) --requirement requirements-dev.txt
	@touch $@
