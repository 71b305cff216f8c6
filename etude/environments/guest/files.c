/* Reading, writing and listing files, as the sandbox's own user and in its own view of the file system.
 *
 * Only regular files: a FIFO or device would block or never end. Bodies: read = u64 limit, path; write = path, NUL,
 * content; list = path, answered by u8 is_directory, u64 size, name, NUL for each entry. */
#include "guest.h"

#include <dirent.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* Opens a regular file; returns -1 with errno set as open() would, EACCES for anything that is not a file. Links are
 * followed as a command would follow them, but none of /proc's: they mean another place for us. The guard of a workspace
 * decides about open(), and lets our openat2 pass. */
static int open_regular(const char *path, int flags) {
    struct stat info;
    struct open_how how = {.flags = flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, .resolve = RESOLVE_NO_MAGICLINKS};
    how.mode = flags & O_CREAT ? 0644 : 0;
    int fd = guarding() ? open(path, how.flags, 0644) : (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    if (fd < 0) {
        if (errno == ENXIO)
            errno = EACCES;
        return -1;
    }
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode))
        return fd;
    int reason = S_ISDIR(info.st_mode) ? EISDIR : EACCES;
    close(fd);
    errno = reason;
    return -1;
}

void read_file(const struct request *request) {
    uint64_t limit;
    struct stat info;
    if (request->size < sizeof limit)
        return reply(request->id, EINVAL, NULL, 0);
    memcpy(&limit, request->body, sizeof limit);
    int fd = open_regular(request->body + sizeof limit, O_RDONLY);
    if (fd < 0)
        return reply(request->id, errno, NULL, 0);
    fstat(fd, &info);
    size_t size = info.st_size > 0 ? info.st_size + 1 : 65536, used = 0; /* files of /proc say 0 */
    if ((uint64_t)info.st_size > limit)
        size = 1;
    char *data = malloc(size);
    ssize_t got = 0;
    while (data && used <= limit && (got = read(fd, data + used, size - used)) > 0) {
        used += got;
        if (used == size)
            data = realloc(data, size *= 2);
    }
    int status = !data ? ENOMEM : got < 0 ? errno : used > limit || (uint64_t)info.st_size > limit ? EFBIG : 0;
    reply(request->id, status, &(struct piece){data, status ? 0 : used}, 1);
    free(data);
    close(fd);
}

int make_parents(const char *path) {
    char *copy = strdup(path);
    int status = 0;
    for (char *at = copy + 1; !status && (at = strchr(at, '/')); at++) {
        *at = 0;
        if (mkdir(copy, 0755) && errno != EEXIST)
            status = errno;
        *at = '/';
    }
    free(copy);
    return status;
}

/* Where there is no room for it, what was there stands: so room is had first, and the rest cut off last. */
void write_file(const struct request *request) {
    const char *path = request->body;
    size_t skip = strlen(path) + 1;
    if (skip > request->size)
        return reply(request->id, EINVAL, NULL, 0);
    int status = make_parents(path);
    int fd = status ? -1 : open_regular(path, O_WRONLY | O_CREAT);
    if (fd < 0)
        return reply(request->id, status ? status : errno, NULL, 0);
    struct stat before;
    off_t size = request->size - skip;
    status = fstat(fd, &before) ? errno : size ? posix_fallocate(fd, 0, size) : 0;
    if (status == EOPNOTSUPP || status == EINVAL || status == ENODEV)
        status = 0; /* a file system that cannot promise room */
    else if (status && before.st_size < size && ftruncate(fd, before.st_size))
        status = errno;
    while (!status && skip < request->size) {
        ssize_t put = write(fd, request->body + skip, request->size - skip);
        if (put < 0 && errno != EINTR) {
            status = errno;
            break;
        }
        skip += put > 0 ? put : 0;
    }
    if (!status && ftruncate(fd, size))
        status = errno;
    close(fd);
    reply(request->id, status, NULL, 0);
}

void list_dir(const struct request *request) {
    char *text = NULL;
    size_t size = 0;
    DIR *directory = opendir(request->body);
    if (!directory)
        return reply(request->id, errno, NULL, 0);
    FILE *out = open_memstream(&text, &size);
    for (struct dirent *entry; (entry = readdir(directory));) {
        struct stat info;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") ||
            fstatat(dirfd(directory), entry->d_name, &info, AT_SYMLINK_NOFOLLOW))
            continue; /* removed since readdir saw it */
        uint64_t bytes = info.st_size;
        fputc(S_ISDIR(info.st_mode), out);
        fwrite(&bytes, sizeof bytes, 1, out);
        fwrite(entry->d_name, strlen(entry->d_name) + 1, 1, out);
    }
    fclose(out);
    closedir(directory);
    reply(request->id, 0, &(struct piece){text, size}, 1);
    free(text);
}
