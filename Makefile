# From a fresh machine to a trained model: `make train`. All that is installed goes into .venv.

.DEFAULT_GOAL := help
.PHONY: train test test-cluster test-trackers chaos lint format constraints clean help FORCE

PYTHON ?=
comma := ,
NEEDED := 3.11
NEWEST_FIRST := python3.13 python3.12 python3.11

# What the model that is trained is asked.
BLANKS := 'Return a [MASK] of strings.' 'Return the [MASK] of the file.' 'Return True if the object is [MASK] instance.'

# Settings of other projects that would make pip install something else, or somewhere else. Where packages come from
# (PIP_INDEX_URL, PIP_FIND_LINKS, PIP_CERT, ...) stays the user's business.
unexport PYTHONHOME PYTHONPATH VIRTUAL_ENV PIP_CONSTRAINT PIP_REQUIREMENT PIP_EDITABLE PIP_TARGET PIP_PREFIX PIP_ROOT \
	PIP_PYTHON PIP_NO_DEPS PIP_NO_BUILD_ISOLATION PIP_REQUIRE_HASHES PIP_DRY_RUN
export PIP_USER := 0
export PIP_NO_INPUT := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

train: .venv/train  ## Train a small BERT on text that every machine has (sets up .venv the first time)
	@echo "Training: trellis train --experiment=bert/local --model_dir=runs/bert_local"
	@.venv/bin/trellis train --experiment=bert/local --model_dir=runs/bert_local
	@echo; echo "Filling in blanks: trellis predict --model_dir=runs/bert_local"
	@printf '%s\n' $(BLANKS) | .venv/bin/trellis predict --model_dir=runs/bert_local

# Several files at a time, but each in one process: what a file has compiled, it has compiled once.
test: lint  ## Check the code and run all tests
	@echo "Testing: pytest"
	@.venv/bin/python -m pytest -q -n logical --maxprocesses 8 --dist loadfile

# SLURM comes from the system: on Debian, apt-get install slurmctld slurmd slurm-client munge
test-cluster: .venv/test  ## Run the tests that need Ray and SLURM (a few minutes)
	$(call install,.[dev$(comma)ray])
	@TRELLIS_CLUSTER_TESTS=1 .venv/bin/python -m pytest -q -m cluster -rs

# In an environment of their own, without our pins: trackio does not work with the newest Pillow.
test-trackers: .venv/test  ## Run the tests that need Weights & Biases, MLflow and trackio (a minute)
	@[ -x build/trackers/bin/python ] || .venv/bin/python -m venv build/trackers
	@build/trackers/bin/python -m pip install --quiet --editable '.[mlflow,trackio,wandb]' pytest
	@build/trackers/bin/python -m pytest -q -rs tests/extensions/test_tracking_services.py

# For example: make chaos CHAOS='--size=0.1 --seed=3'
chaos: .venv/test  ## Kill runs, cut their power, damage their files, feed them nonsense (an hour or two)
	@.venv/bin/python -m benchmarks.chaos $(CHAOS)

lint: .venv/test  ## Check style, types and the direction of imports
	@echo "Linting: ruff, mypy, import-linter"
	@.venv/bin/ruff check --quiet
	@.venv/bin/ruff format --check --quiet
	@.venv/bin/mypy --no-error-summary
	@.venv/bin/lint-imports > .venv/imports.log || { cat .venv/imports.log; exit 1; }

format: .venv/test  ## Format the code and sort imports
	@.venv/bin/ruff check --quiet --fix --exit-zero
	@.venv/bin/ruff format --quiet

constraints:  ## Pin the newest versions of all packages (needs Python 3.11 and 3.12)
	@mkdir -p build
	$(call freeze,python3.11,build/old)
	$(call freeze,python3.12,build/new)
	@export LC_ALL=C; { sed '/^[^#]/,$$d' constraints.txt; \
	   { comm -12 build/old build/new; \
	     comm -23 build/old build/new | sed 's/$$/ ; python_version < "3.12"/'; \
	     comm -13 build/old build/new | sed 's/$$/ ; python_version >= "3.12"/'; } | sort -f; } > build/constraints.txt
	@mv build/constraints.txt constraints.txt && rm -rf build

clean:  ## Remove .venv, caches and builds, but no trained models
	@rm -rf .venv build dist src/*.egg-info .pytest_cache .ruff_cache .mypy_cache .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## Show this list
	@sed -n 's/^\([a-z]*\):.*  ## /\1|/p' Makefile | while IFS='|' read -r name text; do \
	   printf '  make %-12s %s\n' "$$name" "$$text"; done

# Stamps: made (there is a working .venv), train (the library is installed), test (and what its tests need).
.venv/train: .venv/made pyproject.toml constraints.txt
	$(call install,.[nlp])
	@touch $@

.venv/test: .venv/made pyproject.toml constraints.txt
	$(call install,.[dev])
	@touch .venv/train $@

# Made anew if it was left half made, was copied from elsewhere, lost its Python or has another one than is asked for.
works := $(shell [ -x .venv/bin/python ] && [ ! -e .venv/unfinished ] && grep -qsxF "$(CURDIR)" .venv/made \
	$(if $(PYTHON),&& grep -qsxF "$(PYTHON)" .venv/made) && echo yes)
.venv/made: $(if $(works),,FORCE)
	@python="$(PYTHON)"; \
	new_enough() { "$$1" -c 'import sys; sys.exit(sys.version_info < tuple(map(int, "$(NEEDED)".split("."))))' 2>/dev/null; }; \
	for candidate in python3 $(NEWEST_FIRST); do \
	   [ -n "$$python" ] || { new_enough $$candidate && python=$$candidate; }; \
	done; \
	python="$${python:-python3}"; \
	if ! new_enough "$$python"; then \
	   found="$$("$$python" --version 2>&1)" && is="is $$found" || is="was not found"; \
	   echo "Trellis needs Python $(NEEDED) or newer, and $$python $$is." \
	        "Name one: make $(firstword $(MAKECMDGOALS)) PYTHON=python3.12" >&2; exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	   echo "$$python cannot make a virtual environment. On Debian and Ubuntu: sudo apt install $${python##*/}-venv" >&2; exit 1; \
	fi; \
	echo "Setting up .venv (once, about a minute) ..."; \
	"$$python" -m venv --clear .venv && printf '%s\n' "$(CURDIR)" "$$python" > $@

# $(call install,what): quiet unless it fails. What is left half installed cannot be told from the rest, so a set-up
# that was cut short is done again from nothing.
define install
	@[ ! -e .venv/train ] || echo "Installing what is new into .venv ..."
	@touch .venv/unfinished
	@.venv/bin/python -m pip install --quiet --editable '$(1)' --constraint constraints.txt > .venv/pip.log 2>&1 \
	   || { cat .venv/pip.log >&2; echo "Setting up failed: see above, then run the same command again." >&2; exit 1; }
	@rm .venv/unfinished
endef

# $(call freeze,python,file): the versions that a fresh installation gets.
define freeze
	@$(1) -m venv --clear build/venv && build/venv/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager --editable '.[dev]'
	@build/venv/bin/python -m pip freeze --all --exclude-editable --exclude pip --exclude trellis-jax | LC_ALL=C sort > $(2)
endef
