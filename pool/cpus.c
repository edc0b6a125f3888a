/* Affinity and cgroup quotas.
 *
 * A process finds its groups in /proc/self/cgroup (the path of its group in each hierarchy) and
 * the folder that shows them in /proc/self/mountinfo.  A mount can show a hierarchy from some
 * group downwards only (its "root", as in containers), so the group's folder is
 *
 *     mount point + (path of the group, less the mount's root)
 *
 * From there on upwards to the mount point every folder may hold a limit; the least one counts.
 * Version 2 has "cpu.max" ("max 100000" or "150000 100000"), version 1 "cpu.cfs_quota_us" (-1 for
 * none) and "cpu.cfs_period_us".  A system may mount both; each is looked at.
 */
#define _GNU_SOURCE 1
#include "pool/cpus.h"

#include <rankplan/machine.h>

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- sets ------------------------------------------------------------------------------------ */

bool rp_cpu_set_has(const struct rp_cpu_set *set, int cpu)
{
    return cpu >= 0 && cpu < RP_CPU_MAX &&
           (set->bits[cpu / RP_CPU_WORD_BITS] >> (cpu % RP_CPU_WORD_BITS) & 1);
}

void rp_cpu_set_add(struct rp_cpu_set *set, int cpu)
{
    if (cpu >= 0 && cpu < RP_CPU_MAX)
        set->bits[cpu / RP_CPU_WORD_BITS] |= 1ul << (cpu % RP_CPU_WORD_BITS);
}

int rp_cpu_set_count(const struct rp_cpu_set *set)
{
    int n = 0;
    for (int i = 0; i < RP_CPU_MAX / RP_CPU_WORD_BITS; i++)
        n += __builtin_popcountl(set->bits[i]);
    return n;
}

void rp_cpu_set_allowed(struct rp_cpu_set *out)
{
    memset(out, 0, sizeof *out);
    if (sched_getaffinity(0, sizeof *out, (cpu_set_t *)out) == 0 && rp_cpu_set_count(out) > 0)
        return;
    /* Sandboxes refuse the call; then the processors that are online are the best guess. */
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    memset(out, 0, sizeof *out);
    for (int i = 0; i < (online > 0 ? (int)online : 1) && i < RP_CPU_MAX; i++)
        rp_cpu_set_add(out, i);
}

bool rp_cpu_pin_self(int cpu)
{
    struct rp_cpu_set one;
    memset(&one, 0, sizeof one);
    rp_cpu_set_add(&one, cpu);
    return sched_setaffinity(0, sizeof one, (cpu_set_t *)&one) == 0;
}

int rp_cpu_current(void)
{
    return sched_getcpu();
}

/* ---- small files ----------------------------------------------------------------------------- */

