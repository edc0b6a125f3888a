/* Instruction sets: detecting them, naming them, and taking them away.
 *
 * A detector first writes down a reason for every level, then RP_ISA_USABLE where there is none;
 * the mask follows from the reasons.  So a refusal can always say why.
 */
#define _GNU_SOURCE 1
#include "pool/isa.h"

#include "pool/error.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

/* Rows in the order of enum rp_isa_level. */
static const struct level {
    const char *name;
    uint32_t bit;
    enum rp_isa_level base;
} levels[RP_N_LEVELS] = {
    {"scalar", RP_ISA_SCALAR, RP_LEVEL_SCALAR},
    {"avx2", RP_ISA_AVX2, RP_LEVEL_SCALAR},
    {"avx-vnni", RP_ISA_AVX_VNNI, RP_LEVEL_AVX2},
    {"avx512", RP_ISA_AVX512, RP_LEVEL_AVX2},
    {"avx512-vnni", RP_ISA_AVX512_VNNI, RP_LEVEL_AVX512},
    {"amx", RP_ISA_AMX_INT8, RP_LEVEL_AVX512},
    {"neon", RP_ISA_NEON, RP_LEVEL_SCALAR},
    {"dotprod", RP_ISA_DOTPROD, RP_LEVEL_NEON},
    {"i8mm", RP_ISA_I8MM, RP_LEVEL_DOTPROD},
};

/* A level whose base is not usable is not usable either; bases stand before what needs them. */
static void settle(struct rp_isa_found *found)
{
    found->mask = 0;
    for (int i = 1; i < RP_N_LEVELS; i++) {
        if (found->reason[i] == RP_ISA_USABLE && found->reason[levels[i].base] != RP_ISA_USABLE)
            found->reason[i] = RP_ISA_NO_BASE;
        if (found->reason[i] == RP_ISA_USABLE)
            found->mask |= levels[i].bit;
    }
}

static bool has(uint64_t word, uint64_t bits)
{
    return (word & bits) == bits;
}

#define BIT(n) (UINT64_C(1) << (n))

/* Intel SDM volume 1, chapters 13 to 15 and 18: what must be seen before each may be used. */
#define LEAF1_ECX_OSXSAVE   BIT(27)
#define LEAF1_ECX_AVX2_ALSO (BIT(28) | BIT(12) | BIT(29))           /* AVX, FMA, F16C */
#define LEAF7_EBX_AVX2      BIT(5)                                  /* AVX2 */
#define LEAF7_EBX_AVX512    (BIT(16) | BIT(17) | BIT(30) | BIT(31)) /* F, DQ, BW, VL */
#define LEAF7_ECX_VNNI      BIT(11)                                 /* AVX512_VNNI */
#define LEAF7_EDX_AMX_INT8  (BIT(24) | BIT(25))                     /* AMX-TILE, AMX-INT8 */
#define LEAF7_1_EAX_VNNI    BIT(4)                                  /* AVX-VNNI */
#define XCR0_AVX            (BIT(1) | BIT(2))                       /* xmm, ymm */
#define XCR0_AVX512         (XCR0_AVX | BIT(5) | BIT(6) | BIT(7))   /* opmask, zmm, zmm16-31 */
#define XCR0_TILES          (BIT(17) | BIT(18))                     /* configuration, data */

/* 8 tiles of 16 rows of 64 bytes: the only palette that exists, and the one that kernels assume. */
static bool has_palette1(const struct rp_isa_x86_words *w)
{
    return w->max_leaf >= 0x1d && w->leaf1d_eax >= 1 && (w->palette1_eax & 0xffff) >= 8 * 1024 &&
           (w->palette1_eax >> 16) == 1024 && (w->palette1_ebx & 0xffff) == 64 &&
           (w->palette1_ebx >> 16) >= 8 && (w->palette1_ecx & 0xffff) == 16;
}

static enum rp_isa_reason why_not(bool osxsave, bool instruction, bool saved)
{
    if (!instruction)
        return RP_ISA_NO_INSTRUCTION;
    if (!osxsave)
        return RP_ISA_NO_OSXSAVE;
    return saved ? RP_ISA_USABLE : RP_ISA_NOT_SAVED;
}

void rp_isa_detect_x86(const struct rp_isa_x86_words *w, bool (*request_tiles)(void),
                       struct rp_isa_found *out)
{
    const bool leaf7 = w->max_leaf >= 7;
    const uint32_t l1c = w->max_leaf >= 1 ? w->leaf1_ecx : 0;
    const uint32_t l7b = leaf7 ? w->leaf7_ebx : 0;
    const uint32_t l7c = leaf7 ? w->leaf7_ecx : 0;
    const uint32_t l7d = leaf7 ? w->leaf7_edx : 0;
    const uint32_t l71a = leaf7 && w->max_subleaf7 >= 1 ? w->leaf7_1_eax : 0;
    const bool os = has(l1c, LEAF1_ECX_OSXSAVE);
    const uint64_t xcr0 = os ? w->xcr0 : 0;
    enum rp_isa_reason *r = out->reason;

