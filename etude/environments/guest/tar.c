/* Reading and writing tar archives in memory: ustar, with long names and sizes as pax or GNU tar write them.
 *
 * Knows bytes and no files. It trusts nothing it reads: every length is checked against what is there. Long names are
 * written as GNU tar does (a member of type L or K before the real one), which every reader of today understands. */
#include "tar.h"

#include <ctype.h>
#include <stddef.h>

enum { BLOCK = 512, NAME = 100 };

struct header {
    char name[100], mode[8], uid[8], gid[8], size[12], modified[12], checksum[8], type, target[100];
    char magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], pad[12];
};
_Static_assert(sizeof(struct header) == BLOCK, "a tar header is one block");

/* What members of types x, L and K say of the next one. */
struct extras {
    char *name, *target;
    int64_t size, modified; /* -1: not said */
};

static int bad(void) {
    errno = EBADMSG;
    return -1;
}

/* Octal text, or a big-endian number after a byte of 0x80. */
static bool number(const char *field, size_t size, int64_t *value) {
    uint64_t sum = 0;
    if ((unsigned char)*field == 0x80) {
        for (size_t i = 1; i < size; i++) {
            if (sum >> 54)
                return false;
            sum = sum << 8 | (unsigned char)field[i];
        }
        return *value = sum, true;
    }
    size_t i = 0;
    while (i < size && field[i] == ' ')
        i++;
    for (; i < size && field[i] >= '0' && field[i] <= '7'; i++)
        sum = sum << 3 | (field[i] - '0');
    *value = sum;
    return i == size || !field[i] || field[i] == ' ';
}

static unsigned checksum(const struct header *header) {
    const unsigned char *bytes = (const unsigned char *)header;
    unsigned sum = 8 * ' ';
    for (size_t i = 0; i < BLOCK; i++)
        if (i < offsetof(struct header, checksum) || i >= offsetof(struct header, type))
            sum += bytes[i];
    return sum;
}

static int replace(char **text, const char *with, size_t size) {
    free(*text);
    *text = strndup(with, size);
    return *text ? 0 : -1;
}

/* Records of a pax header: "LENGTH KEY=VALUE\n", LENGTH counting all of it. */
static int pax(const char *data, size_t size, struct extras *extras) {
    for (size_t at = 0; at < size;) {
        size_t length = 0, digits = at;
        for (; digits < size && isdigit((unsigned char)data[digits]) && length < size; digits++)
            length = length * 10 + (data[digits] - '0');
        if (digits == at || digits >= size || data[digits] != ' ' || length > size - at || at + length <= digits + 1 ||
            data[at + length - 1] != '\n')
            return bad();
        const char *key = data + digits + 1, *end = data + at + length - 1;
        const char *value = memchr(key, '=', end - key);
        if (!value++)
            return bad();
        size_t key_size = value - key;
        int status = 0;
        if (memchr(value, 0, end - value))
            return bad();
        if (key_size == 5 && !memcmp(key, "path=", 5))
            status = replace(&extras->name, value, end - value);
        else if (key_size == 9 && !memcmp(key, "linkpath=", 9))
            status = replace(&extras->target, value, end - value);
        else if (key_size == 5 && !memcmp(key, "size=", 5))
            extras->size = strtoll(value, NULL, 10); /* ends at the newline */
        else if (key_size == 6 && !memcmp(key, "mtime=", 6))
            extras->modified = strtoll(value, NULL, 10);
        else if (key_size > 11 && !memcmp(key, "GNU.sparse.", 11))
            return errno = ENOTSUP, -1;
        if (status)
            return status;
        at += length;
    }
    return 0;
}

static int fill(struct tar_reader *reader, struct member *member, const struct header *header, struct extras *extras) {
    char whole[NAME + sizeof header->prefix + 2] = "";
    int64_t mode;
    if (!memcmp(header->magic, "ustar", 6) && header->prefix[0]) /* GNU tar has other things there */
        snprintf(whole, sizeof whole, "%.155s/", header->prefix);
    strncat(whole, header->name, NAME);
    free(reader->name);
    free(reader->target);
    reader->name = extras->name ? extras->name : strdup(whole);
    reader->target = extras->target ? extras->target : strndup(header->target, NAME);
    extras->name = extras->target = NULL;
    if (!reader->name || !reader->target)
        return errno = ENOMEM, -1;
    if (!number(header->mode, sizeof header->mode, &mode) ||
        !number(header->modified, sizeof header->modified, &member->modified))
        return bad();
    if (extras->modified >= 0)
        member->modified = extras->modified;
    member->name = reader->name;
    member->target = reader->target;
    member->mode = mode & 07777;
    member->type = header->type ? header->type : '0';
    size_t length = strlen(reader->name);
    if (member->type == '0' && length && reader->name[length - 1] == '/')
        member->type = '5'; /* how the oldest archives mark a directory */
    return 1;
}

