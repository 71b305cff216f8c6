/* The guarded calls, each made in its caller's place: on the directory that was judged, with the caller's umask, never
 * through a link at the end of a path. The caller has the same user and the same view of files as we have. */
#include "guard.h"

#include <linux/openat2.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

enum {
    TRUNCATES_OR_WRITES = O_WRONLY | O_RDWR | O_TRUNC,
    TEMPORARY = O_TMPFILE & ~O_DIRECTORY,
    KNOWN_FLAGS = O_ACCMODE | O_CREAT | O_EXCL | O_NOCTTY | O_TRUNC | O_APPEND | O_NONBLOCK | O_SYNC | O_ASYNC | O_DIRECT |
                  O_DIRECTORY | O_NOFOLLOW | O_NOATIME | O_CLOEXEC | O_TMPFILE, /* openat2 refuses others, openat does not */
};

enum { BORROWED = S_ISUID | S_ISGID }; /* outside, a program with these runs with its owner's rights */

static int refuse(const struct call *call, const char *shown) {
    guard_note(call->pid, shown);
    return call->pid == 1 ? EKEYREJECTED : EPERM; /* of our own calls, the controller tells it from any other EPERM */
}

static int allow(const struct call *call, const struct place *place, enum change change) {
    const char *shown;
    if (!strcmp(place->name, ".") || !strcmp(place->name, "..") || !planted(place->path, place->name, change, &shown))
        return 0;
    return refuse(call, shown);
}

static int allow_link(const struct call *call, const struct place *place, const char *text) {
    const char *shown;
    int error = allow(call, place, MADE_LINK);
    return error || !planted_leads(place, text, &shown) ? error : refuse(call, shown);
}

enum { PROC_TEXT = 512 };

/* The beginning of a file of /proc about a process; empty where it has gone. */
static void read_proc(pid_t pid, const char *name, char text[PROC_TEXT]) {
    char path[48];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, PROC_TEXT - 1);
    if (fd >= 0)
        close(fd);
    text[got > 0 ? got : 0] = 0;
}

long status_of(pid_t pid, const char *field, int base) {
    char text[PROC_TEXT], *found;
    read_proc(pid, "status", text);
    found = strstr(text, field); /* a name has its newlines escaped, so each field begins a line */
    return found ? strtol(found + strlen(field), NULL, base) : -1;
}

static void take_umask(const struct call *call) {
    umask(status_of(call->pid, "\nUmask:", 8) & 0777);
}

/* The name as it was asked for: with a slash at its end it must be a directory, which is the kernel's to say. */
static const char *asked(struct place *place) {
    if (place->slash && !strchr(place->name, '/'))
        strcat(place->name, "/");
    return place->name;
}

static void link_of(int fd, char link[40]) {
    snprintf(link, 40, "/proc/self/fd/%d", fd);
}

