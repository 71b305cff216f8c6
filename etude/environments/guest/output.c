/* See output.h. The log is /tmp/exec-ID.log, of at most LOG_MAX bytes: a command may print for ever. */
#include "output.h"

enum { LOG_MAX = 16 << 20, LOST = -2, WHOLE = -3 };

int output_open(struct output *output, uint32_t id, size_t cap) {
    *output = (struct output){.id = id, .cap = cap, .kept = malloc(cap + 1), .log = -1};
    return output->kept ? 0 : ENOMEM;
}

static void write_log(struct output *output, const char *data, size_t size) {
    if (output->log >= 0 && output->total < LOG_MAX && write(output->log, data, size) < 0)
        close(output->log), output->log = LOST; /* /tmp is full: the log ends here, the capped output is still whole */
}

void output_keep(struct output *output, const char *data, size_t size) {
    if (output->total <= output->cap && output->total + size > output->cap) {
        char path[32];
        snprintf(path, sizeof path, "/tmp/exec-%u.log", output->id);
        output->log = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
        write_log(output, output->kept, output->total);
    }
    write_log(output, data, size);
    size_t half = output->cap / 2, ring = output->cap - half;
    while (size) {
        bool first = output->total < half;
        size_t at = first ? output->total : half + (ring ? (output->total - half) % ring : 0);
        size_t room = first ? half - at : output->cap - at;
        size_t step = size < room || !room ? size : room;
        if (room)
            memcpy(output->kept + at, data, step);
        output->total += step;
        data += step;
        size -= step;
    }
}

void output_end(struct output *output) {
    if (output->log >= 0) {
        close(output->log);
        output->log = WHOLE;
    }
}

bool output_logged(const struct output *output) {
    return output->log >= 0 || output->log == WHOLE;
}

size_t output_pieces(const struct output *output, struct piece pieces[OUTPUT_PIECES]) {
    size_t half = output->cap / 2, ring = output->cap - half;
    bool cut = output->total > output->cap;
    size_t turn = cut && ring ? (output->total - half) % ring : 0, first = cut ? half : output->total;
    pieces[0] = (struct piece){output->kept, first};
    pieces[1] = (struct piece){output->kept + half + turn, cut ? ring - turn : 0};
    pieces[2] = (struct piece){output->kept + half, turn};
    return first;
}

void output_free(struct output *output) {
    output_end(output);
    free(output->kept);
    output->kept = NULL;
}
