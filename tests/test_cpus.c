/* Processor limits (field case C1), on made-up trees of /proc and /sys below a temporary folder. */
#define _GNU_SOURCE 1
#include "pool/cpus.h"

#include <rankplan/machine.h>

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char root[64];

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/rankplan-cpus-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    return nftw(root, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* Writes root + path, making the folders on the way. */
static void put(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        mkdir(full, 0777);
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

#define OTHER_MOUNTS                                                                               \
    "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"                                      \
    "23 22 0:21 / /proc rw,nosuid shared:5 - proc proc rw\n"                                       \
    "24 22 0:22 / /dev rw\n"                                                                       \
    "\n"
#define MOUNT_V2 "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
#define MOUNT_V1                                                                                   \
    "40 22 0:30 / /sys/fs/cgroup/cpuset rw shared:10 - cgroup cgroup rw,cpuset\n"                  \
    "41 22 0:31 / /sys/fs/cgroup/cpu,cpuacct rw shared:11 - cgroup cgroup rw,cpu,cpuacct\n"

static void table_v2(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int cpus;
    } rows[] = {
        {"400000 100000\n", 4},
        {"150000 100000\n", 1},
        {"765000 100000\n", 7},
        {"max 100000\n", RP_CPU_UNLIMITED},
        {"50000 100000\n", 1},
        {"1000 1000000\n", 1},
        {"200000\n", 2},
        {"99999999999999 1\n", RP_CPU_UNLIMITED},
        {"0 100000\n", RP_CPU_UNLIMITED},
        {"400000 0\n", RP_CPU_UNLIMITED},
        {"-5 100000\n", RP_CPU_UNLIMITED},
        {"", RP_CPU_UNLIMITED},
        {"nonsense\n", RP_CPU_UNLIMITED},
    };
    put("/proc/self/cgroup", "0::/pod/app\n");
    put("/proc/self/mountinfo", OTHER_MOUNTS MOUNT_V2);
    assert_int_equal(rp_cpu_quota(root), RP_CPU_UNLIMITED);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        put("/sys/fs/cgroup/pod/app/cpu.max", rows[i].text);
        if (rp_cpu_quota(root) != rows[i].cpus)
            fail_msg("cpu.max \"%s\": %d, expected %d", rows[i].text, rp_cpu_quota(root),
                     rows[i].cpus);
    }
}

static void nested_v2(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/kube/pod/app\n");
    put("/proc/self/mountinfo", OTHER_MOUNTS MOUNT_V2);
    put("/sys/fs/cgroup/kube/pod/app/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/kube/pod/cpu.max", "300000 100000\n");
    put("/sys/fs/cgroup/kube/cpu.max", "800000 100000\n");
    put("/sys/fs/cgroup/kube/pod/other/cpu.max", "100000 100000\n");
    assert_int_equal(rp_cpu_quota(root), 3);
    put("/sys/fs/cgroup/kube/cpu.max", "200000 100000\n");
    assert_int_equal(rp_cpu_quota(root), 2);
    put("/sys/fs/cgroup/kube/pod/app/cpu.max", "100000 100000\n");
    assert_int_equal(rp_cpu_quota(root), 1);
}

/* In a namespace of its own a container sees itself as the root, with its limit at the mount. */
static void container_v2(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/\n");
    put("/proc/self/mountinfo", MOUNT_V2);
    put("/sys/fs/cgroup/cpu.max", "250000 100000\n");
    assert_int_equal(rp_cpu_quota(root), 2);
    /* Nothing above the mount point belongs to the hierarchy. */
    put("/sys/fs/cpu.max", "100000 100000\n");
    put("/cpu.max", "100000 100000\n");
    assert_int_equal(rp_cpu_quota(root), 2);
}

