/* The one clock: monotonic, read without a system call where the machine can. */
#include <rankplan/machine.h>

#include <time.h>

uint64_t rp_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