    out->xcr0 = xcr0;
    r[RP_LEVEL_SCALAR] = RP_ISA_USABLE;
    r[RP_LEVEL_AVX2] =
        why_not(os, has(l1c, LEAF1_ECX_AVX2_ALSO) && has(l7b, LEAF7_EBX_AVX2), has(xcr0, XCR0_AVX));
    r[RP_LEVEL_AVX_VNNI] = why_not(os, has(l71a, LEAF7_1_EAX_VNNI), has(xcr0, XCR0_AVX));
    r[RP_LEVEL_AVX512] = why_not(os, has(l7b, LEAF7_EBX_AVX512), has(xcr0, XCR0_AVX512));
    r[RP_LEVEL_AVX512_VNNI] = why_not(os, has(l7c, LEAF7_ECX_VNNI), has(xcr0, XCR0_AVX512));
    r[RP_LEVEL_AMX] = why_not(os, has(l7d, LEAF7_EDX_AMX_INT8), has(xcr0, XCR0_TILES));
    if (r[RP_LEVEL_AMX] == RP_ISA_USABLE && !has_palette1(w))
        r[RP_LEVEL_AMX] = RP_ISA_NO_PALETTE;
    r[RP_LEVEL_NEON] = r[RP_LEVEL_DOTPROD] = r[RP_LEVEL_I8MM] = RP_ISA_OTHER_MACHINE;

    settle(out);
    /* Asked last: leave, once given, makes every signal frame of the process 8 KiB larger. */
    if (r[RP_LEVEL_AMX] == RP_ISA_USABLE && !(request_tiles && request_tiles())) {
        r[RP_LEVEL_AMX] = RP_ISA_NO_PERMISSION;
        settle(out);
    }
}

#define HWCAP_BIT_ASIMD   BIT(1)
#define HWCAP_BIT_ASIMDDP BIT(20)
#define HWCAP2_BIT_I8MM   BIT(13)

void rp_isa_detect_arm(uint64_t hwcap, uint64_t hwcap2, struct rp_isa_found *out)
{
    /* The kernel sets these bits only for what it also saves. */
    out->xcr0 = 0;
    for (int i = 0; i < RP_N_LEVELS; i++)
        out->reason[i] = RP_ISA_OTHER_MACHINE;
    out->reason[RP_LEVEL_SCALAR] = RP_ISA_USABLE;
    out->reason[RP_LEVEL_NEON] = why_not(true, has(hwcap, HWCAP_BIT_ASIMD), true);
    out->reason[RP_LEVEL_DOTPROD] = why_not(true, has(hwcap, HWCAP_BIT_ASIMDDP), true);
    out->reason[RP_LEVEL_I8MM] = why_not(true, has(hwcap2, HWCAP2_BIT_I8MM), true);
    settle(out);
}

/* ---- this machine ---------------------------------------------------------------------------- */

#if defined(__x86_64__)

#define ARCH_GET_PERMISSION 0x1022 /* ARCH_GET_XCOMP_PERM of asm/prctl.h, Linux 5.16 */
#define ARCH_ASK_PERMISSION 0x1023 /* ARCH_REQ_XCOMP_PERM */
#define FEATURE_TILE_DATA   18

static bool request_tiles(void)
{
    unsigned long granted = 0;
    return syscall(SYS_arch_prctl, ARCH_ASK_PERMISSION, FEATURE_TILE_DATA) == 0 &&
           syscall(SYS_arch_prctl, ARCH_GET_PERMISSION, &granted) == 0 &&
           has(granted, BIT(FEATURE_TILE_DATA));
}

static uint64_t read_xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static void detect(struct rp_isa_found *out)
{
    struct rp_isa_x86_words w = {0};
    uint32_t a, b, c, d;
    w.max_leaf = (uint32_t)__get_cpuid_max(0, NULL);
    if (__get_cpuid(1, &a, &b, &c, &d))
        w.leaf1_ecx = c;
    if (__get_cpuid_count(7, 0, &w.max_subleaf7, &b, &c, &d)) {
        w.leaf7_ebx = b;
        w.leaf7_ecx = c;
        w.leaf7_edx = d;
    }
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d))
        w.leaf7_1_eax = a;
    if (__get_cpuid_count(0x1d, 0, &a, &b, &c, &d))
        w.leaf1d_eax = a;
    if (__get_cpuid_count(0x1d, 1, &a, &b, &c, &d)) {
        w.palette1_eax = a;
        w.palette1_ebx = b;
        w.palette1_ecx = c;
    }
    /* Without OSXSAVE the instruction itself is undefined. */
    if (has(w.leaf1_ecx, LEAF1_ECX_OSXSAVE))
        w.xcr0 = read_xcr0();
    rp_isa_detect_x86(&w, request_tiles, out);
}