static void mount_below_the_root(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/docker/abc/worker\n");
    put("/proc/self/mountinfo", "30 22 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    put("/sys/fs/cgroup/cpu.max", "500000 100000\n");
    put("/sys/fs/cgroup/worker/cpu.max", "300000 100000\n");
    assert_int_equal(rp_cpu_quota(root), 3);
    /* A mount of some other group says nothing about this process. */
    put("/proc/self/mountinfo", "30 22 0:26 /docker/ab /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    assert_int_equal(rp_cpu_quota(root), RP_CPU_UNLIMITED);
    put("/proc/self/mountinfo", MOUNT_V2);
    put("/proc/self/cgroup", "0::/../elsewhere\n");
    assert_int_equal(rp_cpu_quota(root), RP_CPU_UNLIMITED);
}

static void version_1(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "5:cpuset:/\n4:cpu,cpuacct:/a:b/c\n1:name=systemd:/x\n");
    put("/proc/self/mountinfo", OTHER_MOUNTS MOUNT_V1);
    put("/sys/fs/cgroup/cpu,cpuacct/a:b/c/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a:b/c/cpu.cfs_quota_us", "-1\n");
    assert_int_equal(rp_cpu_quota(root), RP_CPU_UNLIMITED);
    put("/sys/fs/cgroup/cpu,cpuacct/a:b/c/cpu.cfs_quota_us", "350000\n");
    assert_int_equal(rp_cpu_quota(root), 3);
    put("/sys/fs/cgroup/cpu,cpuacct/a:b/cpu.cfs_quota_us", "200000\n");
    assert_int_equal(rp_cpu_quota(root), 3); /* no period: not a limit that can be read */
    put("/sys/fs/cgroup/cpu,cpuacct/a:b/cpu.cfs_period_us", "100000\n");
    assert_int_equal(rp_cpu_quota(root), 2);
}

/* Both versions mounted: the cpu controller is in one of them, and its limit counts. */
static void hybrid(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "4:cpu,cpuacct:/a\n0::/b\n");
    put("/proc/self/mountinfo",
        MOUNT_V1 "42 22 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "400000\n");
    assert_int_equal(rp_cpu_quota(root), 4);
    put("/sys/fs/cgroup/unified/b/cpu.max", "300000 100000\n");
    assert_int_equal(rp_cpu_quota(root), 3);
}

static void odd_files(void **state)
{
    (void)state;
    assert_int_equal(rp_cpu_quota(root), RP_CPU_UNLIMITED); /* no files at all */
    put("/proc/self/mountinfo",
        "30\n30 22 0:26 / /m\n- - - - - - -\n30 22 0:26 / /m rw - cgroup\n");
    put("/proc/self/cgroup", "0\n0:\n\n0::\n");
    assert_int_equal(rp_cpu_quota(root), RP_CPU_UNLIMITED);
    /* A mount point with a space in its name. */
    put("/proc/self/mountinfo", "30 22 0:26 / /my\\040groups rw - cgroup2 none rw\n");
    put("/proc/self/cgroup", "0::/a\n");
    put("/my groups/a/cpu.max", "200000 100000\n");
    assert_int_equal(rp_cpu_quota(root), 2);
    /* A path that fits nowhere. */
    char *line = malloc(3 * PATH_MAX);
    assert_non_null(line);
    memset(line, 'a', 3 * PATH_MAX);
    memcpy(line, "0::/", 4);
    line[3 * PATH_MAX - 1] = 0;
    put("/proc/self/cgroup", line);
    free(line);
    assert_int_equal(rp_cpu_quota(root), RP_CPU_UNLIMITED);
}

/* Affinity 2 of 8: the lesser of the two limits counts, whichever it is. */
static void affinity_and_quota(void **state)
{
    (void)state;
    struct rp_cpu_set set = {{0}};
    assert_int_equal(rp_cpu_limit(&set, root), 1);
    rp_cpu_set_add(&set, 3);
    rp_cpu_set_add(&set, 6);
    assert_int_equal(rp_cpu_limit(&set, root), 2);
    put("/proc/self/cgroup", "0::/app\n");
    put("/proc/self/mountinfo", MOUNT_V2);
    put("/sys/fs/cgroup/app/cpu.max", "max 100000\n");
    assert_int_equal(rp_cpu_limit(&set, root), 2);
    put("/sys/fs/cgroup/app/cpu.max", "765000 100000\n");
    assert_int_equal(rp_cpu_limit(&set, root), 2);
    put("/sys/fs/cgroup/app/cpu.max", "150000 100000\n");
    assert_int_equal(rp_cpu_limit(&set, root), 1);
}

static void sets(void **state)
{
    (void)state;
    struct rp_cpu_set set = {{0}};
    assert_int_equal(rp_cpu_set_count(&set), 0);
    rp_cpu_set_add(&set, 0);
    rp_cpu_set_add(&set, 63);
    rp_cpu_set_add(&set, 64);
    rp_cpu_set_add(&set, RP_CPU_MAX - 1);
    rp_cpu_set_add(&set, RP_CPU_MAX);
    rp_cpu_set_add(&set, -1);
    assert_int_equal(rp_cpu_set_count(&set), 4);
    assert_true(rp_cpu_set_has(&set, 64));
    assert_false(rp_cpu_set_has(&set, 65));
    assert_true(rp_cpu_set_has(&set, RP_CPU_MAX - 1));
    assert_false(rp_cpu_set_has(&set, RP_CPU_MAX));
    assert_false(rp_cpu_set_has(&set, -1));
}

static void put_siblings(int cpu, const char *list)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    put(path, list);
}

