/* What one command has printed: its first and last bytes, and in a log file the whole once it is more than that. */
#ifndef ETUDE_OUTPUT_H
#define ETUDE_OUTPUT_H

#include "guest.h"

enum { OUTPUT_PIECES = 3 };

struct output {
    uint32_t id; /* of its command; names the log */
    size_t cap;
    uint64_t total;
    char *kept; /* cap bytes: the first cap/2 of the output, then a ring of the rest */
    int log;    /* -1: not needed yet; -2: cannot be had; -3: closed and whole */
};

int output_open(struct output *output, uint32_t id, size_t cap); /* 0 or an errno */
void output_keep(struct output *output, const char *data, size_t size);
void output_end(struct output *output); /* no more will come */
void output_free(struct output *output);
bool output_logged(const struct output *output);
/* What is kept, in order; returns how many bytes of it come before the cut. */
size_t output_pieces(const struct output *output, struct piece pieces[OUTPUT_PIECES]);

#endif
