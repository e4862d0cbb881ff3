# make quickstart   from text to an evaluated retriever, on two CPU cores
# make adapt        the same without questions: from the texts of docs to a retriever
# make test         all tests            (PYTEST_ARGS="tests/unit/losses -x" for some)
# make numerics     gradients, losses, vectors and exact search with torch's kernels for the oldest processors; a minute
# make fuzz         10,000 damaged files, 1,000 examples of every property of a format; make test has a part of them
# make faults       kills, full disks, lost ranks, ...: all trials, counted into benchmarks/results/faults.md; 100 minutes
# make docs         every command of README.md and docs/*.md, in the order of its page; twelve minutes
# make site         the site of README, docs and benchmarks/results, with a reference of Python and the commands, in site/; a minute
# make check        lint, format, types
# make check-fast   lint, format and the tests of a second or less, for a change in hand: under five minutes
# make bench        speed against plain loops, sentence-transformers and faiss; half an hour
# make compare-peers whole trainings beside sentence-transformers: speed, memory, quality; SQuAD is in DATA; half an hour
# make memory       memory of the jobs that meet the largest files
#
# make test has one worker per core; WORKERS=0 runs the tests in one process, for -s and --pdb.
# TORCH_INDEX=https://download.pytorch.org/whl/cpu installs the small CPU build of torch; by default pip chooses.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= logical
DATA ?= data/collections
EXTRAS ?= dev
SITE_VENV ?= .venv-site
BIN := $(abspath $(VENV))/bin
# The quickstart needs less than the tests.
INSTALLED := $(VENV)/.installed
DEVELOPMENT := $(VENV)/.installed-dev

.PHONY: help install quickstart adapt test numerics faults fuzz docs site check check-fast bench compare-peers memory gpu format clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

install: $(DEVELOPMENT)

# torch alone at first: its own index need not have the exact versions of what it depends on, which come next.
$(INSTALLED): setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --constraint constraints.txt \
		$(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable .
	touch $@

$(DEVELOPMENT): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[$(EXTRAS)]"
	touch $@

quickstart: $(INSTALLED)
	PATH="$(BIN):$$PATH" $(BIN)/python -m examples.quickstart

adapt: $(INSTALLED)
	$(BIN)/dpr prepare docs out=runs/adapt/texts overwrite=true
	$(BIN)/dpr adapt runs/adapt/texts/corpus.jsonl out=runs/adapt/run

test: $(DEVELOPMENT)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --timeout 900 $(PYTEST_ARGS)

numerics: $(DEVELOPMENT)
	ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --timeout 900 \
		tests/invariants/test_one_gradient.py tests/invariants/test_fast_paths.py tests/unit/losses tests/unit/models/fast \
		tests/unit/indexer/test_exact.py $(PYTEST_ARGS)

fuzz: $(DEVELOPMENT)
	DPR_FUZZ_CASES=10000 $(BIN)/python -m pytest tests/fuzz tests/security tests/unit/formats tests/unit/data/test_joining.py \
		tests/unit/benchmarks \
		tests/unit/export/test_onnx.py $(PYTEST_ARGS)

faults: $(DEVELOPMENT)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/faults --all-faults --fault-table benchmarks/results/faults.md $(PYTEST_ARGS)

docs: $(DEVELOPMENT)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/cli/test_docs_run.py --all-docs $(PYTEST_ARGS)

# An environment of its own: the sources are read and not imported, so torch is not needed.
$(SITE_VENV)/.installed: website/requirements.txt
	$(PYTHON) -m venv $(SITE_VENV)
	$(SITE_VENV)/bin/python -m pip install --quiet --no-compile --requirement website/requirements.txt
	touch $@

site: $(SITE_VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(SITE_VENV)/bin/mkdocs build --strict
	$(SITE_VENV)/bin/python website/check_links.py site

check: $(DEVELOPMENT)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check-fast: $(DEVELOPMENT)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --fast -n $(WORKERS) --dist loadfile --timeout 300 $(PYTEST_ARGS)

bench: $(DEVELOPMENT)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,bench]"
	$(BIN)/python -m benchmarks --out benchmarks/results/benchmarks.md

compare-peers: $(DEVELOPMENT)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,bench]"
	$(BIN)/python -m benchmarks.compare_peers --data $(DATA) --out runs/compare_peers

memory: $(DEVELOPMENT)
	$(BIN)/python -m benchmarks.memory --out benchmarks/results/memory.md

gpu: $(DEVELOPMENT)
	$(BIN)/python -m benchmarks.gpu --out benchmarks/results/gpu

format: $(DEVELOPMENT)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(SITE_VENV) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
