/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "vram.h"

#define SIM_SHARED_READY 0x53494d31u
#define SIM_SHARED_VERSION 3
#define VRAM_DEFAULT ((uint64_t)8 << 30)
/* Offsets in `state` of the bytes that are locked; they need not exist. */
#define BYTE_SETUP ((off_t)1 << 40)
#define BYTE_SLOT(slot) (((off_t)1 << 40) + 64 + (slot))

static int lock_byte(int fd, off_t byte, short type, int command)
{
	struct flock lock = {
		.l_type = type,
		.l_whence = SEEK_SET,
		.l_start = byte,
		.l_len = 1,
	};

	while (fcntl(fd, command, &lock))
		if (errno != EINTR)
			return -errno;
	return 0;
}

/* true: some other open file description has the slot's byte. */
static bool slot_alive(struct sim_device *device, int slot)
{
	struct flock lock = {
		.l_type = F_WRLCK,
		.l_whence = SEEK_SET,
		.l_start = BYTE_SLOT(slot),
		.l_len = 1,
	};

	if (slot == device->slot)
		return true;
	return fcntl(device->slot_fd, F_OFD_GETLK, &lock) || lock.l_type != F_UNLCK;
}

static int shared_create(struct sim_shared *shared)
{
	pthread_mutexattr_t attributes;

	if (getrandom(shared->uuid, sizeof(shared->uuid), 0) != sizeof(shared->uuid))
		return -EIO;
	shared->uuid[6] = (shared->uuid[6] & 0x0f) | 0x40;
	shared->uuid[8] = (shared->uuid[8] & 0x3f) | 0x80;
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&shared->lock, &attributes);
	pthread_mutexattr_destroy(&attributes);
	shared->version = SIM_SHARED_VERSION;
	atomic_store(&shared->ready, SIM_SHARED_READY);
	return 0;
}

/* Only while the setup byte is locked: makes the file what it must be, once. */
static int shared_map(struct sim_device *device, int fd)
{
	struct sim_shared *shared;
	struct stat status;

	if (fstat(fd, &status))
		return -errno;
	if ((uint64_t)status.st_size < sizeof(*shared)) {
		/* Real blocks, not a sparse file: a full disk must not become SIGBUS. */
		int error = posix_fallocate(fd, 0, sizeof(*shared));

		if (error)
			return -error;
	}
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (shared == MAP_FAILED)
		return -errno;
	if (atomic_load(&shared->ready) != SIM_SHARED_READY) {
		int error = shared_create(shared);

		if (error)
			return error;
	}
	if (shared->version != SIM_SHARED_VERSION)
		return -EPROTO;
	device->shared = shared;
	return 0;
}

static int slot_take(struct sim_device *device)
{
	for (int slot = 0; slot < SIM_SLOTS; slot++) {
		if (lock_byte(device->slot_fd, BYTE_SLOT(slot), F_WRLCK, F_OFD_SETLK))
			continue;
		device->slot = slot;
		atomic_fetch_and(&device->shared->held_slots[slot / 64],
				 ~((uint64_t)1 << slot % 64));
		return 0;
	}
	return -EUSERS;
}

/*
 * A device has one size for all processes: the first one's. It can be changed while
 * nobody uses it and nothing is allocated.
 */
static void size_settle(struct sim_device *device)
{
	struct sim_shared *shared = device->shared;
	uint64_t total = atomic_load(&shared->total_bytes);
	uint64_t wanted = sim_root.config.vram;
	bool alone = true;

	for (int slot = 0; slot < SIM_SLOTS && alone; slot++)
		alone = slot == device->slot || !slot_alive(device, slot);
	device->total_bytes = total;
	device->page_count = (unsigned)(total / SIM_PAGE);
	if (!total || (alone && wanted && wanted != total && !sim_vram_used(device))) {
		total = wanted ? wanted : VRAM_DEFAULT;
		atomic_store(&shared->total_bytes, total);
		device->total_bytes = total;
		device->page_count = (unsigned)(total / SIM_PAGE);
	}
}

static int state_open(struct sim_device *device)
{
	int fd = openat(device->dir_fd, "state", O_RDWR | O_CREAT | O_CLOEXEC, 0666);

	if (fd >= 0)
		(void)fchmod(fd, 0666); /* any user may use the device, as with a real one */
	return fd < 0 ? -errno : fd;
}

