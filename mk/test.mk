# What is tested, and how. The sanitizers build into folders of their own.
WORKER_SRC := $(wildcard tests/sim/workers/*.c)
WORKERS := $(WORKER_SRC:tests/sim/workers/%.c=$(OUT)/workers/%)

.PHONY: test check workers sanitized test-asan test-tsan soak
test: preflight all workers check
	$(PY) -m pytest -q $(ARGS)

check: $(VENV)/.done
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy daemon bench mk
	$(VENV)/bin/clang-format --dry-run --Werror $$(git ls-files '*.c' '*.h')

# Small CUDA programs in C, for what Python cannot do and for the sanitizers.
workers: $(WORKERS)
$(OUT)/workers/%: tests/sim/workers/%.c tests/sim/workers/worker.h $(OUT)/simcuda/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -isystem $(CUDA_INCLUDE) -o $@ $< -L$(OUT)/simcuda -l:libcuda.so.1

sanitized: all workers
	GKSM_BUILD=$(OUT) $(PY) -m pytest -q tests/sim/test_workers.py $(ARGS)

test-asan: preflight
	$(MAKE) FLAVOUR=asan SANITIZE="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer" sanitized

test-tsan: preflight
	$(MAKE) FLAVOUR=tsan SANITIZE="-fsanitize=thread" sanitized

soak: preflight all
	@$(PY) -m gksm_bench.soak --build $(OUT) $(ARGS)
