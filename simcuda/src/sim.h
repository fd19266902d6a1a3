/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda's inside: what its files know of each other. Everything hangs off one
 * struct sim.
 *
 * An entry point starts with sim_current() (or sim_stream_get(), which does the
 * same and resolves the stream) and returns what that returned unless it is
 * CUDA_SUCCESS: not initialised, forked child, no context, destroyed context, dead
 * context (its sticky error).
 *
 * Work is a struct sim_op, embedded in a struct of the caller's with the payload,
 * handed to sim_enqueue(). Ops of a stream run one after another on the stream's
 * own thread, without any lock held. An op that returns an error kills its context.
 *
 * Simulated kernels, copies and sets touch device memory only inside
 * sim_touch(), through sim_at(), by plain loads and stores of code that takes no
 * lock and calls nothing of libc: a touch may fault, and may then end in a
 * siglongjmp out of it.
 *
 * Lock order (take downwards, never upwards):
 *
 *   context->serial      calls that sit behind the context's work (cuMemFree, ...)
 *   root->contexts_lock  contexts, primary contexts, current-context bookkeeping
 *   root->memory_lock    VA space, page table, handles, allocations, host ranges
 *   device->vram_lock    in this process; then
 *   shared->lock         robust, between processes: allocation of banks and slots
 *   root->queue_lock     streams, queues, events, fences
 *   guard->lock          one guard's holds
 *
 * Locks of modules, graphs and captures come before memory_lock and queue_lock and
 * are never held when calling sim_enqueue's op functions.
 * Nothing sleeps on work while it holds memory_lock or any lock below it.
 */
#ifndef SIM_H
#define SIM_H

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include <cuda.h>

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SIM_API __attribute__((visibility("default")))

#define SIM_PAGE ((size_t)2 << 20)
#define SIM_PAGE_SHIFT 21
#define SIM_BANK_PAGES 64u
#define SIM_DEVICES_MAX 16
/* One step of a simulated kernel between two looks at the gate. */
#define SIM_STEP ((size_t)64 << 10)

enum sim_claim { SIM_CLAIM_NONE, SIM_CLAIM_MPS, SIM_CLAIM_MIG };

/* What becomes of memory that is asked for with gpuDirectRDMACapable. */
enum sim_rdma {
	SIM_RDMA_NONE, /* refused: the devices do not offer it */
	SIM_RDMA_OFFERED,
	SIM_RDMA_UNMAPPABLE /* offered, created, and refused when it is given rights */
};

/* Read from the environment once, by sim_start(). */
struct sim_config {
	char dir[3072]; /* SIMCUDA_DIR */
	int devices;
	uint64_t vram; /* bytes of each device; 0: as recorded, else the default */
	bool guard;
	uint64_t seed;
	enum sim_claim claim;
	enum sim_rdma rdma;
};

struct sim_shared; /* device.h: state shared by the processes that use a device */
struct sim_guard;
struct sim_context;
struct sim_stream;
struct sim_event;
struct sim_op;

struct sim_device {
	int ordinal; /* == CUdevice */
	CUuuid uuid; /* stable for the device's folder */
	uint64_t total_bytes;
	int dir_fd;
	struct sim_shared *shared;
	pthread_mutex_t vram_lock;
	int slot;      /* of this process in shared */
	int slot_fd;   /* its description holds the lock on the slot's byte */
	int *bank_fds; /* opened when first needed; hold no locks */
	unsigned page_count;
	_Atomic(struct sim_guard *) guard;
	struct sim_context *primary; /* contexts_lock */
	unsigned primary_users;
	unsigned primary_flags;
};

struct sim_va;	  /* va.h: address space and page table */
struct sim_host;  /* host.h: ranges of host memory the driver knows */
struct sim_pools; /* pool.c */

struct sim {
	_Atomic bool started; /* false again in a forked child */
	_Atomic bool forked;
	struct sim_config config;
	int device_count;
	struct sim_device devices[SIM_DEVICES_MAX];
	pthread_mutex_t contexts_lock;
	/* Every one ever made, never freed: handles stay readable, without a lock. */
	_Atomic(struct sim_context *) contexts;
	pthread_mutex_t memory_lock;
	struct sim_va *va;
	struct sim_host *host;
	struct sim_pools *pools;
	pthread_mutex_t queue_lock;
	pthread_cond_t progress; /* broadcast whenever an op ended or a context died */
	_Atomic uint64_t random;
	_Atomic uint64_t next_id; /* stream, context and buffer ids: never reused */
};