static int attach(struct sim_device *device)
{
	char name[16];
	int setup, error;

	snprintf(name, sizeof(name), "dev%d", device->ordinal);
	int root = open(sim_root.config.dir, O_DIRECTORY | O_RDONLY | O_CLOEXEC);

	if (root < 0)
		return -errno;
	if (!mkdirat(root, name, 0777))
		(void)fchmodat(root, name, 0777, 0);
	device->dir_fd = openat(root, name, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
	error = device->dir_fd < 0 ? -errno : 0;
	close(root);
	if (error)
		return error;

	setup = state_open(device);
	if (setup < 0)
		return setup;
	error = lock_byte(setup, BYTE_SETUP, F_WRLCK, F_OFD_SETLKW);
	if (!error) {
		device->slot_fd = state_open(device);
		error = device->slot_fd < 0 ? device->slot_fd : 0;
	}
	if (!error)
		error = shared_map(device, setup);
	if (!error)
		error = slot_take(device);
	if (!error) {
		/* The table must hold every bank a changed size could ask for. */
		error = sim_vram_attach(device);
		if (!error)
			size_settle(device);
	}
	/* Closing alone would leave the lock with a child forked meanwhile. */
	(void)lock_byte(setup, BYTE_SETUP, F_UNLCK, F_OFD_SETLK);
	close(setup);
	return error;
}

CUresult sim_device_attach(struct sim_device *device, int ordinal)
{
	device->ordinal = ordinal;
	device->dir_fd = device->slot_fd = -1;
	pthread_mutex_init(&device->vram_lock, NULL);
	if (attach(device))
		return CUDA_ERROR_NO_DEVICE;
	memcpy(device->uuid.bytes, device->shared->uuid, sizeof(device->uuid.bytes));
	return CUDA_SUCCESS;
}

void sim_shared_lock(struct sim_device *device)
{
	/* A dead owner leaves nothing half done that matters: hints are only hints. */
	if (pthread_mutex_lock(&device->shared->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&device->shared->lock);
}

void sim_shared_unlock(struct sim_device *device)
{
	pthread_mutex_unlock(&device->shared->lock);
}

void sim_device_forked(struct sim_device *device)
{
	/* The child shares the description: were it left open, the parent's slot would
	 * stay alive after the parent's death, and with it the parent's holds. */
	close(device->slot_fd);
	device->slot_fd = -1;
}

static void released(struct sim_device *device)
{
	atomic_fetch_add(&device->shared->held_change, 1);
	syscall(SYS_futex, &device->shared->held_change, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void sim_device_set_held(struct sim_device *device, uint64_t until_ns)
{
	_Atomic uint64_t *word = &device->shared->held_slots[device->slot / 64];
	uint64_t bit = (uint64_t)1 << device->slot % 64;

	atomic_store(&device->shared->held_until[device->slot], until_ns);
	if (until_ns) {
		atomic_fetch_or(word, bit);
		return;
	}
	atomic_fetch_and(word, ~bit);
	released(device);
}

bool sim_device_held(struct sim_device *device)
{
	for (int index = 0; index < SIM_SLOTS / 64; index++) {
		_Atomic uint64_t *word = &device->shared->held_slots[index];
		uint64_t bits = atomic_load(word);

		while (bits) {
			int bit = __builtin_ctzll(bits);
			int slot = index * 64 + bit;

			if (slot_alive(device, slot)) {
				if (sim_now_ns() < atomic_load(&device->shared->held_until[slot]))
					return true;
				bits &= bits - 1;
				continue;
			}
			/* The owner was killed. Should a new process have taken the slot
			 * in between, it looks alive and is not reached here. */
			atomic_fetch_and(word, ~((uint64_t)1 << bit));
			released(device);
			bits &= bits - 1;
		}
	}
	return false;
}

void sim_device_wait_released(struct sim_device *device, uint32_t seen)
{
	/* Bounded: the death of a holder wakes nobody. */
	struct timespec limit = {.tv_nsec = 2000000};

	syscall(SYS_futex, &device->shared->held_change, FUTEX_WAIT, seen, &limit, NULL, 0);
}