#elif defined(__aarch64__)

static void detect(struct rp_isa_found *out)
{
    rp_isa_detect_arm(getauxval(AT_HWCAP), getauxval(AT_HWCAP2), out);
}

#else

static void detect(struct rp_isa_found *out)
{
    out->xcr0 = 0;
    for (int i = 0; i < RP_N_LEVELS; i++)
        out->reason[i] = i == RP_LEVEL_SCALAR ? RP_ISA_USABLE : RP_ISA_OTHER_MACHINE;
    settle(out);
}

#endif

static struct rp_isa_found this_machine; /* written once, by detect_once */

static void detect_once(void)
{
    detect(&this_machine);
}

static const struct rp_isa_found *machine(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, detect_once);
    return &this_machine;
}

uint32_t rp_isa_detected(void)
{
    return machine()->mask;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* "scalar, avx2, avx512" into text, cut at its size (which holds all names with room to spare). */
static const char *list_usable(const struct rp_isa_found *found, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < RP_N_LEVELS && used < bytes; i++)
        if (found->reason[i] == RP_ISA_USABLE)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? ", " : "",
                                     levels[i].name);
    return text;
}

static rp_status refuse(const struct rp_isa_found *found, int level, rp_error *err)
{
    char usable[128];
    char why[128];
    const struct level *l = &levels[level];
    switch (found->reason[level]) {
    case RP_ISA_USABLE: return RP_OK;
    case RP_ISA_OTHER_MACHINE:
        snprintf(why, sizeof why, "it belongs to another architecture");
        break;
    case RP_ISA_NO_INSTRUCTION:
        snprintf(why, sizeof why, "the processor does not have the instructions");
        break;
    case RP_ISA_NO_OSXSAVE:
        snprintf(why, sizeof why, "the system does not save extended registers (no OSXSAVE)");
        break;
    case RP_ISA_NOT_SAVED:
        snprintf(why, sizeof why, "the system does not save its registers (XCR0 is 0x%llx)",
                 (unsigned long long)found->xcr0);
        break;
    case RP_ISA_NO_PALETTE:
        snprintf(why, sizeof why, "CPUID leaf 0x1d does not list the tile palette");
        break;
    case RP_ISA_NO_PERMISSION:
        snprintf(why, sizeof why, "the system refused the permission to use tiles");
        break;
    case RP_ISA_NO_BASE:
        snprintf(why, sizeof why, "it needs %s, which cannot be used", levels[l->base].name);
        break;
    }
    return rp_fail(err, RP_ERR_UNSUPPORTED,
                   "instruction set \"%s\" cannot be used on this machine: %s; usable: %s", l->name,
                   why, list_usable(found, usable, sizeof usable));
}

rp_status rp_isa_parse_on(const struct rp_isa_found *found, const char *name, uint32_t *out,
                          rp_error *err)
{
    char usable[128];
    uint32_t up_to = 0;
    if (!name || !out)
        return rp_fail(err, RP_ERR_INVALID, "instruction set: the name or the result is NULL");
    if (strcmp(name, "max") == 0) {
        *out = found->mask;
        return RP_OK;
    }
    for (int i = 0; i < RP_N_LEVELS; i++) {
        up_to |= levels[i].bit;
        if (strcmp(name, levels[i].name) == 0) {
            RP_TRY(refuse(found, i, err));
            *out = found->mask & up_to;
            return RP_OK;
        }
    }
    return rp_fail(err, RP_ERR_INVALID, "instruction set \"%.40s\" is unknown; usable: %s, max",
                   name, list_usable(found, usable, sizeof usable));
}

rp_status rp_isa_parse(const char *level, uint32_t *out, rp_error *err)
{
    return rp_isa_parse_on(machine(), level, out, err);
}

rp_status rp_isa_default(uint32_t *out, rp_error *err)
{
    const char *name = getenv("RANKPLAN_ISA");
    /* Empty counts as unset, as scripts mean it that write RANKPLAN_ISA="$CHOICE". */
    const rp_status status = rp_isa_parse(name && name[0] ? name : "max", out, err);
    return status == RP_OK ? RP_OK : rp_fail_within(err, status, "RANKPLAN_ISA");
}

const char *rp_isa_name(uint32_t mask)
{
    for (int i = RP_N_LEVELS - 1; i > 0; i--)
        if (mask & levels[i].bit)
            return levels[i].name;
    return levels[RP_LEVEL_SCALAR].name;
}
