# The commands of the house; continuous integration runs these and nothing else.
PYTHON ?= python3
BUILD := build/native

.PHONY: native test lint clean

native:  ## build octavo/_native*.so in place
	@mkdir -p build
	@cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$$($(PYTHON) -c 'import sys; print(sys.executable)')" \
		-DCMAKE_LIBRARY_OUTPUT_DIRECTORY="$(CURDIR)/octavo" >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }
	@cmake --build $(BUILD) -j 2

test: native
	$(PYTHON) -m pytest

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

clean:
	rm -rf build octavo/_native*.so
