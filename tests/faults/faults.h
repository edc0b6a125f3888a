/* Making the N-th call of a kind fail, wherever it comes from: the C library's functions are taken
 * over, by a program that links this file, or by any program that preloads it (LD_PRELOAD).
 *
 * pool/fault.h does it for the pool's own calls, armed from inside; this sees every call of a whole
 * process, those of jansson and of the C library included.  Rust is left out: its allocator ends
 * the process when there is no memory, which is the tokenizer's documented limit.  So is one
 * allocation of jansson: when the buffer of a token cannot grow its lexer runs past the end of it.
 */
#ifndef RP_TESTS_FAULTS_H
#define RP_TESTS_FAULTS_H

#include <stdbool.h>

/* malloc, calloc, realloc, aligned_alloc, posix_memalign; pthread_create; open, fopen; pread, read;
 * mmap. */
enum faults_kind {
    FAULTS_ALLOC,
    FAULTS_THREAD,
    FAULTS_OPEN,
    FAULTS_READ,
    FAULTS_MMAP,
    FAULTS_KINDS
};

/* False where a sanitizer owns the allocator, or the C library has no names behind its own. */
bool faults_available(void);

/* From now on the n-th call (1 = the next) of the kind fails, once. */
void faults_arm(enum faults_kind kind, long n);

/* Takes that away; true when the failure has happened. */
bool faults_disarm(void);

/* Whether it was jansson that had no memory.  It does not always notice: its lexer goes on without
 * the character that it had no room for, and its parser then finds a comma where a key was due.  So
 * any refusal will do. */
bool faults_in_jansson(void);

/* Blocks that were allocated and not freed. */
long faults_live(void);

#endif