extern struct sim sim_root;

/*
 * cuInit's hook: reads the environment, attaches the devices, reserves addresses,
 * installs the fault handler, raises the soft limit on descriptors. May be called
 * again (then returns at once). CUDA_ERROR_NO_DEVICE: SIMCUDA_DIR is not set or
 * cannot be used; CUDA_ERROR_NOT_INITIALIZED in a forked child.
 */
CUresult sim_start(void);

/* CUDA_SUCCESS, or CUDA_ERROR_NOT_INITIALIZED. */
CUresult sim_ready(void);

/* NULL: no such device. Call after sim_ready(). */
struct sim_device *sim_device(CUdevice ordinal);

uint64_t sim_random(void);
uint64_t sim_now_ns(void);
uint64_t sim_next_id(void);

/* ---- contexts -------------------------------------------------------------- */

#define SIM_CONTEXT_MAGIC 0x53434f4eu

struct sim_context {
	uint32_t magic;
	struct sim_device *device;
	_Atomic uint64_t id;
	unsigned flags;
	bool primary;
	_Atomic bool destroyed;
	_Atomic int error; /* sticky CUresult; 0: healthy */
	pthread_mutex_t serial;
	struct sim_context *next;    /* root->contexts */
	struct sim_mapping *heap;    /* memory_lock: its pages of small allocations */
	struct sim_stream *streams;  /* queue_lock */
	struct sim_event *events;    /* queue_lock */
	struct sim_stream *legacy;   /* the NULL stream; made with the context */
	int stream_threads;	     /* queue_lock: threads not yet ended */
	size_t limits[CU_LIMIT_MAX]; /* cuCtxGetLimit, cuCtxSetLimit */
	CUfunc_cache cache_config;
	_Atomic uint64_t users; /* cuCtxAttach */
	void *surface;		/* modules and the like; NULL at first */
};

/* Called by context.c when a context is destroyed or reset, after its work has
 * ended and before its memory goes (modules, graphs). */
void sim_surface_context_gone(struct sim_context *context);

/* The calling thread's current context, healthy. */
CUresult sim_current(struct sim_context **context);
/* The same, but a dead context is no error (destroy, pop, get device, ...). */
CUresult sim_current_any(struct sim_context **context);
/* From a handle; NULL means the current one. INVALID_CONTEXT when it is none. */
CUresult sim_context_get(CUcontext handle, struct sim_context **context);
/* First error wins. Ops still queued are dropped. Any thread, no lock held. */
void sim_context_kill(struct sim_context *context, CUresult error);
/* The sticky error, or CUDA_SUCCESS. */
CUresult sim_context_error(struct sim_context *context);
/* Waits for all its work, returns the sticky error if it died. */
CUresult sim_context_wait(struct sim_context *context);
/* The same behind context->serial: while it waits, copy calls of other threads in
 * this context block too (as measured for cuMemFree, cuMemFreeHost,
 * cuModuleLoadData, cuCtxSetLimit). */
CUresult sim_context_quiesce(struct sim_context *context);
/* Some stream of the context is capturing (queue_lock not held). */
bool sim_context_capturing(struct sim_context *context);

/* ---- streams and ops ------------------------------------------------------- */

#define SIM_STREAM_MAGIC 0x5353544du
#define SIM_EVENT_MAGIC 0x53455654u

/* One recorded point in a stream. Done once. */
struct sim_fence {
	int users; /* queue_lock, as the rest */
	bool done;
	uint64_t done_ns; /* CLOCK_MONOTONIC */
};

#define SIM_OP_ALWAYS 1u /* runs also when the context is dead (events, callbacks) */
/* Short and without need of an SM: with nothing before it it runs at once, on the thread
 * that enqueues it. Saves two changes of thread, which count while a fault is held. */
#define SIM_OP_INLINE 2u

struct sim_op {
	/* On the stream's thread, no locks held. Not CUDA_SUCCESS: kills the context. */
	CUresult (*run)(struct sim_op *op);
	/* Frees what embeds the op. Called exactly once, after run or instead of it. */
	void (*release)(struct sim_op *op);
	unsigned flags;		   /* SIM_OP_* */
	struct sim_stream *stream; /* set by sim_enqueue */
	/* stream.c's own: */
	struct sim_op *next;
	struct sim_dependency *dependencies;
	uint64_t sequence;
};