/* A descriptor of what is there, and of nothing that replaces it. */
static int pin(const struct place *place) {
    if (place->slash && !S_ISDIR(place->info.st_mode))
        return errno = ENOTDIR, -1;
    if (place->object >= 0)
        return fcntl(place->object, F_DUPFD_CLOEXEC, 0);
    return openat(place->directory, place->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
}

static long result(long got) {
    return got < 0 ? -errno : got;
}

/* /dev/tty means the caller's. */
static int open_terminal(const struct call *call, int flags) {
    char path[48], text[PROC_TEXT], *fields;
    int device = 0;
    read_proc(call->pid, "stat", text);
    if ((fields = strrchr(text, ')')))
        sscanf(fields + 1, " %*c %*d %*d %*d %d", &device);
    if (major(device) < 136 || major(device) > 143)
        return errno = ENXIO, -1;
    snprintf(path, sizeof path, "/dev/pts/%u", (major(device) - 136) * (1 << 20) + minor(device));
    return open(path, flags | O_NOCTTY);
}

/* Through no link, and not by O_NOFOLLOW, which the caller would find among its flags. */
static int open_place(const struct call *call, struct place *place, int flags, mode_t mode) {
    char link[40];
    flags |= O_NOCTTY | O_NONBLOCK | O_CLOEXEC;
    struct open_how how = {.flags = flags & KNOWN_FLAGS, .resolve = RESOLVE_NO_SYMLINKS};
    how.mode = flags & (O_CREAT | TEMPORARY) ? mode & 01777 : 0;
    if (place->exists && S_ISCHR(place->info.st_mode) && place->info.st_rdev == makedev(5, 0))
        return open_terminal(call, flags);
    if (place->object >= 0) {
        link_of(place->object, link);
        return syscall(SYS_openat, AT_FDCWD, link, flags & ~(O_CREAT | O_EXCL | O_NOFOLLOW), mode & 01777);
    }
    if (!place->exists || flags & TEMPORARY)
        take_umask(call);
    return syscall(SYS_openat2, place->directory, asked(place), &how, sizeof how);
}

/* Whoever wants to write to a FIFO waits for its reader; to a file that is leased, for the lease. */
static long wait_or_fail(const struct call *call, struct place *place, int flags) {
    bool waits = errno == EWOULDBLOCK || (errno == ENXIO && place->exists && S_ISFIFO(place->info.st_mode));
    int error = errno, fd;
    if (!waits || flags & O_NONBLOCK || (fd = pin(place)) < 0)
        return -error;
    error = guard_wait_to_open(call, fd, flags & ~(O_CREAT | O_EXCL | O_NOFOLLOW));
    return error ? -error : ANSWERED;
}

static long open_found(const struct call *call, struct place *place, int flags, mode_t mode) {
    bool nameless = (flags & TEMPORARY), exclusive = (flags & O_CREAT) && (flags & O_EXCL);
    int error = flags & O_NOFOLLOW || (exclusive && !nameless) ? 0 : follow_links(call, place);
    if (!error && !place->exists && (nameless || !(flags & O_CREAT)))
        error = ENOENT;
    if (!error && !nameless && !place->exists)
        error = allow(call, place, MADE_FILE);
    else if (!error && S_ISREG(place->info.st_mode) && flags & TRUNCATES_OR_WRITES)
        error = allow(call, place, WRITTEN);
    if (error)
        return -error;
    int fd = open_place(call, place, flags, mode);
    if (fd < 0)
        return wait_or_fail(call, place, flags);
    return guard_give(call, fd, flags) ? ANSWERED : -errno;
}

static long make_open(const struct call *call, int at, uint64_t path, int flags, mode_t mode) {
    struct place place;
    int error = find_place(call, at, path, &place);
    long got = error ? -error : open_found(call, &place, flags, mode);
    leave_place(&place);
    return got;
}

static long make_node(const struct call *call, int at, uint64_t path, mode_t mode, dev_t device) {
    struct place place;
    bool directory = S_ISDIR(mode);
    int error = find_place(call, at, path, &place);
    if (!error && !place.exists)
        error = allow(call, &place, directory ? MADE_DIRECTORY : S_ISFIFO(mode) ? MADE_PIPE : MADE_FILE);
    long got = -error;
    if (!error) {
        take_umask(call);
        got = result(directory ? mkdirat(place.directory, asked(&place), mode & 07777)
                               : mknodat(place.directory, asked(&place), S_ISREG(mode) ? mode & ~BORROWED : mode, device));
    }
    leave_place(&place);
    return got;
}

static long make_symlink(const struct call *call, uint64_t target, int at, uint64_t path) {
    struct place place, text; /* the target is text: its place is not wanted */
    int error = find_place(call, at, path, &place);
    char *bytes = text.path;
    if (!error)
        error = read_path(call, target, bytes);
    if (!error && !place.exists)
        error = allow_link(call, &place, bytes);
    long got = error ? -error : result(symlinkat(bytes, place.directory, asked(&place)));
    leave_place(&place);
    return got;
}

static enum change moved(const struct place *place) {
    mode_t mode = place->info.st_mode;
    return S_ISDIR(mode) ? MOVED_DIRECTORY : S_ISLNK(mode) ? MADE_LINK : S_ISFIFO(mode) ? MADE_PIPE : MADE_FILE;
}

static int allow_moved(const struct call *call, const struct place *from, const struct place *to) {
    char text[PATH_MAX];
    if (moved(from) != MADE_LINK)
        return allow(call, to, moved(from));
    ssize_t length = readlinkat(from->directory, from->name, text, sizeof text - 1);
    text[length > 0 ? length : 0] = 0;
    return length < 0 ? errno : allow_link(call, to, text);
}

static long link_found(const struct call *call, struct place *from, struct place *to) {
    char link[40];
    int fd = pin(from);
    int error = fd < 0 ? errno : allow(call, from, WRITTEN); /* who has another name of it could write it there */
    if (!error && !to->exists)
        error = allow_moved(call, from, to);
    long got = -error;
    if (!error) {
        link_of(fd, link);
        got = result(linkat(AT_FDCWD, link, to->directory, asked(to), AT_SYMLINK_FOLLOW));
    }
    if (fd >= 0)
        close(fd);
    return got;
}

static long make_link(const struct call *call, int at, uint64_t path, int to_at, uint64_t to_path, int flags) {
    struct place from, to = {.directory = -1, .object = -1};
    if (flags & ~(AT_SYMLINK_FOLLOW | AT_EMPTY_PATH))
        return -EINVAL;
    int error = find_place(call, at, path, &from);
    if (from.empty && flags & AT_EMPTY_PATH)
        error = find_open_file(call, at, &from);
    else if (!error && flags & AT_SYMLINK_FOLLOW)
        error = follow_links(call, &from);
    if (!error && from.object < 0 && !from.exists)
        error = ENOENT;
    if (!error)
        error = find_place(call, to_at, to_path, &to);
    long got = error ? -error : link_found(call, &from, &to);
    leave_place(&from);
    leave_place(&to);
    return got;
}

/* What is listed stays: who removes it cannot put it back, and git checks out a file by removing it first. */
static long make_removal(const struct call *call, int at, uint64_t path, int flags) {
    struct place place;
    int error = find_place(call, at, path, &place);
    if (!error && place.exists && !(flags & AT_REMOVEDIR) && !S_ISDIR(place.info.st_mode))
        error = allow(call, &place, REMOVED);
    long got = error ? -error : result(unlinkat(place.directory, asked(&place), flags));
    leave_place(&place);
    return got;
}

/* What is not obeyed there, because nobody goes there, would be here. mv then copies, and each name is judged. */
static bool leaves_packages(const struct place *from, const struct place *to) {
    return S_ISDIR(from->info.st_mode) && planted_unpacked(from->path, from->name, false) &&
           !planted_unpacked(to->path, to->name, true);
}

static long rename_found(const struct call *call, struct place *from, struct place *to, unsigned flags) {
    bool happens = from->exists && !(to->exists && flags & RENAME_NOREPLACE); /* or the kernel says why not */
    int error = happens ? allow(call, from, WRITTEN) : 0;
    if (!error && happens && (leaves_packages(from, to) || (flags & RENAME_EXCHANGE && to->exists && leaves_packages(to, from))))
        error = EXDEV;
    if (!error && happens)
        error = allow_moved(call, from, to);
    if (!error && happens && flags & RENAME_EXCHANGE && to->exists) {
        error = allow(call, to, WRITTEN);
        error = error ? error : allow_moved(call, to, from);
    }
    return error ? -error : result(syscall(SYS_renameat2, from->directory, asked(from), to->directory, asked(to), flags));
}

static long make_rename(const struct call *call, int at, uint64_t path, int to_at, uint64_t to_path, unsigned flags) {
    struct place from, to = {.directory = -1, .object = -1};
    if (flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT))
        return -EINVAL;
    int error = find_place(call, at, path, &from);
    if (!error)
        error = find_place(call, to_at, to_path, &to);
    long got = error ? -error : rename_found(call, &from, &to, flags);
    leave_place(&from);
    leave_place(&to);
    return got;
}

