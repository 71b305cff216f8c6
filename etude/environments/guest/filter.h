/* A system-call filter, put together instruction by instruction. */
#ifndef ETUDE_FILTER_H
#define ETUDE_FILTER_H

#include "guest.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

enum { MAX_FILTER = 512 };

static struct sock_filter filter[MAX_FILTER];
static unsigned short used;

static void add(uint16_t code, uint32_t k, uint8_t when_true, uint8_t when_false) {
    if (used == MAX_FILTER)
        _exit(5);
    filter[used++] = (struct sock_filter){code, when_true, when_false, k};
}

static void load(size_t offset) {
    add(BPF_LD | BPF_W | BPF_ABS, offset, 0, 0);
}

/* The low half, which is all the kernel reads of an int; little-endian on both machines. */
static void load_argument(int number) {
    load(offsetof(struct seccomp_data, args) + 8 * number);
}

#endif
