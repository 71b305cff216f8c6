/* The tar format, in memory: what unpack.c unpacks from and pack.c packs into. */
#ifndef ETUDE_TAR_H
#define ETUDE_TAR_H

#include "guest.h"

#include <sys/types.h>

/* One member. The strings live until the next call of tar_next. */
struct member {
    char type; /* as in the header: '0' file, '1' hard link, '2' symlink, '5' directory; others we do not make */
    char *name, *target;
    const char *data;
    uint64_t size;
    mode_t mode;
    int64_t modified;
};

/* Reading: set `data` and `size`, the rest zero. */
struct tar_reader {
    const char *data;
    size_t size, at;
    char *name, *target; /* of the last member */
};

/* 1: a member; 0: the end; -1: errno is set, EBADMSG where this is no tar or a damaged one. */
int tar_next(struct tar_reader *reader, struct member *member);
void tar_done(struct tar_reader *reader);

/* Writing: `limit` is the largest size; beyond it, and without memory, a call returns -1 with errno set. A dry one takes
 * no memory: it only reckons what `size` would be. */
struct tar_writer {
    char *data;
    size_t size, room, limit;
    bool dry;
    char unwritten[1]; /* what a dry one returns */
};

/* Adds the header; returns where `member->size` bytes of content belong, zeroed and padded (nothing may be written there
 * in a dry one), or NULL on failure. */
char *tar_add(struct tar_writer *writer, const struct member *member);
int tar_finish(struct tar_writer *writer);

#endif
