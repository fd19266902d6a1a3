# The facts of simcuda, in C: tests/sim/test_simcuda_facts.py runs them. Built with
# the same sanitizer as the library.
SIM_TEST_SRC := $(filter-out simcuda/tests/harness.c,$(wildcard simcuda/tests/*.c))
SIM_TESTS := $(SIM_TEST_SRC:simcuda/tests/%.c=$(OUT)/simcuda/tests/%)

$(OUT)/simcuda/tests/%: simcuda/tests/%.c simcuda/tests/harness.c simcuda/tests/harness.h simcuda/tests/guarding.h $(OUT)/simcuda/libcuda.so.1
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_ALL) -D_GNU_SOURCE -Isimcuda/include -Ilibgksm/include -isystem $(CUDA_INCLUDE) \
		-o $@ $< simcuda/tests/harness.c -L$(OUT)/simcuda -l:libcuda.so.1 -pthread

workers: $(SIM_TESTS)
