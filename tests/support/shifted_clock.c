// A wall clock that is wrong by the number of seconds in the file that LEASEHOLD_TEST_CLOCK names, for a process that loads this before
// libc. The file has one 64-bit number, which may change at any time. All other clocks go on as they are.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile int64_t *seconds;

__attribute__((constructor)) static void map(void) {
    const char *path = getenv("LEASEHOLD_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *seconds, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED)
        seconds = mapped;
}

static time_t shift(void) {
    return seconds ? *seconds : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += shift();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int result = real(now, zone);
    if (result == 0)
        now->tv_sec += shift();
    return result;
}

time_t time(time_t *copy) {
    time_t (*real)(time_t *) = dlsym(RTLD_NEXT, "time");
    time_t now = real(NULL) + shift();
    if (copy)
        *copy = now;
    return now;
}
