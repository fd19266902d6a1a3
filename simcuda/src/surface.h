/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the generated files (simcuda/gen) and the sources share. cuda.h is not
 * included: the generated fallbacks define its names with another prototype.
 */
#ifndef SIM_SURFACE_H
#define SIM_SURFACE_H

struct CUstream_st;

/* One answer of cuGetProcAddress. Sorted by symbol, version, per_thread. */
struct sim_lookup {
	const char *symbol;
	int version;	/* the CUDA version that introduced this ABI version */
	int per_thread; /* a _ptsz or _ptds variant */
	void *address;
};

struct sim_error {
	int code;
	const char *name;
	const char *text;
};

extern const struct sim_lookup sim_lookups[];
extern const unsigned int sim_lookup_count;
extern const struct sim_error sim_errors[];
extern const unsigned int sim_error_count;

/* What an entry point without an implementation answers, as a CUresult. */
int sim_missing(void);

/* The stream that a _ptsz variant works on when its caller names @stream. */
struct CUstream_st *sim_own_stream(struct CUstream_st *stream);

/*
 * Above zero while this thread is inside a generated _ptds variant: copies and
 * sets without a stream argument then use the thread's own stream.
 */
extern _Thread_local int sim_per_thread_calls;

#endif
