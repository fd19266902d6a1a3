# simcuda: a libcuda.so.1 without a GPU. Its export surface is generated from the
# CUDA headers: what the sources do not define answers "not supported".
SIM_GEN := $(BUILD)/gen/simcuda
SIM_GEN_SRC := $(addprefix $(SIM_GEN)/,fallbacks.c per_thread.c lookups.c errors.c)
SIM_SRC := $(sort $(wildcard simcuda/src/*.c simcuda/src/*/*.c))
SIM_OBJ := $(SIM_SRC:simcuda/src/%.c=$(OUT)/simcuda/obj/%.o) $(SIM_GEN_SRC:$(SIM_GEN)/%.c=$(OUT)/simcuda/obj/gen/%.o)
# INTERNAL: cuda.h then declares old ABI versions and per-thread variants too.
SIM_CFLAGS = $(CFLAGS_ALL) -D_GNU_SOURCE -D__CUDA_API_VERSION_INTERNAL -D__CUDA_API_PUSH_VISIBILITY_DEFAULT \
	-Ilibgksm/include -Isimcuda/include -Isimcuda/src -isystem $(CUDA_INCLUDE)

$(OUT)/simcuda/obj/%.o: simcuda/src/%.c $(BUILD)/cuda/.done
	@mkdir -p $(@D)
	$(Q)$(CC) $(SIM_CFLAGS) -MMD -MP -c $< -o $@

$(OUT)/simcuda/obj/gen/%.o: $(SIM_GEN)/.done simcuda/src/surface.h
	@mkdir -p $(@D)
	$(Q)$(CC) $(SIM_CFLAGS) -Wno-missing-prototypes -c $(SIM_GEN)/$*.c -o $@

# -Bsymbolic: its calls of its own entry points must not land in a preloaded libgksm.
$(OUT)/simcuda/libcuda.so.1: $(SIM_OBJ)
	$(Q)$(CC) -shared $(SANITIZE) -Wl,-soname,libcuda.so.1 -Wl,-z,defs -Wl,-Bsymbolic -o $@ $^ -lm -pthread

$(SIM_GEN)/.done: $(wildcard simcuda/gen/*.py) $(BUILD)/cuda/.done
	$(PY) -m simcuda.gen --headers $(BUILD)/cuda --into $(SIM_GEN) --cc '$(firstword $(CC))'
	@touch $@

-include $(filter-out $(OUT)/simcuda/obj/gen/%,$(SIM_OBJ:.o=.d))

include mk/simcuda_tests.mk
