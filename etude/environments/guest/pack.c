/* Packing a tree into tars, never through a symlink, as the sandbox's own user and in its own view.
 *
 * Body: u64 limit of one archive; u64 bytes and u64 entries that all below the path may come to; u64 skip; path. The
 * answer is u64 the entry that the next part begins with, 0 after the last; tar. With WHOLE as `skip` everything must
 * go into this one. Where packing fails, the body of the answer is the name it failed at.
 *
 * What is there is measured before any of it is read, so that a tree that is too large costs no memory, here or there.
 * A file of several names is packed once; holes count as what they seem to be. What its owner has shut is opened, as an
 * owner may, and shut again. */
#include "guest.h"
#include "tar.h"

#include <dirent.h>
#include <limits.h>
#include <search.h>
#include <sys/stat.h>

enum { OPEN = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, END_BLOCKS = 1024, STOPPED = 1 };
#define WHOLE UINT64_MAX

struct packing {
    struct tar_writer writer;
    uint64_t at, skip, entries; /* `at`: how many have been met */
    bool whole, in_parts;
    void *links;  /* a search tree of struct link: files of several names that are in this archive */
    char *failed; /* the name where it went wrong; errno says why */
};

struct link {
    dev_t device;
    ino_t inode;
    char name[];
};

static uint64_t listed, listed_most;

/* Remembers no more names than there may be, however many there are. */
static int listable(const struct dirent *entry) {
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
        return 0;
    return ++listed <= listed_most;
}

static int by_inode(const void *one, const void *other) {
    const struct link *a = one, *b = other;
    if (a->device != b->device)
        return a->device < b->device ? -1 : 1;
    return a->inode < b->inode ? -1 : a->inode > b->inode;
}

/* The first name in this archive of a file that has several, which this one becomes where there was none; NULL without
 * memory. */
static char *first_name(struct packing *packing, const struct stat *info, const char *name) {
    struct link *link = malloc(sizeof *link + strlen(name) + 1);
    if (!link)
        return NULL;
    *link = (struct link){info->st_dev, info->st_ino};
    strcpy(link->name, name);
    struct link **found = tsearch(link, &packing->links, by_inode);
    if (!found || *found != link)
        free(link);
    return found ? (*found)->name : NULL;
}

/* `*shut` says whether its owner had shut it; `info` is what it was before. */
static int open_owned(int parent, const char *last, int flags, struct stat *info, bool *shut) {
    mode_t needed = S_ISDIR(info->st_mode) ? 0500 : 0400;
    *shut = false;
    int fd = openat(parent, last, OPEN | flags);
    if (fd < 0 && errno == EACCES && fchmodat(parent, last, (info->st_mode & 07777) | needed, 0) == 0) {
        *shut = true;
        fd = openat(parent, last, OPEN | flags);
    } else if (fd >= 0 && S_ISDIR(info->st_mode) && faccessat(fd, ".", X_OK, 0))
        *shut = fchmod(fd, (info->st_mode & 07777) | needed) == 0;
    struct stat now;
    if (fd >= 0 && (fstat(fd, &now) || (now.st_mode & S_IFMT) != (info->st_mode & S_IFMT))) {
        close(fd); /* exchanged since it was looked at */
        return errno = EACCES, -1;
    }
    if (fd >= 0)
        info->st_size = now.st_size;
    return fd;
}

static void shut_again(int fd, bool shut, const struct stat *info) {
    int error = errno;
    if (shut)
        fchmod(fd, info->st_mode & 07777);
    close(fd);
    errno = error;
}

/* 0, or STOPPED where this archive is full and another will go on; -1 with errno set. */
static int fits(struct packing *packing, size_t before, const char *data) {
    if (data)
        return 0;
    if (errno != EFBIG || packing->whole || packing->writer.dry || !before)
        return -1;
    packing->writer.size = before;
    packing->at--;
    return STOPPED;
}

static int add(struct packing *packing, const struct member *member) {
    size_t before = packing->writer.size;
    return fits(packing, before, tar_add(&packing->writer, member));
}

static int pack_content(struct packing *packing, int fd, const struct member *member) {
    size_t before = packing->writer.size;
    char *data = tar_add(&packing->writer, member);
    for (size_t used = 0; data && used < member->size;) {
        ssize_t got = read(fd, data + used, member->size - used);
        if (got < 0 && errno != EINTR)
            return -1;
        if (got == 0)
            break; /* it has become shorter: the rest stays zero */
        used += got > 0 ? got : 0;
    }
    return fits(packing, before, data);
}

static int pack_symlink(struct packing *packing, int parent, const char *last, struct member *member) {
    char target[PATH_MAX];
    ssize_t length = readlinkat(parent, last, target, sizeof target - 1);
    if (length < 0)
        return -1;
    target[length] = 0;
    member->type = '2';
    member->target = target;
    return add(packing, member);
}

static int pack_file(struct packing *packing, int parent, const char *last, struct member *member, struct stat *info) {
    bool shut;
    char *first = info->st_nlink > 1 ? first_name(packing, info, member->name) : member->name;
    if (!first)
        return errno = ENOMEM, -1;
    if (strcmp(first, member->name)) {
        member->type = '1';
        member->target = first;
        return add(packing, member);
    }
    member->type = '0';
    member->size = info->st_size;
    if (packing->writer.dry)
        return add(packing, member);
    int fd = open_owned(parent, last, O_NOFOLLOW, info, &shut);
    if (fd < 0)
        return errno == ENOENT ? 0 : -1;
    member->size = info->st_size;
    member->mode |= shut ? 0600 : 0;
    int status = pack_content(packing, fd, member);
    shut_again(fd, shut, info);
    return status;
}

