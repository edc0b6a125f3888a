/* Which processors this process may use, and how much of them.
 *
 * Two things limit it.  The affinity mask (taskset, cpusets) says where threads may run.  A CPU
 * quota of the cgroup, or of any of its ancestors, says how much time they get together: a group
 * with "150000 100000" runs for 1.5 processors' worth, on however many processors it sees.  More
 * threads than that are stopped in mid-barrier for the rest of the period, which is how a pool
 * sized by the host's cores becomes tens of times slower than a single thread.
 *
 * Every path is read below `root`, "" for the machine itself; tests give a folder of their own.
 */
#ifndef RP_POOL_CPUS_H
#define RP_POOL_CPUS_H

#include <limits.h>
#include <stdbool.h>

#define RP_CPU_MAX       8192 /* as many as a Linux kernel can be built for */
#define RP_CPU_UNLIMITED INT_MAX

#define RP_CPU_WORD_BITS (8 * (int)sizeof(unsigned long))

struct rp_cpu_set {
    unsigned long bits[RP_CPU_MAX / (8 * sizeof(unsigned long))];
};

bool rp_cpu_set_has(const struct rp_cpu_set *set, int cpu);
void rp_cpu_set_add(struct rp_cpu_set *set, int cpu);
int rp_cpu_set_count(const struct rp_cpu_set *set);

/* The processors on which the calling thread may run. */
void rp_cpu_set_allowed(struct rp_cpu_set *out);

/* Whole processors that the cgroup quotas leave, rounded down, at least 1; RP_CPU_UNLIMITED when
 * there is no quota, or none that can be read. */
int rp_cpu_quota(const char *root);

/* What rp_cpu_count answers for a set: its size or the quota, whichever is less, at least 1. */
int rp_cpu_limit(const struct rp_cpu_set *allowed, const char *root);

/* The order in which to use up to n processors of the set: `first` (when in the set) at the head,
 * then one of every other core, then the cores' second threads.  Returns how many were written. */
int rp_cpu_order(const struct rp_cpu_set *set, int first, const char *root, int *out, int n);

/* Keeps the calling thread on one processor; false when the system refuses. */
bool rp_cpu_pin_self(int cpu);

/* Where the calling thread is at the moment; -1 when that is not known. */
int rp_cpu_current(void);

#endif
