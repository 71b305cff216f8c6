# One virtual environment, two commands: `make quickstart` and `make test`.
VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# what `make prove` runs beside the tests: each ends with an error where it finds a fault
PROOFS := \
	"python benchmarks/permissions.py --lines 100000" \
	"python tests/prove/hostile_states.py --states 10000 --at-once 8 --forks 4" \
	"python benchmarks/faults.py" \
	"python benchmarks/real_model.py" \
	"tools/first_hour.sh"

# what is compiled is kept: hundreds of tests start a Python, and each would compile pytest's plugins and Etude anew
unexport PYTHONDONTWRITEBYTECODE

.PHONY: agent quickstart test prove lint bench install system clean

quickstart: $(VENV)/train.stamp system
	$(BIN)/etude train recipes/quickstart.toml

# every part of the system in one run, on the repositories of benchmarks/mined: docs/whole-run.md
agent: $(VENV)/train.stamp system
	$(INSTALL) -e '.[gguf]'
	$(BIN)/python benchmarks/agent_run.py

# everything but the long proofs, of which it plays a slice: tests/proofs.py
test: $(VENV)/dev.stamp system lint
	$(BIN)/python -m pytest -n 2 --no-loadscope-reorder --durations 20 --junitxml build/tests.xml

# every test with all proofs at their full length, and everything that is no test of pytest's
prove: $(VENV)/dev.stamp system
	$(BIN)/python -m pytest tests/prove -p no:cacheprovider
	ETUDE_PROOFS=all $(BIN)/python -m pytest -n 2 --no-loadscope-reorder --durations 20 -o timeout=3600 -p no:cacheprovider
	@set -e; for proof in $(PROOFS); do echo "$$proof"; PATH="$(abspath $(BIN)):$$PATH" $$proof; done

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ty check

bench: $(VENV)/bench.stamp system
	$(BIN)/python benchmarks/quickstart_vs_trl.py

install: $(VENV)/train.stamp system

# bubblewrap, gcc and the other programs sandboxes are made with; installed where we may, named where we may not
system: $(VENV)/train.stamp
	@sh tools/system.sh

$(VENV)/train.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch==2.13.0
	$(INSTALL) -e '.[train]'
	@touch $@

$(VENV)/dev.stamp: $(VENV)/train.stamp
	$(INSTALL) -e '.[dev]'
	@touch $@

$(VENV)/bench.stamp: $(VENV)/train.stamp
	$(INSTALL) -e '.[bench]'
	@touch $@

clean:
	rm -rf $(VENV) runs
