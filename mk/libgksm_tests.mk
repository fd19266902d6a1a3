# Programs that test parts of libgksm without CUDA, and one that measures. pytest runs them;
# it makes those it misses.
GKSM_TEST_NAMES := hash_pages hash_speed link_client link_fuzz
GKSM_TESTS := $(GKSM_TEST_NAMES:%=$(OUT)/tests/%)
GKSM_TEST_HASH := $(addprefix $(OUT)/libgksm/,hash.o hash_scalar.o hash_avx2.o hash_avx512.o pool.o)
GKSM_TEST_LINK := $(addprefix $(OUT)/libgksm/,$(patsubst libgksm/src/%.c,%.o,$(wildcard libgksm/src/link*.c)) packet.o)
GKSM_TEST_BASE := $(addprefix $(OUT)/libgksm/,sync.o thread.o fork.o libc_symbols.o)

.PHONY: libgksm-tests libgksm-sanitized
libgksm-tests: $(GKSM_TESTS)

# Part of test-asan and test-tsan.
sanitized: libgksm-sanitized
libgksm-sanitized: libgksm-tests
	GKSM_BUILD=$(OUT) $(PY) -m pytest -q tests/unit/test_libgksm_hash.py tests/unit/test_libgksm_link.py tests/unit/test_libgksm_link_hostile.py
test: libgksm-tests

$(OUT)/tests/%.o: libgksm/tests/%.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_ALL) -D_GNU_SOURCE -Ilibgksm/include -iquote libgksm/src -MMD -MP -c $< -o $@

$(OUT)/tests/hash_pages $(OUT)/tests/hash_speed: $(OUT)/tests/%: $(OUT)/tests/%.o $(GKSM_TEST_HASH) $(GKSM_TEST_BASE)
	$(Q)$(CC) $(SANITIZE) -pthread -o $@ $^ -ldl

$(OUT)/tests/link_client: $(OUT)/tests/link_client_requests.o
$(OUT)/tests/link_client $(OUT)/tests/link_fuzz: $(OUT)/tests/%: $(OUT)/tests/%.o $(GKSM_TEST_LINK) $(GKSM_TEST_BASE)
	$(Q)$(CC) $(SANITIZE) -pthread -o $@ $^ -ldl

-include $(GKSM_TESTS:%=%.d) $(OUT)/tests/link_client_requests.d
