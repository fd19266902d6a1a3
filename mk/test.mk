.PHONY: test check test-asan test-tsan soak
test: preflight all check
	$(PY) -m pytest -q $(ARGS)

check: $(VENV)/.done
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy daemon bench mk
	$(VENV)/bin/clang-format --dry-run --Werror $$(git ls-files '*.c' '*.h')
