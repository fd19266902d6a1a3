/* SPDX-License-Identifier: Apache-2.0 */
#include "vram.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device.h"

#define BANK_BYTES ((off_t)SIM_BANK_PAGES * (off_t)SIM_PAGE)
#define BANKS_MAX (SIM_PAGES_MAX / SIM_BANK_PAGES)

static unsigned bank_count(const struct sim_device *device)
{
	return (device->page_count + SIM_BANK_PAGES - 1) / SIM_BANK_PAGES;
}

static int bank_open(struct sim_device *device, unsigned bank)
{
	char name[24];
	struct stat status;
	int fd;

	snprintf(name, sizeof(name), "bank%u", bank);
	fd = openat(device->dir_fd, name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0)
		return -errno;
	if (!fstat(fd, &status) && status.st_size < BANK_BYTES) {
		(void)fchmod(fd, 0666);
		if (ftruncate(fd, BANK_BYTES)) {
			int error = -errno;

			close(fd);
			return error;
		}
	}
	return fd;
}

/* The bank's descriptor for asking and punching; it never holds a lock, so every lock
 * there is conflicts with it. vram_lock held. */
static int bank_probe(struct sim_device *device, unsigned bank)
{
	if (device->bank_fds[bank] < 0)
		device->bank_fds[bank] = bank_open(device, bank);
	return device->bank_fds[bank];
}

/* One bit for each page of the bank that somebody has locked. */
static int bank_locked(struct sim_device *device, unsigned bank, uint64_t *locked)
{
	int fd = bank_probe(device, bank);
	uint64_t known = 0;

	*locked = 0;
	if (fd < 0)
		return fd;
	for (unsigned page = 0; page < SIM_BANK_PAGES; page++) {
		/* The first question is about the whole rest: most banks are empty. */
		unsigned span = known ? 1 : SIM_BANK_PAGES - page;
		struct flock lock = {
			.l_type = F_WRLCK,
			.l_whence = SEEK_SET,
			.l_start = (off_t)page * (off_t)SIM_PAGE,
			.l_len = (off_t)span * (off_t)SIM_PAGE,
		};

		if (known >> page & 1)
			continue;
		if (fcntl(fd, F_OFD_GETLK, &lock))
			return -errno;
		if (lock.l_type == F_UNLCK) {
			if (span > 1)
				break;
			continue;
		}
		unsigned first = (unsigned)(lock.l_start / (off_t)SIM_PAGE);
		unsigned pages = lock.l_len ? (unsigned)(lock.l_len / (off_t)SIM_PAGE)
					    : SIM_BANK_PAGES - first;

		for (unsigned i = first; i < first + pages && i < SIM_BANK_PAGES; i++)
			known |= (uint64_t)1 << i;
		/* The lock reported need not be the lowest: look at this page again. */
		if (!(known >> page & 1))
			page--;
	}
	*locked = known;
	return 0;
}