struct sim_stream {
	uint32_t magic;
	struct sim_context *context;
	uint64_t id;
	unsigned flags; /* CU_STREAM_NON_BLOCKING */
	int priority;
	bool legacy;
	bool per_thread;
	int users; /* queue_lock, as the rest: the handle, the thread, dependencies */
	bool closing;
	bool has_thread;
	struct sim_op *first, *last;
	uint64_t enqueued; /* sequence of the last op ever enqueued */
	uint64_t completed;
	pthread_cond_t arrival;
	struct sim_stream *next; /* context->streams */
	CUstreamAttrValue attributes[CU_LAUNCH_ATTRIBUTE_MAX];
	void *capture; /* non-NULL while capturing; written under queue_lock */
};

struct sim_event {
	uint32_t magic;
	struct sim_context *context;
	unsigned flags;
	struct sim_fence *fence; /* queue_lock: the last record; NULL: never recorded */
	struct sim_event *next;	 /* queue_lock: context->events, or spare ones */
	void *capture_node;	 /* set when recorded in a capturing stream */
};

/*
 * Resolves a stream handle in the current context. per_thread: the entry point is
 * a _ptsz/_ptds one, so NULL means the calling thread's own stream. Checks as
 * sim_current() does (for the stream's own context).
 */
CUresult sim_stream_get(CUstream handle, bool per_thread, struct sim_stream **stream);

/*
 * Appends the op. Takes ownership: release is called also when this fails (a dead
 * or destroyed context). Never blocks on work. Capture must have been handled by
 * the caller (stream->capture).
 */
CUresult sim_enqueue(struct sim_stream *stream, struct sim_op *op);
/* The same, and the op starts only after the fence is done. */
CUresult sim_enqueue_after(struct sim_stream *stream, struct sim_op *op, struct sim_fence *fence);
/* Waits until all that was enqueued in the stream so far has ended; for the NULL
 * stream, in the blocking streams too. Returns the sticky error, or CUDA_SUCCESS. */
CUresult sim_stream_wait(struct sim_stream *stream);
/* CUDA_SUCCESS, CUDA_ERROR_NOT_READY, or the sticky error. */
CUresult sim_stream_query(struct sim_stream *stream);

/* ---- memory ---------------------------------------------------------------- */

/* Device addresses lie in [sim_va_base, sim_va_end); host code cannot read there.
 * Their memory is reached sim_va_distance further. */
extern uintptr_t sim_va_base, sim_va_end;
extern ptrdiff_t sim_va_distance;

/* Where loads and stores reach the address: pinned and managed host memory has its
 * own address. Only to be used inside sim_touch(). */
static inline void *sim_at(CUdeviceptr address)
{
	if (address >= sim_va_base && address < sim_va_end)
		return (void *)((uintptr_t)address + (uintptr_t)sim_va_distance);
	return (void *)(uintptr_t)address;
}

enum sim_touch_kind {
	SIM_TOUCH_KERNEL, /* faults may be held by a guard */
	SIM_TOUCH_COPY	  /* a copy engine: faults are fatal */
};

/*
 * Runs body(argument) as device work of the context. CUDA_SUCCESS, or the error
 * that the context is to die of: CUDA_ERROR_ILLEGAL_ADDRESS after a fault that
 * nobody mended, CUDA_ERROR_LAUNCH_FAILED when the context was killed or destroyed
 * meanwhile. body must hold no lock and own nothing that would leak when it does
 * not come back.
 */
CUresult sim_touch(struct sim_context *context, enum sim_touch_kind kind,
		   void (*body)(void *argument), void *argument);

/*
 * Inside sim_touch, at least once for each SIM_STEP bytes: waits while any process
 * holds a fault on the device; leaves body (siglongjmp) when the context is being
 * torn down. Kernels, sets and device-to-device copies call it; copies that cross
 * PCIe do not.
 */
void sim_sm_gate(void);

/* For copies, sets and kernels: no libc, no instrumentation, restartable after a
 * fault. No gate inside. */
void sim_bytes_copy(void *to, const void *from, size_t bytes);
void sim_bytes_set(void *to, const void *pattern, size_t width, size_t count);

