/* Measures how fast this processor's time stamp counter runs: an emulated processor's ticks are the host's, and a guest
 * that believed in another frequency would live in a faster or slower time. Prints kilohertz. */
#include "guest.h"

#include <time.h>

enum { MEASURE_NS = 50000000 };

#ifdef __x86_64__
#include <x86intrin.h>

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

int ticks(void) {
    int64_t began = now_ns(), passed;
    uint64_t first = __rdtsc();
    while ((passed = now_ns() - began) < MEASURE_NS)
        ;
    printf("%llu\n", (unsigned long long)((__rdtsc() - first) * 1000000.0 / passed));
    return 0;
}
#else
int ticks(void) {
    return 2;
}
#endif