/* One header and what belongs to it: 2 when it only says something of the next. */
static int step(struct tar_reader *reader, struct member *member, struct extras *extras) {
    static const char nothing[BLOCK];
    const struct header *header = (const struct header *)(reader->data + reader->at);
    int64_t size, sum;
    if (reader->size - reader->at < BLOCK)
        return bad(); /* an archive ends with a block of zeros; this one has been cut off */
    if (!memcmp(header, nothing, BLOCK))
        return 0;
    if (!number(header->checksum, sizeof header->checksum, &sum) || (unsigned)sum != checksum(header) ||
        !number(header->size, sizeof header->size, &size))
        return bad();
    bool meta = header->type && strchr("xgLK", header->type), content = !header->type || strchr("07xgLK", header->type);
    if (!meta && extras->size >= 0)
        size = extras->size;
    if (!content)
        size = 0; /* links may repeat the size of what they link to */
    reader->at += BLOCK;
    if (size < 0 || (uint64_t)size > reader->size - reader->at)
        return bad();
    const char *data = reader->data + reader->at;
    size_t padded = ((size_t)size + BLOCK - 1) / BLOCK * BLOCK;
    reader->at += padded < reader->size - reader->at ? padded : reader->size - reader->at;
    if (meta && size > 1 << 20)
        return bad();
    if (header->type == 'x')
        return pax(data, size, extras) ? -1 : 2;
    if ((header->type == 'L' && replace(&extras->name, data, size)) ||
        (header->type == 'K' && replace(&extras->target, data, size)))
        return -1;
    if (meta)
        return 2; /* of g, which is about all that follow, we need nothing */
    member->data = data;
    member->size = size;
    return fill(reader, member, header, extras);
}

int tar_next(struct tar_reader *reader, struct member *member) {
    struct extras extras = {.size = -1, .modified = -1};
    int got;
    while ((got = step(reader, member, &extras)) == 2)
        ;
    free(extras.name);
    free(extras.target);
    return got;
}

void tar_done(struct tar_reader *reader) {
    free(reader->name);
    free(reader->target);
    reader->name = reader->target = NULL;
}

/* Room for `size` more bytes, zeroed. */
static char *extend(struct tar_writer *writer, size_t size) {
    if (size > writer->limit - writer->size)
        return errno = EFBIG, NULL;
    if (writer->dry)
        return writer->size += size, writer->unwritten;
    if (writer->size + size > writer->room) {
        size_t room = writer->size + size + (writer->size >> 1) + 65536;
        char *data = realloc(writer->data, room);
        if (!data)
            return NULL;
        writer->data = data;
        writer->room = room;
    }
    char *start = writer->data + writer->size;
    memset(start, 0, size);
    writer->size += size;
    return start;
}

static char *plain(struct tar_writer *writer, const struct member *member) {
    size_t padded = (member->size + BLOCK - 1) / BLOCK * BLOCK;
    struct header *header = (struct header *)extend(writer, BLOCK + padded);
    if (!header || writer->dry)
        return (char *)header;
    memcpy(header->name, member->name, strnlen(member->name, sizeof header->name));
    memcpy(header->target, member->target, strnlen(member->target, sizeof header->target));
    snprintf(header->mode, sizeof header->mode, "%07o", member->mode & 07777);
    snprintf(header->uid, sizeof header->uid, "%07o", 0);
    snprintf(header->gid, sizeof header->gid, "%07o", 0);
    snprintf(header->size, sizeof header->size, "%011llo", (unsigned long long)member->size);
    int64_t modified = member->modified < 0 || member->modified >> 33 ? 0 : member->modified;
    snprintf(header->modified, sizeof header->modified, "%011llo", (unsigned long long)modified);
    header->type = member->type;
    memcpy(header->magic, "ustar ", 6);
    memcpy(header->version, " ", 2);
    snprintf(header->checksum, sizeof header->checksum, "%06o", checksum(header));
    header->checksum[7] = ' ';
    return (char *)(header + 1);
}

static bool long_name(struct tar_writer *writer, char type, char *text) {
    if (strlen(text) <= NAME)
        return true;
    struct member note = {.type = type, .name = "././@LongLink", .target = "", .size = strlen(text) + 1};
    char *data = plain(writer, &note);
    return data && (writer->dry || memcpy(data, text, note.size));
}

char *tar_add(struct tar_writer *writer, const struct member *member) {
    if (!long_name(writer, 'K', member->target) || !long_name(writer, 'L', member->name))
        return NULL;
    return plain(writer, member);
}

int tar_finish(struct tar_writer *writer) {
    return extend(writer, 2 * BLOCK) ? 0 : -1;
}
