/* Removing trees, never through a symlink, as the sandbox's own user and in its own view.
 *
 * Body: u8 recursive, path. */
#include "guest.h"

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