static void punch(int fd, off_t offset, off_t bytes)
{
	/* Where holes are unknown the storage just stays allocated. */
	(void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
}

/* Brings the bank's hint up to date; pages whose last user died or was no CUDA process
 * (the vault) are noticed here. Both locks held. Returns how many are in use. */
static unsigned bank_settle(struct sim_device *device, unsigned bank)
{
	uint64_t *hint = &device->shared->used_hint[bank];
	uint64_t locked, freed;

	if (!*hint)
		return 0;
	if (bank_locked(device, bank, &locked))
		return (unsigned)__builtin_popcountll(*hint);
	freed = *hint & ~locked;
	*hint = locked;
	while (freed) {
		int page = __builtin_ctzll(freed);

		punch(bank_probe(device, bank), (off_t)page * (off_t)SIM_PAGE, (off_t)SIM_PAGE);
		freed &= freed - 1;
	}
	return (unsigned)__builtin_popcountll(locked);
}

static unsigned settle(struct sim_device *device)
{
	unsigned used = 0;

	for (unsigned bank = 0; bank < bank_count(device); bank++)
		used += bank_settle(device, bank);
	return used;
}

uint64_t sim_vram_used(struct sim_device *device)
{
	unsigned used;

	pthread_mutex_lock(&device->vram_lock);
	sim_shared_lock(device);
	used = settle(device);
	sim_shared_unlock(device);
	pthread_mutex_unlock(&device->vram_lock);
	return (uint64_t)used * SIM_PAGE;
}

int sim_vram_attach(struct sim_device *device)
{
	device->bank_fds = malloc(BANKS_MAX * sizeof(*device->bank_fds));
	if (!device->bank_fds)
		return -ENOMEM;
	for (unsigned bank = 0; bank < BANKS_MAX; bank++)
		device->bank_fds[bank] = -1;
	return 0;
}

static int extent_open(struct sim_extent *extent)
{
	struct flock lock = {
		.l_type = F_RDLCK,
		.l_whence = SEEK_SET,
		.l_start = sim_extent_offset(extent),
		.l_len = (off_t)sim_extent_bytes(extent),
	};
	off_t position =
		(off_t)extent->first % SIM_BANK_PAGES * (off_t)SIM_PAGE + extent->pages - 1;
	int fd = bank_open(extent->device, extent->first / SIM_BANK_PAGES);

	if (fd < 0)
		return fd;
	if (fcntl(fd, F_OFD_SETLK, &lock) || lseek(fd, position, SEEK_SET) < 0) {
		int error = -errno;

		close(fd);
		return error;
	}
	extent->fd = fd;
	return 0;
}

/* Zeroes, and makes the host promise the storage: what is mapped later can be touched
 * without SIGBUS. The pages are locked, so this needs no other lock. */
static int extent_fill(const struct sim_extent *extent)
{
	static const char zeroes[64 << 10];
	off_t offset = sim_extent_offset(extent);
	off_t bytes = (off_t)sim_extent_bytes(extent);

	if (!fallocate(extent->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes)) {
		if (!fallocate(extent->fd, 0, offset, bytes))
			return 0;
		if (errno != EOPNOTSUPP)
			return -errno;
	}
	for (off_t done = 0; done < bytes;) {
		ssize_t written = pwrite(extent->fd, zeroes, sizeof(zeroes), offset + done);

		if (written <= 0)
			return written ? -errno : -EIO;
		done += written;
	}
	return 0;
}

/* The longest free run of the bank at or after a page, at most `limit` long. */
static unsigned run_find(uint64_t used, unsigned from, unsigned end, unsigned limit,
			 unsigned *length)
{
	unsigned first = from;

	while (first < end && used >> first & 1)
		first++;
	*length = 0;
	while (first + *length < end && *length < limit && !(used >> (first + *length) & 1))
		(*length)++;
	return first;
}

static int extent_claim(struct sim_extent *extent)
{
	struct sim_shared *shared = extent->device->shared;
	unsigned bank = extent->first / SIM_BANK_PAGES;
	/* Opened now, so that the pages can be counted when descriptors have run out. */
	int error = bank_probe(extent->device, bank);

	if (error < 0)
		return error;
	/* The hint first: a page must never be locked and look free. */
	for (unsigned i = 0; i < extent->pages; i++) {
		shared->used_hint[bank] |= (uint64_t)1 << (extent->first + i) % SIM_BANK_PAGES;
		shared->generation[extent->first + i]++;
	}
	error = extent_open(extent);
	if (error)
		bank_settle(extent->device, bank);
	return error;
}

/* Both locks held. Fills extents with claimed runs; returns how many or an error, with
 * *count telling what was claimed before it. */
static int claim_runs(struct sim_device *device, unsigned pages, bool contiguous,
		      struct sim_extent *extents, unsigned *count)
{
	struct sim_shared *shared = device->shared;

	for (unsigned bank = 0; bank < bank_count(device) && pages; bank++) {
		unsigned end = device->page_count - bank * SIM_BANK_PAGES;
		unsigned from = 0;

		if (end > SIM_BANK_PAGES)
			end = SIM_BANK_PAGES;
		while (from < end && pages) {
			unsigned length;
			unsigned first =
				run_find(shared->used_hint[bank], from, end, pages, &length);
			struct sim_extent *extent = &extents[*count];
			int error;

			from = first + length;
			if (!length)
				break;
			if (contiguous && length < pages)
				continue;
			*extent = (struct sim_extent){
				.device = device,
				.fd = -1,
				.first = bank * SIM_BANK_PAGES + first,
				.pages = length,
			};
			error = extent_claim(extent);
			if (error)
				return error;
			(*count)++;
			pages -= length;
		}
	}
	return pages ? -ENOMEM : 0;
}

static unsigned hinted_free(struct sim_device *device)
{
	unsigned used = 0;

	for (unsigned bank = 0; bank < bank_count(device); bank++)
		used += (unsigned)__builtin_popcountll(device->shared->used_hint[bank]);
	return device->page_count - used;
}

static void extents_abandon(struct sim_extent *extents, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		close(extents[i].fd);
		extents[i].fd = -1;
		sim_vram_dropped(&extents[i]);
	}
}