/* The beginning of root + path as a string; false when it cannot be read. */
static bool read_text(const char *root, const char *path, char *text, size_t bytes)
{
    char full[PATH_MAX];
    if (snprintf(full, sizeof full, "%s%s", root, path) >= (int)sizeof full)
        return false;
    const int fd = open(full, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const ssize_t n = read(fd, text, bytes - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    return n > 0;
}

static FILE *open_lines(const char *root, const char *path)
{
    char full[PATH_MAX];
    if (snprintf(full, sizeof full, "%s%s", root, path) >= (int)sizeof full)
        return NULL;
    return fopen(full, "re");
}

/* ---- limits of one group --------------------------------------------------------------------- */

static int whole_cpus(long long quota, long long period)
{
    if (quota <= 0 || period <= 0)
        return RP_CPU_UNLIMITED;
    const long long cpus = quota / period;
    return cpus < 1 ? 1 : cpus > RP_CPU_UNLIMITED ? RP_CPU_UNLIMITED : (int)cpus;
}

static int limit_v2(const char *root, const char *folder)
{
    char path[PATH_MAX];
    char text[64];
    if (snprintf(path, sizeof path, "%s/cpu.max", folder) >= (int)sizeof path ||
        !read_text(root, path, text, sizeof text))
        return RP_CPU_UNLIMITED;
    char *end;
    const long long quota = strtoll(text, &end, 10);
    if (end == text) /* "max" */
        return RP_CPU_UNLIMITED;
    const char *rest = end;
    const long long period = strtoll(rest, &end, 10);
    return whole_cpus(quota, end == rest ? 100000 : period);
}

static bool read_number(const char *root, const char *folder, const char *name, long long *out)
{
    char path[PATH_MAX];
    char text[64];
    char *end;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path ||
        !read_text(root, path, text, sizeof text))
        return false;
    *out = strtoll(text, &end, 10);
    return end != text;
}

static int limit_v1(const char *root, const char *folder)
{
    long long quota, period;
    if (!read_number(root, folder, "cpu.cfs_quota_us", &quota) ||
        !read_number(root, folder, "cpu.cfs_period_us", &period))
        return RP_CPU_UNLIMITED;
    return whole_cpus(quota, period);
}

/* ---- from the process to its folders --------------------------------------------------------- */

/* Cuts the next item that ends in `stop` off *rest; NULL when none is left. */
static char *next_item(char **rest, char stop)
{
    char *item = *rest;
    if (!item || !*item)
        return NULL;
    char *end = strchr(item, stop);
    *rest = end ? end + 1 : NULL;
    if (end)
        *end = 0;
    return item;
}

static bool list_has(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = list; p; p = strchr(p, ',')) {
        p += *p == ',';
        if (strncmp(p, name, n) == 0 && (p[n] == 0 || p[n] == ','))
            return true;
    }
    return false;
}

/* The path of this process's group in the hierarchy of version 2 ("0::/a/b") or in that of the
 * cpu controller of version 1 ("4:cpu,cpuacct:/a/b"); false when there is none. */
static bool group_path(const char *root, bool v2, char *out, size_t bytes)
{
    FILE *file = open_lines(root, "/proc/self/cgroup");
    char *line = NULL;
    size_t room = 0;
    bool found = false;
    while (file && !found && getline(&line, &room, file) > 0) {
        char *rest = line;
        line[strcspn(line, "\n")] = 0;
        const char *hierarchy = next_item(&rest, ':');
        char *controllers = rest;
        char *path = rest ? strchr(rest, ':') : NULL;
        if (!hierarchy || !path)
            continue;
        *path++ = 0;
        found =
            (v2 ? strcmp(hierarchy, "0") == 0 && !*controllers : list_has(controllers, "cpu")) &&
            snprintf(out, bytes, "%s", path) < (int)bytes;
    }
    free(line);
    if (file)
        fclose(file);
    return found;
}

/* mountinfo writes space, tab, newline and backslash as \ and three octal digits. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from;) {
        unsigned code;
        if (from[0] == '\\' && strspn(from + 1, "01234567") >= 3) {
            code = (unsigned)(from[1] - '0') * 64 + (unsigned)(from[2] - '0') * 8 +
                   (unsigned)(from[3] - '0');
            *to++ = (char)code;
            from += 4;
        } else {
            *to++ = *from++;
        }
    }
    *to = 0;
}

struct mount {
    char *shown; /* the group that the mount point shows */
    char *point;
    bool v2;
};

/* "36 35 98:0 /shown /point options [tags...] - cgroup2 source super-options" */
static bool parse_mount(char *line, struct mount *out)
{
    char *rest = line;
    const char *item = NULL;
    line[strcspn(line, "\n")] = 0;
    for (int i = 0; i < 3; i++)
        next_item(&rest, ' ');
    out->shown = next_item(&rest, ' ');
    out->point = next_item(&rest, ' ');
    while ((item = next_item(&rest, ' ')) && strcmp(item, "-") != 0) {
    }
    const char *type = next_item(&rest, ' ');
    next_item(&rest, ' ');
    const char *options = next_item(&rest, ' ');
    if (!item || !type || !out->point || !out->shown)
        return false;
    unescape(out->shown);
    unescape(out->point);
    out->v2 = strcmp(type, "cgroup2") == 0;
    return out->v2 || (strcmp(type, "cgroup") == 0 && options && list_has(options, "cpu"));
}

