# simcuda: a libcuda.so.1 without a GPU.
SIM_SRC := $(sort $(wildcard simcuda/src/*.c simcuda/src/*/*.c))
SIM_OBJ := $(SIM_SRC:simcuda/src/%.c=$(OUT)/simcuda/obj/%.o)
SIM_CFLAGS = $(CFLAGS_ALL) -D_GNU_SOURCE -Ilibgksm/include -Isimcuda/include -Isimcuda/src -I$(GKSM_GEN) -isystem $(CUDA_INCLUDE)

$(OUT)/simcuda/obj/%.o: simcuda/src/%.c $(GKSM_GEN)/.done
	@mkdir -p $(@D)
	$(CC) $(SIM_CFLAGS) -MMD -MP -c $< -o $@

$(OUT)/simcuda/libcuda.so.1: $(SIM_OBJ)
	$(CC) -shared $(SANITIZE) -Wl,-soname,libcuda.so.1 -Wl,-z,defs -o $@ $^ -lm -pthread

-include $(SIM_OBJ:.o=.d)
