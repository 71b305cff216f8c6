/* What a caller's path means, found out once and held by descriptors: the caller may rewrite its memory, and others the
 * tree, while the path is judged and used.
 *
 * Links at the end of a path are followed here, one at a time, and links of /proc as seen by the caller: /proc/self is
 * the caller's. What those lead to is an open file, which is judged by the name it has. */
#include "guard.h"

#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { MAX_LINKS = 40, PROC_ROOT_INO = 1 };

int read_caller(const struct call *call, uint64_t address, void *bytes, size_t size) {
    struct iovec here = {bytes, size}, there = {(void *)(uintptr_t)address, size};
    return process_vm_readv(call->pid, &here, 1, &there, 1, 0) == (ssize_t)size ? 0 : errno == EPERM || errno == ESRCH ? EPERM : EFAULT;
}

/* A path may end anywhere, and the next page may not be there. */
int read_path(const struct call *call, uint64_t address, char path[PATH_MAX]) {
    size_t page = sysconf(_SC_PAGESIZE), size = page - address % page, used = 0;
    for (; used < PATH_MAX; used += size, size = page) {
        size = size < PATH_MAX - used ? size : PATH_MAX - used;
        int error = read_caller(call, address + used, path + used, size);
        if (error)
            return error;
        if (memchr(path + used, 0, size))
            return 0;
    }
    return ENAMETOOLONG;
}

static int name_of(int fd, char path[PATH_MAX]) {
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX);
    if (length < 0 || length > PATH_MAX - NAME_MAX - 16) /* room for a name, and for what is looked for beside it */
        return length < 0 ? errno : ENAMETOOLONG;
    path[length] = 0;
    return 0;
}

static bool on_proc(const char *path) {
    return !strncmp(path, "/proc", 5) && (!path[5] || path[5] == '/');
}

/* What /proc has of process 1 is not for its commands: the kernel would give us, who are of it, what it refuses them. */
static bool not_for(const struct call *call, const char *path) {
    char *end;
    if (call->pid == 1 || strncmp(path, "/proc/", 6))
        return false;
    long pid = strtol(path + 6, &end, 10);
    return (!*end || *end == '/') && (pid == 1 || pid == syscall(SYS_gettid));
}

static bool leads_through_us(const struct call *call, int directory) {
    char path[PATH_MAX];
    return !name_of(directory, path) && not_for(call, path);
}

/* The text of the link `name`, as the caller reads it; 1 for a link of /proc to an open file. */
static int read_link(const struct call *call, int directory, const char *name, char target[PATH_MAX]) {
    struct statfs system;
    struct stat info;
    if (!fstatfs(directory, &system) && system.f_type == PROC_SUPER_MAGIC) {
        if (fstat(directory, &info) || info.st_ino != PROC_ROOT_INO)
            return 1;
        if (!strcmp(name, "self"))
            return snprintf(target, PATH_MAX, "%d", call->pid), 0;
        if (!strcmp(name, "thread-self"))
            return snprintf(target, PATH_MAX, "%d/task/%d", call->pid, call->pid), 0;
    }
    ssize_t length = readlinkat(directory, name, target, PATH_MAX - 1);
    target[length > 0 ? length : 0] = 0;
    return length < 0 ? -1 : 0;
}

/* One step of a walk: into the part, or back to `rest` with a link's text before it. */
static int step(const struct call *call, int *at, const char *part, char rest[PATH_MAX], int *links) {
    char target[PATH_MAX];
    struct stat info;
    int next = openat(*at, part, O_PATH | O_NOFOLLOW | O_CLOEXEC), kind = 0;
    if (next >= 0 && !fstat(next, &info) && S_ISLNK(info.st_mode)) {
        close(next);
        kind = read_link(call, *at, part, target);
        if (kind == 1)
            next = leads_through_us(call, *at) ? (errno = EACCES, -1) : openat(*at, part, O_PATH | O_CLOEXEC);
        else if (kind < 0 || ++*links > MAX_LINKS || strlen(target) + strlen(rest) + 2 > PATH_MAX)
            return kind < 0 ? errno : *links > MAX_LINKS ? ELOOP : ENAMETOOLONG;
        else {
            size_t length = strlen(target);
            memmove(rest + length + 1, rest, strlen(rest) + 1);
            memcpy(rest, target, length);
            rest[length] = '/';
            next = openat(*at, *target == '/' ? "/" : ".", O_PATH | O_CLOEXEC);
        }
    }
    if (next < 0)
        return errno;
    close(*at);
    *at = next;
    return 0;
}

static int walk(const struct call *call, int base, const char *path) {
    char rest[PATH_MAX], part[NAME_MAX + 1];
    int at = openat(base, *path == '/' ? "/" : ".", O_PATH | O_CLOEXEC), links = 0, error = at < 0 ? errno : 0;
    snprintf(rest, sizeof rest, "%s", path);
    while (!error) {
        size_t skip = strspn(rest, "/"), length = strcspn(rest + skip, "/");
        if (!length)
            return at;
        if (length > NAME_MAX) {
            error = ENAMETOOLONG;
            break;
        }
        snprintf(part, sizeof part, "%.*s", (int)length, rest + skip);
        memmove(rest, rest + skip + length, strlen(rest + skip + length) + 1);
        error = step(call, &at, part, rest, &links);
    }
    if (at >= 0)
        close(at);
    return errno = error, -1;
}