int sim_vram_take(struct sim_device *device, unsigned pages, bool contiguous,
		  struct sim_extent **extents, unsigned *count)
{
	struct sim_extent *taken;
	unsigned done = 0;
	int error;

	if (!pages || (contiguous && pages > SIM_BANK_PAGES))
		return -EINVAL;
	if (pages > device->page_count)
		return -ENOMEM;
	taken = calloc(pages, sizeof(*taken));
	if (!taken)
		return -ENOMEM;

	pthread_mutex_lock(&device->vram_lock);
	sim_shared_lock(device);
	error = -ENOMEM;
	if (hinted_free(device) >= pages)
		error = claim_runs(device, pages, contiguous, taken, &done);
	if (error == -ENOMEM && !done && device->page_count - settle(device) >= pages)
		error = claim_runs(device, pages, contiguous, taken, &done);
	sim_shared_unlock(device);
	pthread_mutex_unlock(&device->vram_lock);

	for (unsigned i = 0; i < done && !error; i++)
		error = extent_fill(&taken[i]);
	if (error) {
		extents_abandon(taken, done);
		free(taken);
		return error == -ENOSPC || error == -EDQUOT ? -ENOMEM : error;
	}
	*extents = taken;
	*count = done;
	return 0;
}

void sim_vram_dropped(const struct sim_extent *extent)
{
	struct sim_device *device = extent->device;

	pthread_mutex_lock(&device->vram_lock);
	sim_shared_lock(device);
	bank_settle(device, extent->first / SIM_BANK_PAGES);
	sim_shared_unlock(device);
	pthread_mutex_unlock(&device->vram_lock);
}

uint32_t sim_vram_generation(const struct sim_extent *extent)
{
	struct sim_device *device = extent->device;
	uint32_t sum = 0;

	pthread_mutex_lock(&device->vram_lock);
	sim_shared_lock(device);
	for (unsigned i = 0; i < extent->pages; i++)
		sum += device->shared->generation[extent->first + i];
	sim_shared_unlock(device);
	pthread_mutex_unlock(&device->vram_lock);
	return sum;
}

int sim_vram_join(struct sim_extent *extent, uint32_t generation)
{
	struct sim_device *device = extent->device;
	uint64_t locked;
	uint32_t sum = 0;
	int error;

	if (extent->first + extent->pages > device->page_count)
		return -ESTALE;
	pthread_mutex_lock(&device->vram_lock);
	sim_shared_lock(device);
	error = bank_locked(device, extent->first / SIM_BANK_PAGES, &locked);
	for (unsigned i = 0; i < extent->pages; i++) {
		sum += device->shared->generation[extent->first + i];
		if (!(locked >> (extent->first + i) % SIM_BANK_PAGES & 1))
			error = error ? error : -ESTALE;
	}
	if (!error && sum != generation)
		error = -ESTALE;
	if (!error)
		error = extent_open(extent);
	sim_shared_unlock(device);
	pthread_mutex_unlock(&device->vram_lock);
	return error;
}

/* Which bank the file is, by identity: paths differ between containers. */
static int bank_of(struct sim_device *device, const struct stat *file)
{
	for (unsigned bank = 0; bank < bank_count(device); bank++) {
		struct stat status;
		char name[24];

		snprintf(name, sizeof(name), "bank%u", bank);
		if (!fstatat(device->dir_fd, name, &status, 0) && status.st_ino == file->st_ino &&
		    status.st_dev == file->st_dev)
			return (int)bank;
	}
	return -1;
}

int sim_vram_identify(int fd, struct sim_extent *extent)
{
	off_t position = lseek(fd, 0, SEEK_CUR);
	struct stat status;

	if (position < 0 || position >= BANK_BYTES || fstat(fd, &status))
		return -EINVAL;
	for (int i = 0; i < sim_root.device_count; i++) {
		struct sim_device *device = &sim_root.devices[i];
		int bank = bank_of(device, &status);
		uint32_t page = (uint32_t)(position / (off_t)SIM_PAGE);

		if (bank < 0)
			continue;
		extent->device = device;
		extent->first = (uint32_t)bank * SIM_BANK_PAGES + page;
		extent->pages = (uint32_t)(position % (off_t)SIM_PAGE) + 1;
		if (page + extent->pages > SIM_BANK_PAGES)
			return -EINVAL;
		extent->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		return extent->fd < 0 ? -errno : 0;
	}
	return -EINVAL;
}
