/* Which instructions may be used: the part of the answer that is pure.
 *
 * A processor that has an instruction is not enough: the operating system must save the registers
 * it touches (OSXSAVE and XCR0), and tiles need leave of their own.  So the detectors here are
 * functions of plain words and can be shown machines that nobody has.  They, and not the code that
 * reads the words, decide everything; both are built on every architecture.
 */
#ifndef RP_POOL_ISA_H
#define RP_POOL_ISA_H

#include <rankplan/machine.h>

#include <stdbool.h>

/* The levels, lowest first.  Each needs the one named behind it. */
enum rp_isa_level {
    RP_LEVEL_SCALAR,
    RP_LEVEL_AVX2,        /* scalar */
    RP_LEVEL_AVX_VNNI,    /* avx2 */
    RP_LEVEL_AVX512,      /* avx2 */
    RP_LEVEL_AVX512_VNNI, /* avx512 */
    RP_LEVEL_AMX,         /* avx512: what surrounds a tile product works on zmm rows */
    RP_LEVEL_NEON,        /* scalar */
    RP_LEVEL_DOTPROD,     /* neon */
    RP_LEVEL_I8MM,        /* dotprod */
    RP_N_LEVELS
};

/* Why a level cannot be used. */
enum rp_isa_reason {
    RP_ISA_USABLE,
    RP_ISA_OTHER_MACHINE,  /* belongs to another architecture */
    RP_ISA_NO_INSTRUCTION, /* the processor does not have it */
    RP_ISA_NO_OSXSAVE,     /* the system saves no extended registers at all */
    RP_ISA_NOT_SAVED,      /* XCR0 lacks the bits of its registers */
    RP_ISA_NO_PALETTE,     /* AMX without the tile shape that the kernels are written for */
    RP_ISA_NO_PERMISSION,  /* the system refused the use of tiles */
    RP_ISA_NO_BASE         /* the level that it needs cannot be used */
};

struct rp_isa_found {
    uint32_t mask; /* RP_ISA_* */
    uint64_t xcr0; /* as far as it may be believed; 0 without OSXSAVE */
    enum rp_isa_reason reason[RP_N_LEVELS];
};

/* The registers of CPUID, by leaf.  Those of leaves above max_leaf (and of 7.1 above max_subleaf7)
 * are not looked at: processors answer such questions with the words of another leaf. */
struct rp_isa_x86_words {
    uint32_t max_leaf;     /* 0: eax */
    uint32_t leaf1_ecx;    /* 1 */
    uint32_t max_subleaf7; /* 7.0: eax */
    uint32_t leaf7_ebx, leaf7_ecx, leaf7_edx;
    uint32_t leaf7_1_eax;  /* 7.1 */
    uint32_t leaf1d_eax;   /* 1D.0: the highest palette */
    uint32_t palette1_eax; /* 1D.1: bytes of all tiles, bytes of one << 16 */
    uint32_t palette1_ebx; /* bytes of a tile row, tiles << 16 */
    uint32_t palette1_ecx; /* rows of a tile */
    uint64_t xcr0;         /* XGETBV 0; not looked at without OSXSAVE */
};

/* request_tiles is called at most once, and only when all else speaks for AMX; it asks the system
 * for the use of tiles and says whether they were granted.  NULL refuses. */
void rp_isa_detect_x86(const struct rp_isa_x86_words *words, bool (*request_tiles)(void),
                       struct rp_isa_found *out);

/* The words of getauxval(AT_HWCAP) and (AT_HWCAP2) on aarch64 Linux. */
void rp_isa_detect_arm(uint64_t hwcap, uint64_t hwcap2, struct rp_isa_found *out);

/* rp_isa_parse on a machine of the caller's making. */
RP_CHECKED rp_status rp_isa_parse_on(const struct rp_isa_found *machine, const char *level,
                                     uint32_t *out, rp_error *err);

#endif