/* What is left of the group's path below the group that is shown; NULL when it lies elsewhere. */
static const char *path_below(const char *path, const char *shown)
{
    const size_t n = strcmp(shown, "/") == 0 ? 0 : strlen(shown);
    if (strncmp(path, shown, n) != 0 || (path[n] != 0 && path[n] != '/'))
        return NULL;
    path += n;
    /* "/../x": a group outside of what this namespace sees. */
    return strncmp(path, "/..", 3) == 0 ? NULL : path;
}

static int mount_limit(const char *root, const struct mount *mount)
{
    char path[PATH_MAX];
    char folder[PATH_MAX];
    if (!group_path(root, mount->v2, path, sizeof path))
        return RP_CPU_UNLIMITED;
    const char *below = path_below(path, mount->shown);
    if (!below ||
        snprintf(folder, sizeof folder, "%s%s", mount->point, below) >= (int)sizeof folder)
        return RP_CPU_UNLIMITED;

    const size_t top = strlen(mount->point);
    int least = RP_CPU_UNLIMITED;
    for (;;) {
        const int limit = mount->v2 ? limit_v2(root, folder) : limit_v1(root, folder);
        if (limit < least)
            least = limit;
        char *last = strrchr(folder, '/');
        if (!last || (size_t)(last - folder) < top)
            return least;
        *last = 0;
    }
}

int rp_cpu_quota(const char *root)
{
    FILE *file = open_lines(root, "/proc/self/mountinfo");
    char *line = NULL;
    size_t room = 0;
    int least = RP_CPU_UNLIMITED;
    while (file && getline(&line, &room, file) > 0) {
        struct mount mount;
        if (!parse_mount(line, &mount))
            continue;
        const int limit = mount_limit(root, &mount);
        if (limit < least)
            least = limit;
    }
    free(line);
    if (file)
        fclose(file);
    return least;
}

int rp_cpu_limit(const struct rp_cpu_set *allowed, const char *root)
{
    const int affinity = rp_cpu_set_count(allowed);
    const int quota = rp_cpu_quota(root);
    const int least = quota < affinity ? quota : affinity;
    return least < 1 ? 1 : least;
}

int rp_cpu_count(void)
{
    struct rp_cpu_set allowed;
    rp_cpu_set_allowed(&allowed);
    return rp_cpu_limit(&allowed, "");
}

/* ---- an order of use ------------------------------------------------------------------------- */

/* The lowest thread of the core that cpu belongs to: "0,64" or "0-1" begin with it. */
static int core_of(const char *root, int cpu)
{
    char path[128];
    char text[64];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    if (!read_text(root, path, text, sizeof text))
        return cpu;
    char *end;
    const long core = strtol(text, &end, 10);
    return end == text || core < 0 || core >= RP_CPU_MAX ? cpu : (int)core;
}

int rp_cpu_order(const struct rp_cpu_set *set, int first, const char *root, int *out, int n)
{
    struct rp_cpu_set cores = {{0}}; /* of which a thread has been taken */
    struct rp_cpu_set taken = {{0}};
    int used = 0;
    if (n > 0 && rp_cpu_set_has(set, first)) {
        rp_cpu_set_add(&cores, core_of(root, first));
        rp_cpu_set_add(&taken, first);
        out[used++] = first;
    }
    /* Who takes all of them need not know which are siblings. */
    const bool all = n >= rp_cpu_set_count(set);
    for (int second = all; second < 2; second++) {
        for (int cpu = 0; cpu < RP_CPU_MAX && used < n; cpu++) {
            if (!rp_cpu_set_has(set, cpu) || rp_cpu_set_has(&taken, cpu))
                continue;
            const int core = second ? cpu : core_of(root, cpu);
            if (!second && rp_cpu_set_has(&cores, core))
                continue;
            rp_cpu_set_add(&cores, core);
            rp_cpu_set_add(&taken, cpu);
            out[used++] = cpu;
        }
    }
    return used;
}
