PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint requirements.lock

.PHONY: demo test install lint docs bench clean

# Four methods measured and a report to look at: a few minutes, no torch.
demo: $(VENV)/demo
	$(BIN)/assay check smart nqs fuse sos-prover
	$(BIN)/assay report --out report

# Everything installed, everything checked.
test: install
	$(BIN)/assay data fetch --home
	$(MAKE) lint
	$(BIN)/python -m pytest

install: $(VENV)/full

lint: $(VENV)/full
	$(BIN)/ruff check src tests scripts examples benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/full
	$(BIN)/python scripts/build_docs.py

bench: $(VENV)/full
	$(BIN)/python benchmarks/run.py

$(VENV)/demo: pyproject.toml requirements.lock | $(VENV)/made
	$(PIP) --editable ".[report,science]"
	touch $@

$(VENV)/full: pyproject.toml requirements.lock | $(VENV)/made
	$(PIP) --editable ".[test]"
	touch $@ $(VENV)/demo

$(VENV)/made:
	$(PYTHON) -m venv $(VENV)
	touch $@

clean:
	rm -rf $(VENV) report build dist