static void assert_order(const struct rp_cpu_set *set, int first, int n, const char *expected)
{
    int order[16];
    char text[128] = "";
    const int used = rp_cpu_order(set, first, root, order, n);
    for (int i = 0; i < used; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d", i ? " " : "", order[i]);
    assert_string_equal(text, expected);
}

static void cores_before_siblings(void **state)
{
    (void)state;
    struct rp_cpu_set set = {{0}};
    static const char *const adjacent[] = {"0-1", "2-3", "4-5", "6-7"};
    for (int cpu = 0; cpu < 8; cpu++) {
        put_siblings(cpu, adjacent[cpu / 2]);
        rp_cpu_set_add(&set, cpu);
    }
    assert_order(&set, 0, 4, "0 2 4 6");
    assert_order(&set, 3, 4, "3 0 4 6");
    assert_order(&set, 3, 7, "3 0 4 6 1 2 5");
    assert_order(&set, -1, 3, "0 2 4");
    assert_order(&set, 5, 8, "5 0 1 2 3 4 6 7");
    assert_order(&set, 5, 1, "5");
    assert_order(&set, 5, 0, "");

    /* Only what is in the set, whatever the siblings are; and no topology at all. */
    struct rp_cpu_set few = {{0}};
    rp_cpu_set_add(&few, 1);
    rp_cpu_set_add(&few, 6);
    rp_cpu_set_add(&few, 7);
    rp_cpu_set_add(&few, 9);
    assert_order(&few, 0, 3, "1 6 9");
    assert_order(&few, 0, 16, "1 6 7 9");
}

/* The affinity mask: what this process may use shrinks with it, and quotas cannot raise it. */
static void affinity(void **state)
{
    (void)state;
    struct rp_cpu_set before, now;
    rp_cpu_set_allowed(&before);
    const int n = rp_cpu_set_count(&before);
    const int quota = rp_cpu_quota("");
    assert_true(n >= 1);
    assert_int_equal(rp_cpu_count(), n < quota ? n : quota);
    int cpus[2];
    const int used = rp_cpu_order(&before, -1, root, cpus, 2);
    for (int i = 0; i < used; i++) {
        assert_true(rp_cpu_pin_self(cpus[i]));
        rp_cpu_set_allowed(&now);
        assert_int_equal(rp_cpu_set_count(&now), 1);
        assert_true(rp_cpu_set_has(&now, cpus[i]));
        assert_int_equal(rp_cpu_count(), 1);
        assert_int_equal(rp_cpu_current(), cpus[i]);
    }
    assert_false(rp_cpu_pin_self(RP_CPU_MAX - 1));
}

#define WITH_ROOT(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_ROOT(table_v2),     WITH_ROOT(nested_v2),
        WITH_ROOT(container_v2), WITH_ROOT(mount_below_the_root),
        WITH_ROOT(version_1),    WITH_ROOT(hybrid),
        WITH_ROOT(odd_files),    WITH_ROOT(affinity_and_quota),
        cmocka_unit_test(sets),  WITH_ROOT(cores_before_siblings),
        WITH_ROOT(affinity), /* last: it leaves the process on one processor */
    };
    return cmocka_run_group_tests_name("cpus", tests, NULL, NULL);
}
