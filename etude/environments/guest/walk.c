/* Walking down trees, never through a symlink: packing a tar, and removing. As the sandbox's own user, in its own view.
 *
 * Bodies: pack = u64 limit, path; remove = u8 recursive, path. Where packing fails, the body of the answer is the name
 * it failed at. */
#include "guest.h"
#include "tar.h"

#include <dirent.h>
#include <sys/stat.h>

enum { DEPTH_MAX = 4000 }; /* of directories in each other: for a stack of 8 MiB, with room to spare */

static int depth;

static int not_dots(const struct dirent *entry) {
    return strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
}

static void free_entries(struct dirent **entries, int count) {
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
}

static int pack_file(struct tar_writer *writer, int fd, struct member *member) {
    char *data = tar_add(writer, member);
    for (size_t used = 0; data && used < member->size;) {
        ssize_t got = read(fd, data + used, member->size - used);
        if (got < 0 && errno != EINTR)
            return -1;
        if (got == 0)
            break; /* it has become shorter: the rest stays zero */
        used += got > 0 ? got : 0;
    }
    return data ? 0 : -1;
}

static int pack_link(struct tar_writer *writer, int parent, const char *last, struct member *member) {
    char target[4096];
    ssize_t length = readlinkat(parent, last, target, sizeof target - 1);
    if (length < 0)
        return -1;
    target[length] = 0;
    member->target = target;
    return tar_add(writer, member) ? 0 : -1;
}

/* `failed` gets the name where it went wrong, for the caller to free; errno says why. */
static int pack_tree(struct tar_writer *writer, int directory, const char *prefix, char **failed);

static int pack_entry(struct tar_writer *writer, int parent, const char *last, char *name, char **failed) {
    struct stat info;
    if (fstatat(parent, last, &info, AT_SYMLINK_NOFOLLOW))
        return errno == ENOENT ? 0 : -1; /* removed since it was listed */
    struct member member = {.name = name, .target = "", .mode = info.st_mode, .modified = info.st_mtime};
    if (S_ISLNK(info.st_mode)) {
        member.type = '2';
        return pack_link(writer, parent, last, &member);
    }
    if (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode))
        return 0;
    int fd = openat(parent, last, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC), status = -1;
    if (fd < 0 || fstat(fd, &info)) { /* looked at again: it may have been exchanged meanwhile */
        if (fd >= 0)
            close(fd);
        return -1;
    }
    if (S_ISDIR(info.st_mode)) {
        member.type = '5';
        if (++depth > DEPTH_MAX)
            errno = ENAMETOOLONG;
        else if (tar_add(writer, &member))
            status = pack_tree(writer, fd, name, failed);
        depth--;
    } else if (S_ISREG(info.st_mode)) {
        member.type = '0';
        member.size = info.st_size;
        status = pack_file(writer, fd, &member);
    } else
        errno = EACCES;
    int error = errno;
    close(fd);
    errno = error;
    return status;
}

static int pack_tree(struct tar_writer *writer, int directory, const char *prefix, char **failed) {
    struct dirent **entries;
    int count = scandirat(directory, ".", &entries, not_dots, alphasort), status = 0;
    if (count < 0)
        return -1;
    for (int i = 0; i < count && !status; i++) {
        char *name;
        if (asprintf(&name, "%s%s%s", prefix, *prefix ? "/" : "", entries[i]->d_name) < 0)
            return -1;
        status = pack_entry(writer, directory, entries[i]->d_name, name, failed);
        if (status && !*failed)
            *failed = name;
        else
            free(name);
    }
    free_entries(entries, count);
    return status;
}

void pack(const struct request *request) {
    uint64_t limit;
    struct stat info;
    char *failed = NULL;
    if (request->size < sizeof limit)
        return reply(request->id, EINVAL, NULL, 0);
    memcpy(&limit, request->body, sizeof limit);
    const char *path = request->body + sizeof limit;
    struct tar_writer writer = {.limit = limit};
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC), status = fd < 0 || fstat(fd, &info) ? errno : 0;
    if (!status && S_ISDIR(info.st_mode))
        status = pack_tree(&writer, fd, "", &failed) ? errno : 0;
    else if (!status && S_ISREG(info.st_mode)) {
        char *last = strrchr(path, '/');
        struct member member = {'0', last ? last + 1 : (char *)path, "", .size = info.st_size, .mode = info.st_mode,
                                .modified = info.st_mtime};
        status = pack_file(&writer, fd, &member) ? errno : 0;
    } else if (!status)
        status = EACCES;
    if (!status && tar_finish(&writer))
        status = errno;
    struct piece body = {writer.data, writer.size};
    if (status)
        body = (struct piece){failed ? failed : "", failed ? strlen(failed) : 0};
    reply(request->id, status, &body, 1);
    free(writer.data);
    free(failed);
    if (fd >= 0)
        close(fd);
}

static int remove_below(int parent, const char *name) {
    struct dirent **entries;
    if (depth == DEPTH_MAX)
        return errno = ENAMETOOLONG, -1;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == EACCES && fchmodat(parent, name, 0700, 0) == 0)
        fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -1;
    if (faccessat(fd, ".", W_OK | X_OK, 0))
        fchmod(fd, 0700); /* our own, or this fails and so does what follows */
    int count = scandirat(fd, ".", &entries, not_dots, alphasort), status = count < 0 ? -1 : 0;
    depth++;
    for (int i = 0; i < count && !status; i++)
        if (unlinkat(fd, entries[i]->d_name, 0) && errno != ENOENT)
            status = errno == EISDIR ? remove_below(fd, entries[i]->d_name) : -1;
    depth--;
    int error = errno;
    if (count >= 0)
        free_entries(entries, count);
    close(fd);
    errno = error;
    return status ? -1 : unlinkat(parent, name, AT_REMOVEDIR);
}

void remove_path(const struct request *request) {
    if (request->size < 2)
        return reply(request->id, EINVAL, NULL, 0);
    const char *path = request->body + 1;
    int status = unlinkat(AT_FDCWD, path, 0) ? errno : 0;
    if (status == EISDIR)
        status = (*request->body ? remove_below(AT_FDCWD, path) : rmdir(path)) ? errno : 0;
    reply(request->id, status, NULL, 0);
}