/* Opens a directory. The kernel's own walk is the fast one; it stops where /proc would mean us and not the caller. */
static int enter(const struct call *call, int base, const char *path, char name[PATH_MAX]) {
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_NO_MAGICLINKS};
    int fd = syscall(SYS_openat2, base, path, &how, sizeof how);
    int error = fd < 0 ? 0 : name_of(fd, name);
    if (fd >= 0 && (error || !on_proc(name)))
        return error ? (close(fd), errno = error, -1) : fd;
    if (fd >= 0)
        close(fd);
    fd = walk(call, base, path);
    error = fd < 0 ? errno : name_of(fd, name);
    return error ? (fd >= 0 ? close(fd) : 0, errno = error, -1) : fd;
}

static int look(struct place *place) {
    place->exists = !fstatat(place->directory, place->name, &place->info, AT_SYMLINK_NOFOLLOW);
    return place->exists || errno == ENOENT ? 0 : errno;
}

static int settle(const struct call *call, int base, const char *path, struct place *place) {
    char parent[PATH_MAX];
    size_t end = strlen(path), start;
    while (end > 1 && path[end - 1] == '/')
        end--;
    for (start = end; start && path[start - 1] != '/';)
        start--;
    if (!end)
        return place->empty = true, ENOENT;
    place->slash = path[end] == '/';
    size_t size = end - start > NAME_MAX ? NAME_MAX : end - start;
    snprintf(place->name, sizeof place->name, "%.*s", size ? (int)size : 1, size ? path + start : ".");
    snprintf(parent, sizeof parent, "%.*s", start ? (int)start : 1, start ? path : ".");
    place->directory = enter(call, base, parent, place->path);
    if (place->directory >= 0 && not_for(call, place->path))
        return EACCES;
    return place->directory < 0 ? errno : end - start > NAME_MAX ? ENAMETOOLONG : look(place);
}

static int open_of_caller(const struct call *call, const char *what) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", call->pid, what);
    return open(path, O_PATH | O_CLOEXEC);
}

int find_text(const struct call *call, int at, const char *path, struct place *place) {
    char what[32] = "cwd";
    int base = AT_FDCWD;
    place->directory = place->object = -1;
    place->empty = false;
    if (*path != '/') {
        if (at != AT_FDCWD)
            snprintf(what, sizeof what, "fd/%d", at);
        base = open_of_caller(call, what);
        if (base < 0)
            return errno == ENOENT && at != AT_FDCWD ? EBADF : errno;
    }
    int error = settle(call, base, path, place);
    if (base >= 0)
        close(base);
    return error;
}

int find_place(const struct call *call, int at, uint64_t address, struct place *place) {
    char path[PATH_MAX];
    place->directory = place->object = -1;
    place->empty = false;
    int error = read_path(call, address, path);
    return error ? error : find_text(call, at, path, place);
}

/* What a link of /proc leads to is judged by the name the file has, where it has one. */
static int turn_to_object(struct place *place) {
    char path[PATH_MAX], *slash;
    int object = openat(place->directory, place->name, O_PATH | O_CLOEXEC);
    if (object < 0)
        return errno;
    close(place->directory);
    place->directory = -1;
    place->object = object;
    place->path[0] = 0;
    if (fstat(object, &place->info))
        return errno;
    if (!S_ISREG(place->info.st_mode))
        return place->slash && !S_ISDIR(place->info.st_mode) ? ENOTDIR : 0;
    int error = place->slash ? ENOTDIR : name_of(object, path);
    if (error || !(slash = strrchr(path, '/')))
        return error;
    snprintf(place->name, sizeof place->name, "%s", slash + 1);
    *slash = 0;
    snprintf(place->path, sizeof place->path, "%s", *path ? path : "/");
    return 0;
}

int follow_links(const struct call *call, struct place *place) {
    char target[PATH_MAX];
    for (int links = 0; place->exists && S_ISLNK(place->info.st_mode); links++) {
        int kind = read_link(call, place->directory, place->name, target), before = place->directory;
        if (kind == 1)
            return turn_to_object(place);
        if (kind < 0 || links == MAX_LINKS)
            return kind < 0 ? errno : ELOOP;
        bool slash = place->slash;
        int error = settle(call, before, target, place);
        close(before);
        place->slash |= slash;
        if (error)
            return error;
    }
    return 0;
}

int find_open_file(const struct call *call, int fd, struct place *place) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", call->pid, fd);
    int error = find_text(call, AT_FDCWD, path, place);
    if (!error && !place->exists)
        error = EBADF;
    return error ? error == ENOENT ? EBADF : error : turn_to_object(place);
}

void leave_place(struct place *place) {
    if (place->directory >= 0)
        close(place->directory);
    if (place->object >= 0)
        close(place->object);
}
