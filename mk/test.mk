# What is tested, and how. The sanitizers build into folders of their own.
WORKER_SRC := $(wildcard tests/sim/workers/*.c)
# Not git's list: a source archive has no .git.
C_FILES := $(sort $(shell find libgksm simcuda tests -name '*.[ch]'))
WORKERS := $(WORKER_SRC:tests/sim/workers/%.c=$(OUT)/workers/%)

.PHONY: test check workers sanitized test-asan test-tsan soak
# Most tests wait for other processes: more of them at once than there are cores.
TEST_JOBS ?= $(shell echo $$(( $$(nproc) + 2 )))

test: preflight all workers check
	$(PY) -m pytest -q -n $(TEST_JOBS) --dist worksteal $(ARGS)

check: $(VENV)/.done
	$(Q)$(VENV)/bin/ruff check -q .
	$(Q)$(VENV)/bin/ruff format -q --check .
	$(Q)$(VENV)/bin/mypy daemon bench mk libgksm simcuda
	$(Q)$(VENV)/bin/clang-format --dry-run --Werror $(C_FILES)

# Small CUDA programs in C, for what Python cannot do and for the sanitizers.
workers: $(WORKERS)
$(OUT)/workers/%: tests/sim/workers/%.c tests/sim/workers/worker.h $(OUT)/simcuda/libcuda.so.1
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_ALL) -isystem $(CUDA_INCLUDE) -o $@ $< -L$(OUT)/simcuda -l:libcuda.so.1

sanitized: all workers
	GKSM_BUILD=$(OUT) $(PY) -m pytest -q tests/sim/test_workers.py tests/sim/test_simcuda_facts.py $(ARGS)

test-asan: preflight
	$(MAKE) FLAVOUR=asan SANITIZE="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer" sanitized

test-tsan: preflight
	$(MAKE) FLAVOUR=tsan SANITIZE="-fsanitize=thread" sanitized

soak: preflight all
	@$(PY) -m gksm_bench.soak --build $(OUT) $(ARGS)
