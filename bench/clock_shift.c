/* A wall clock that jumps: seconds from the file CLOCK_SHIFT_FILE are added to what the system says.
 *
 * For LD_PRELOAD. Monotonic clocks, sleeps and timers are left alone, as they are when a machine's clock is set. Who
 * waits until a time of the wall clock has that time brought back to the system's: a wait until what the system takes
 * for yesterday would end at once, again and again, and Ray's servers would take all cores. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static long shift_s(void) {
    static volatile long value, looked_s = -1;
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    if (now.tv_sec != looked_s) { /* once a second */
        looked_s = now.tv_sec;
        const char *path = getenv("CLOCK_SHIFT_FILE");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        if (file >= 0) {
            char text[32] = {0};
            if (read(file, text, sizeof text - 1) > 0) value = atol(text);
            close(file);
        }
    }
    return value;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = syscall(SYS_clock_gettime, clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += shift_s();
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

/* A deadline as the system has it. Times of a monotonic clock are seconds since the start, far below. */
static const struct timespec *own(const struct timespec *at, struct timespec *room) {
    if (!at || at->tv_sec < 1000000000) return at;
    *room = *at;
    room->tv_sec -= shift_s();
    return room;
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *at) {
    struct timespec room;
    return NEXT(pthread_cond_timedwait)(cond, mutex, own(at, &room));
}

int pthread_mutex_timedlock(pthread_mutex_t *mutex, const struct timespec *at) {
    struct timespec room;
    return NEXT(pthread_mutex_timedlock)(mutex, own(at, &room));
}

int sem_timedwait(sem_t *semaphore, const struct timespec *at) {
    struct timespec room;
    return NEXT(sem_timedwait)(semaphore, own(at, &room));
}

/* gRPC, and with it Ray, waits by the system call itself. */
long syscall(long number, ...) {
    struct timespec room;
    long given[6];
    va_list rest;
    va_start(rest, number);
    for (int at = 0; at < 6; at++) given[at] = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_futex && (given[1] & FUTEX_CLOCK_REALTIME))
        given[3] = (long)own((const struct timespec *)given[3], &room);
    return NEXT(syscall)(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
