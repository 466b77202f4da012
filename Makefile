# The commands of the house. Continuous integration (.ci/run) installs, runs pytest and calls `make lint`.
PYTHON ?= python3

.PHONY: native test lint clean

native:  ## install the project in place, its kernels built anew where csrc/ has changed
	@$(PYTHON) -m pip install -q "scikit-build-core>=0.10" "nanobind>=2.4" cmake ninja
	@$(PYTHON) -m pip install -q --no-build-isolation --no-deps -C build-dir=build/native -e .

test: native
	$(PYTHON) -m pytest

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

clean:
	rm -rf build