static int pack_tree(struct packing *packing, int directory, const char *prefix);

static int pack_directory(struct packing *packing, int parent, const char *last, struct member *member,
                          struct stat *info, bool wanted) {
    bool shut;
    int fd = open_owned(parent, last, O_NOFOLLOW | O_DIRECTORY, info, &shut);
    if (fd < 0)
        return errno == ENOENT ? 0 : -1;
    member->type = '5';
    member->mode |= shut || packing->in_parts ? 0700 : 0; /* a later part may have to write there */
    int status = wanted ? add(packing, member) : 0;
    if (!status)
        status = pack_tree(packing, fd, member->name);
    shut_again(fd, shut, info);
    return status;
}

static int pack_entry(struct packing *packing, int parent, const char *last, char *name) {
    struct stat info;
    if (fstatat(parent, last, &info, AT_SYMLINK_NOFOLLOW))
        return errno == ENOENT ? 0 : -1; /* removed since it was listed */
    if (!S_ISLNK(info.st_mode) && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode))
        return 0;
    if (strlen(name) >= PATH_MAX)
        return errno = ENAMETOOLONG, -1; /* nobody could unpack it by that name */
    if (packing->at++ >= packing->entries)
        return errno = E2BIG, -1; /* one more has come since they were listed */
    bool wanted = packing->at > packing->skip;
    struct member member = {.name = name, .target = "", .mode = info.st_mode, .modified = info.st_mtime};
    if (S_ISDIR(info.st_mode))
        return pack_directory(packing, parent, last, &member, &info, wanted);
    if (!wanted)
        return 0;
    if (S_ISLNK(info.st_mode))
        return pack_symlink(packing, parent, last, &member);
    return pack_file(packing, parent, last, &member, &info);
}

static int pack_tree(struct packing *packing, int directory, const char *prefix) {
    struct dirent **entries;
    listed = 0;
    listed_most = packing->entries > packing->at ? packing->entries - packing->at : 0;
    int count = scandirat(directory, ".", &entries, listable, alphasort), status = 0;
    if (count < 0)
        return -1;
    if (listed > listed_most) {
        status = -1;
        errno = E2BIG;
    }
    for (int i = 0; i < count; i++) {
        char *name = NULL;
        if (!status && asprintf(&name, "%s%s%s", prefix, *prefix ? "/" : "", entries[i]->d_name) < 0)
            status = -1;
        if (!status)
            status = pack_entry(packing, directory, entries[i]->d_name, name);
        if (status < 0 && !packing->failed)
            packing->failed = name;
        else
            free(name);
    }
    int error = errno;
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
    errno = error;
    return status;
}

static int pack_path(struct packing *packing, const char *path) {
    struct stat info;
    bool shut;
    if (stat(path, &info))
        return -1;
    if (!S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode))
        return errno = EACCES, -1;
    if (S_ISREG(info.st_mode)) {
        const char *slash = strrchr(path, '/');
        struct member member = {.name = (char *)(slash ? slash + 1 : path), .target = "", .mode = info.st_mode,
                                .modified = info.st_mtime};
        info.st_nlink = 1;
        return packing->skip && !packing->whole ? 0 : pack_file(packing, AT_FDCWD, path, &member, &info);
    }
    int fd = open_owned(AT_FDCWD, path, 0, &info, &shut);
    if (fd < 0)
        return -1;
    int status = pack_tree(packing, fd, "");
    shut_again(fd, shut, &info);
    return status;
}

void pack(const struct request *request) {
    static uint64_t taken; /* by the parts since the first: a tree that changes meanwhile is not measured once for all */
    uint64_t numbers[4];   /* limit, bytes, entries, skip */
    if (request->size < sizeof numbers)
        return reply(request->id, EINVAL, NULL, 0);
    memcpy(numbers, request->body, sizeof numbers);
    const char *path = request->body + sizeof numbers;
    bool whole = numbers[3] == WHOLE;
    struct packing packing = {.writer = {.limit = whole ? numbers[0] - END_BLOCKS : numbers[1], .dry = true},
                              .entries = numbers[2], .whole = whole};
    int status = pack_path(&packing, path);
    bool in_parts = packing.writer.size > numbers[0] - END_BLOCKS;
    tdestroy(packing.links, free);
    if (!status) {
        packing = (struct packing){.writer = {.limit = numbers[0] - END_BLOCKS}, .entries = numbers[2],
                                   .skip = whole ? 0 : numbers[3], .whole = whole, .in_parts = in_parts};
        status = pack_path(&packing, path);
        tdestroy(packing.links, free);
    }
    uint64_t next = status == STOPPED ? packing.at : 0;
    taken = packing.writer.size + (packing.skip ? taken : 0);
    if (status >= 0 && !whole && taken / 3 > numbers[1] / 2) { /* half as much again, for files that several parts have */
        status = -1;
        errno = EFBIG;
    }
    packing.writer.limit += END_BLOCKS;
    int error = status < 0 || tar_finish(&packing.writer) ? errno : 0;
    struct piece body[2] = {{&next, sizeof next}, {packing.writer.data, packing.writer.size}};
    if (error)
        body[0] = (struct piece){packing.failed ? packing.failed : "", packing.failed ? strlen(packing.failed) : 0};
    reply(request->id, error, body, error ? 1 : 2);
    free(packing.writer.data);
    free(packing.failed);
}