enum { TRUNCATE = -1 };

/* Changes what is there: its mode, or its length where the mode is TRUNCATE. */
static long change_found(const struct call *call, struct place *place, int mode, off_t length) {
    char link[40];
    int error = !place->exists ? ENOENT : S_ISREG(place->info.st_mode) ? allow(call, place, WRITTEN) : 0;
    if (!error && mode != TRUNCATE && mode & BORROWED && S_ISREG(place->info.st_mode))
        error = EPERM;
    int fd = error ? -1 : pin(place);
    if (fd < 0)
        return error ? -error : -errno;
    link_of(fd, link);
    long got = result(mode == TRUNCATE ? truncate(link, length) : chmod(link, mode));
    close(fd);
    return got;
}

static long make_change(const struct call *call, int at, uint64_t path, int flags, int mode, off_t length) {
    struct place place;
    if ((mode == TRUNCATE && length < 0) || flags & ~(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH))
        return -EINVAL;
    int error = find_place(call, at, path, &place);
    if (place.empty && flags & AT_EMPTY_PATH)
        error = find_open_file(call, at, &place);
    else if (!error && !(flags & AT_SYMLINK_NOFOLLOW))
        error = follow_links(call, &place);
    long got = error ? -error : change_found(call, &place, mode, length);
    leave_place(&place);
    return got;
}

static long make_fchmod(const struct call *call, int fd, int mode) {
    struct place place;
    int error = find_open_file(call, fd, &place);
    long got = error ? -error : change_found(call, &place, mode, 0);
    leave_place(&place);
    return got;
}

