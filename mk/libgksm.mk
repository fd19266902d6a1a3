# libgksm.so: SONAME libcuda.so.1, NEEDED libc only.
#
# -Bsymbolic: the library's references to its own cu* symbols are not for the dynamic linker to
# redirect. exports.S defines every cu* name weakly; a wrapper's definition takes its place.
GKSM_SRC := $(sort $(wildcard libgksm/src/*.c libgksm/src/*/*.c))
GKSM_OBJ := $(GKSM_SRC:libgksm/src/%.c=$(OUT)/libgksm/%.o)
GKSM_GEN := $(BUILD)/gen
# -iquote: <link.h> must stay the C library's.
# No fortified calls: they abort the application.
GKSM_CFLAGS = $(CFLAGS_ALL) -U_FORTIFY_SOURCE -D_GNU_SOURCE -Ilibgksm/include -iquote libgksm/src -I$(GKSM_GEN) -isystem $(CUDA_INCLUDE)

# libc only; a sanitizer brings libraries of its own.
GKSM_LDFLAGS = -Wl,-soname,libcuda.so.1 -Wl,-z,defs -Wl,-z,now -Wl,-z,noexecstack -Wl,-Bsymbolic
# Its threads outlive any dlclose.
GKSM_LDFLAGS += -Wl,-z,nodelete
GKSM_LDFLAGS += $(if $(SANITIZE),,-nodefaultlibs)
GKSM_LIBS = $(if $(SANITIZE),,-lc -lgcc)

# Order only: the generator leaves unchanged files alone, and .d files know who reads them.
$(OUT)/libgksm/%.o: libgksm/src/%.c | $(GKSM_GEN)/.done
	@mkdir -p $(@D)
	$(Q)$(CC) $(GKSM_CFLAGS) -MMD -MP -c $< -o $@

$(OUT)/libgksm/exports.o: $(GKSM_GEN)/exports.S
	@mkdir -p $(@D)
	$(Q)$(CC) -fPIC -c $< -o $@

$(GKSM_GEN)/exports.S $(GKSM_GEN)/gksm_entry_points.h: $(GKSM_GEN)/.done ;

$(OUT)/libgksm.so: $(GKSM_OBJ) $(OUT)/libgksm/exports.o
	$(Q)$(CC) -shared $(SANITIZE) $(GKSM_LDFLAGS) -o $@ $^ $(GKSM_LIBS)

$(GKSM_GEN)/.done: $(wildcard libgksm/gen/*.py) $(BUILD)/cuda/.done
	@mkdir -p $(GKSM_GEN)
	$(PY) -m libgksm.gen --headers $(BUILD)/cuda --into $(GKSM_GEN)
	@touch $@

-include $(GKSM_OBJ:.o=.d)

include mk/libgksm_tests.mk
