# SPDX-License-Identifier: Apache-2.0
#
# make demo          four processes load one real model into one copy
# make test          everything that needs no root, no GPU and no sanitizer
# make test-asan     the C code under AddressSanitizer and UBSan
# make test-tsan     the C code under ThreadSanitizer
# make soak          kill -9 of random processes, 200 times
#
# Everything is made below build/. The Python environment is made there too, from
# the package index, or from a folder of wheels with WHEELHOUSE=dir.

PYTHON ?= python3
BUILD ?= build
VENV := $(BUILD)/venv
PY := $(VENV)/bin/python
CC ?= gcc
ARGS ?=
# As many jobs as there are cores.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
endif
# make V=1 shows the commands
Q := $(if $(V),,@)

WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes
CFLAGS_ALL := -std=gnu11 -O2 -g -fPIC -fvisibility=hidden -pthread $(WARNINGS) $(SANITIZE) $(CFLAGS)
CUDA_INCLUDE = $(BUILD)/cuda/13/include
OUT := $(BUILD)/$(or $(FLAVOUR),release)

include mk/setup.mk
include mk/libgksm.mk
include mk/simcuda.mk
include mk/test.mk

.PHONY: all demo
all: $(OUT)/libgksm.so $(OUT)/simcuda/libcuda.so.1

demo: preflight all
	@$(PY) -m gksm_bench.demo --build $(OUT) $(ARGS)
.DEFAULT_GOAL := all