/* What a span of addresses is, at the moment of asking. */
enum sim_access { SIM_ACCESS_NONE, SIM_ACCESS_READ, SIM_ACCESS_READ_WRITE };

/* The weakest access over the whole span; host and managed memory is READ_WRITE,
 * unknown host addresses too when `host` (UVA: any host memory). */
enum sim_access sim_span_access(CUdeviceptr address, size_t bytes, bool host);

/* Plain device memory, as cuMemAlloc hands it out (also module globals). */
CUresult sim_memory_alloc(struct sim_context *context, size_t bytes, CUdeviceptr *address);
/* Does not wait for anybody. CUDA_ERROR_INVALID_VALUE: no such allocation. */
CUresult sim_memory_free(struct sim_context *context, CUdeviceptr address);

/* true: pinned or managed memory that the driver knows, all of the span. */
bool sim_host_known(const void *address, size_t bytes);

/* ---- copies and sets: the same for calls, captures and graph nodes ---------- */

/* A copy is always three-dimensional (CUDA_MEMCPY3D_PEER holds every other kind;
 * contexts in it are ignored). Height and Depth are 1 for plain ones. UNIFIED
 * memory types are resolved by sim_copy_enqueue. */
struct sim_copy {
	CUDA_MEMCPY3D_PEER shape;
	bool graph; /* a node: accessibility is found out when it runs, LAUNCH_FAILED */
};

struct sim_set {
	CUdeviceptr address;
	size_t pitch; /* bytes; used when height > 1 */
	unsigned value;
	unsigned element; /* 1, 2 or 4 bytes */
	size_t width;	  /* elements */
	size_t height;
	bool graph;
};

/* array.c: where an array's texels lie: rows of pitch bytes, slices of height rows.
 * false: no such array. */
bool sim_array_layout(CUarray array, CUdeviceptr *base, size_t *pitch, size_t *height);

/* The checks that a call makes at once. */
CUresult sim_copy_check(const struct sim_copy *copy);
CUresult sim_set_check(const struct sim_set *set);
/* Enqueue without checks; pageable sources are staged unless `graph`. wait: returns
 * when it is done. */
CUresult sim_copy_enqueue(struct sim_stream *stream, const struct sim_copy *copy, bool wait);
CUresult sim_set_enqueue(struct sim_stream *stream, const struct sim_set *set);

/* ---- capture.c and graph.c: called when stream->capture != NULL -------------- */

CUresult sim_capture_copy(struct sim_stream *stream, const struct sim_copy *copy);
CUresult sim_capture_set(struct sim_stream *stream, const struct sim_set *set);
CUresult sim_capture_host(struct sim_stream *stream, CUhostFn function, void *user_data);
CUresult sim_capture_record(struct sim_stream *stream, struct sim_event *event, unsigned flags);
/* An event that was recorded in a capturing stream; stream need not capture yet. */
CUresult sim_capture_wait(struct sim_stream *stream, struct sim_event *event, unsigned flags);
CUresult sim_capture_mem_ops(struct sim_stream *stream, const CUstreamBatchMemOpParams *ops,
			     unsigned count);
CUresult sim_capture_alloc(struct sim_stream *stream, size_t bytes, CUdeviceptr *address);
CUresult sim_capture_free(struct sim_stream *stream, CUdeviceptr address);
/* A call that must not be made on a capturing stream (query, synchronize, ...):
 * invalidates the capture and returns the error. */
CUresult sim_capture_refuse(struct sim_stream *stream);
/* A call that is unsafe while any capture of mode GLOBAL (or of this thread's mode)
 * is under way: CUDA_SUCCESS, or the error after invalidating. */
CUresult sim_capture_unsafe_call(struct sim_context *context);
/* The stream is destroyed while capturing. */
void sim_capture_stream_gone(struct sim_stream *stream);
/* The same for every stream of a context that ends. No locks held. */
void sim_capture_context_gone(struct sim_context *context);

/* What graph nodes enqueue when their graph is launched. */
CUresult sim_host_func_enqueue(struct sim_stream *stream, CUhostFn function, void *user_data);
CUresult sim_mem_ops_enqueue(struct sim_stream *stream, const CUstreamBatchMemOpParams *ops,
			     unsigned count);
CUresult sim_record_enqueue(struct sim_stream *stream, struct sim_event *event);
CUresult sim_wait_enqueue(struct sim_stream *stream, struct sim_event *event);

#endif
