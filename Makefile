# One virtual environment, two commands: `make quickstart` and `make test`.
VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# what `make prove` runs beside tests/prove: each ends with an error where it finds a fault
PROOFS := \
	"benchmarks/permissions.py --lines 100000" \
	"tests/prove/hostile_states.py --states 10000 --at-once 8 --forks 4" \
	"benchmarks/faults.py"
# servers whose every operation is asked far more often than `make test` has time for
FUZZED := tests/engine/test_server_fuzz.py tests/environments/server/test_env_fuzz.py tests/product/test_sessions_server.py

.PHONY: quickstart test prove lint bench install system clean

quickstart: $(VENV)/train.stamp system
	$(BIN)/etude train recipes/quickstart.toml

test: $(VENV)/dev.stamp system lint
	$(BIN)/python -m pytest -n 2 --no-loadscope-reorder --durations 20 --junitxml build/tests.xml

# everything too long for `make test`
prove: $(VENV)/dev.stamp system
	$(BIN)/python -m pytest tests/prove -p no:cacheprovider
	ETUDE_EVERY_CASE=1 $(BIN)/python -m pytest tests/environments/test_every_backend.py -p no:cacheprovider
	ETUDE_STATES=50 $(BIN)/python -m pytest tests/environments/test_hostile_states.py -k every_backend -p no:cacheprovider
	ETUDE_FUZZ_EXAMPLES=300 $(BIN)/python -m pytest $(FUZZED) -o timeout=3600 -p no:cacheprovider
	@set -e; for proof in $(PROOFS); do echo "$$proof"; $(BIN)/python $$proof; done

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
