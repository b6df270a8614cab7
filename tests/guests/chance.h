// What random calls are made of: numbers and memory as callers get them wrong.
#ifndef CHANCE_H
#define CHANCE_H
#include "guest.h"

// Chance.
static uint64_t state;
static uint64_t next(void) {
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return state * 0x2545f4914f6cdd1dULL;
}
static long below(long n) { return next() % n; }
static int one_in(long n) { return below(n) == 0; }
#define PICK(list) list[below(sizeof list / sizeof *list)]

// A number as callers get them wrong: signs, edges, rubbish in the half that is not looked at.
static long number(void) {
    static const long edges[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 16, 64, 65, -1, -2, INT32_MAX, INT32_MIN, 1L << 32, INT64_MAX};
    switch (below(8)) {
    case 0: return (long)next();
    case 1: return below(100);
    case 2: return PICK(edges) | (long)(next() << 32);
    default: return PICK(edges);
    }
}
static clockid_t a_clock(void) { return below(3) ? below(12) : (clockid_t)number(); }

// Memory. Each argument of a call has a page of its own, with nothing behind it.
#define PLACES 8
static char *pages, *sealed;
static unsigned turn;

// Writable memory that holds `len` bytes of `value`, or a place where there is none.
static void *at(const void *value, size_t len) {
    char *page = pages + turn++ % PLACES * 8192, *edge = page + 4096;
    switch (below(12)) {
    case 0: return NULL;
    case 1: return BAD;
    case 2: return sealed;
    case 3: memset(edge - len, 0, len); return edge - below(len);
    case 4: memcpy(edge - len, value, len); return edge - len;
    case 5: return (void *)(0x800000000000UL + below(4096));
    default: memcpy(page + 512, value, len); return page + 512;
    }
}
static void *room(size_t len) {
    static const char zeros[1024];
    return at(zeros, len);
}
// The first eight bytes that a call wrote, where they can be read.
static long held(const void *p) {
    uintptr_t from = (uintptr_t)p - (uintptr_t)pages;
    return from < PLACES * 8192 && from % 8192 + 8 <= 4096 ? *(const long *)p : -77;
}
#endif
