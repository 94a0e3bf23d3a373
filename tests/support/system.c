// For a process that loads this before libc. While the file LEASEHOLD_TEST_NO_THREADS exists, the system refuses it threads. And `getppid`
// forks it, because a test has no other way to do that without unsafe code. The child ends with its parent.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

pid_t getppid(void) {
    pid_t child = fork();
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return child;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *with, void *(*run)(void *), void *of) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
    const char *refused = getenv("LEASEHOLD_TEST_NO_THREADS");
    return refused && access(refused, F_OK) == 0 ? EAGAIN : real(thread, with, run, of);
}
