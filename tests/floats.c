/* See floats.h. */
#define _DEFAULT_SOURCE 1
#define XXH_INLINE_ALL
#include "tests/floats.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmocka.h>

uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

bool float_same(float a, float b)
{
    return float_bits(a) == float_bits(b) || (isnan(a) && isnan(b));
}

uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

float random_float(uint64_t *state, float scale)
{
    return scale * ((float)(random_next(state) >> 40) * 0x1p-23f - 1.0f);
}

float random_special(uint64_t *state)
{
    static const uint32_t special[] = {
        0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x80800000,
        0x3f800000, 0xbf800000, 0x3effffff, 0x4b000000, 0x7f7fffff, 0xff7fffff, 0x7f000000,
        0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001, 0x42b17218, 0xc2aeac50,
    };
    uint64_t r = random_next(state);
    if (r % 4 == 0)
        return float_of(special[(r >> 8) % (sizeof special / sizeof *special)]);
    return float_of((uint32_t)(r >> 32));
}

static size_t whole_pages(size_t bytes, size_t page)
{
    return (bytes + page - 1) / page * page;
}

void *guard_alloc(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = whole_pages(bytes, page);
    char *all =
        mmap(NULL, inner + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(all != MAP_FAILED);
    assert_int_equal(mprotect(all, page, PROT_NONE), 0);
    assert_int_equal(mprotect(all + page + inner, page, PROT_NONE), 0);
    return all + page + inner - bytes;
}

void guard_free(void *memory, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = whole_pages(bytes, page);
    munmap((char *)memory + bytes - inner - page, inner + 2 * page);
}

uint64_t float_digest(const float *x, size_t n, uint64_t seed)
{
    uint32_t block[256];
    for (size_t at = 0; at < n;) {
        size_t some = n - at < 256 ? n - at : 256;
        for (size_t i = 0; i < some; i++)
            block[i] = isnan(x[at + i]) ? 0x7fc00000u : float_bits(x[at + i]);
        seed = XXH3_64bits_withSeed(block, some * sizeof *block, seed);
        at += some;
    }
    return seed;
}