/* By its name alone, from the directory that was judged: bind takes no descriptor of one. getsockname tells that name. */
static long bind_path(const struct call *call, int socket, const struct sockaddr_un *address, socklen_t size) {
    struct place place;
    struct sockaddr_un named = {.sun_family = AF_UNIX};
    char path[sizeof address->sun_path + 1] = "";
    memcpy(path, address->sun_path, size - offsetof(struct sockaddr_un, sun_path));
    int error = find_text(call, AT_FDCWD, path, &place);
    if (!error && !place.exists)
        error = place.slash ? ENOENT : allow(call, &place, MADE_FILE);
    if (!error && fchdir(place.directory))
        error = errno;
    if (!error) {
        take_umask(call);
        snprintf(named.sun_path, sizeof named.sun_path, "%s", place.name);
    }
    long got = error ? -error : result(bind(socket, (struct sockaddr *)&named, sizeof named));
    if (chdir("/")) /* or the directory could not be unmounted */
        _exit(7);
    leave_place(&place);
    return got;
}

static long make_bind(const struct call *call, int socket, uint64_t from, socklen_t size) {
    union {
        struct sockaddr any;
        struct sockaddr_un local;
        char bytes[sizeof(struct sockaddr_storage) + 1];
    } address = {.bytes = {0}};
    int error = size > sizeof(struct sockaddr_storage) ? EINVAL : size ? read_caller(call, from, &address, size) : 0;
    int process = error ? -1 : syscall(SYS_pidfd_open, status_of(call->pid, "\nTgid:", 10), 0);
    int ours = process < 0 ? -1 : syscall(SYS_pidfd_getfd, process, socket, 0);
    long got = error ? -error : -errno;
    if (ours >= 0 && address.any.sa_family == AF_UNIX && size <= sizeof address.local &&
        size > offsetof(struct sockaddr_un, sun_path) && *address.local.sun_path)
        got = bind_path(call, ours, &address.local, size);
    else if (ours >= 0)
        got = result(bind(ours, &address.any, size));
    if (ours >= 0)
        close(ours);
    if (process >= 0)
        close(process);
    return got;
}

long guard_perform(const struct call *call) {
    const uint64_t *a = call->arguments;
    switch (call->number) {
#ifdef SYS_open
    case SYS_open: return make_open(call, AT_FDCWD, a[0], a[1], a[2]);
    case SYS_creat: return make_open(call, AT_FDCWD, a[0], O_CREAT | O_WRONLY | O_TRUNC, a[1]);
    case SYS_mkdir: return make_node(call, AT_FDCWD, a[0], (a[1] & 07777) | S_IFDIR, 0);
    case SYS_mknod: return S_ISDIR(a[1]) ? -EPERM : make_node(call, AT_FDCWD, a[0], a[1], a[2]);
    case SYS_symlink: return make_symlink(call, a[0], AT_FDCWD, a[1]);
    case SYS_link: return make_link(call, AT_FDCWD, a[0], AT_FDCWD, a[1], 0);
    case SYS_unlink: return make_removal(call, AT_FDCWD, a[0], 0);
    case SYS_rename: return make_rename(call, AT_FDCWD, a[0], AT_FDCWD, a[1], 0);
    case SYS_chmod: return make_change(call, AT_FDCWD, a[0], 0, a[1] & 07777, 0);
#endif
#ifdef SYS_renameat
    case SYS_renameat: return make_rename(call, a[0], a[1], a[2], a[3], 0);
#endif
    case SYS_openat: return make_open(call, a[0], a[1], a[2], a[3]);
    case SYS_unlinkat: return make_removal(call, a[0], a[1], a[2]);
    case SYS_mkdirat: return make_node(call, a[0], a[1], (a[2] & 07777) | S_IFDIR, 0);
    case SYS_mknodat: return S_ISDIR(a[2]) ? -EPERM : make_node(call, a[0], a[1], a[2], a[3]);
    case SYS_symlinkat: return make_symlink(call, a[0], a[1], a[2]);
    case SYS_linkat: return make_link(call, a[0], a[1], a[2], a[3], a[4]);
    case SYS_renameat2: return make_rename(call, a[0], a[1], a[2], a[3], a[4]);
    case SYS_fchmodat: return make_change(call, a[0], a[1], 0, a[2] & 07777, 0);
    case FCHMODAT2: return make_change(call, a[0], a[1], a[3], a[2] & 07777, 0);
    case SYS_fchmod: return make_fchmod(call, a[0], a[1] & 07777);
    case SYS_truncate: return make_change(call, AT_FDCWD, a[0], 0, TRUNCATE, a[1]);
    case SYS_bind: return make_bind(call, a[0], a[1], a[2]);
    }
    return -ENOSYS;
}
