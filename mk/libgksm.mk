# libgksm.so: SONAME libcuda.so.1, NEEDED libc only.
GKSM_SRC := $(sort $(wildcard libgksm/src/*.c libgksm/src/*/*.c))
GKSM_OBJ := $(GKSM_SRC:libgksm/src/%.c=$(OUT)/libgksm/%.o)
GKSM_GEN := $(BUILD)/gen
GKSM_CFLAGS = $(CFLAGS_ALL) -D_GNU_SOURCE -Ilibgksm/include -Ilibgksm/src -I$(GKSM_GEN) -isystem $(CUDA_INCLUDE)

$(OUT)/libgksm/%.o: libgksm/src/%.c $(GKSM_GEN)/.done
	@mkdir -p $(@D)
	$(CC) $(GKSM_CFLAGS) -MMD -MP -c $< -o $@

$(OUT)/libgksm/exports.o: $(GKSM_GEN)/.done
	@mkdir -p $(@D)
	$(CC) -fPIC -c $(GKSM_GEN)/exports.S -o $@

$(OUT)/libgksm.so: $(GKSM_OBJ) $(OUT)/libgksm/exports.o
	$(CC) -shared $(SANITIZE) -Wl,-soname,libcuda.so.1 -Wl,-z,defs -Wl,-z,now -o $@ $^ $(GKSM_LIBS)

$(GKSM_GEN)/.done: $(wildcard libgksm/gen/*.py) $(BUILD)/cuda/.done
	@mkdir -p $(GKSM_GEN)
	$(PY) -m libgksm.gen --headers $(BUILD)/cuda --into $(GKSM_GEN)
	@touch $@

-include $(GKSM_OBJ:.o=.d)
