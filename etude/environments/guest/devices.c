/* Before bubblewrap begins, on the host: makes the device nodes that a workspace is shown read-only, then becomes it.
 *
 * bubblewrap shows the host's own nodes. Where the product runs as root, commands do too, and own them: a chmod or an
 * access list made inside would be the whole machine's. bubblewrap cannot make them read-only itself, for then it takes
 * away that they are devices. On a read-only mount a device is read and written as ever; its mode and owner are not.
 *
 *   lock-devices PROGRAM ARGUMENT... */
#include "guest.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

static const char *const NODES[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"};
static const struct {
    unsigned long stands, flag;
} KEPT[] = {{ST_NOSUID, MS_NOSUID}, {ST_NOEXEC, MS_NOEXEC}, {ST_NOATIME, MS_NOATIME}, {ST_RELATIME, MS_RELATIME}};

static bool map_root(const char *file, const char *line) {
    int fd = open(file, O_WRONLY | O_CLOEXEC);
    bool written = fd >= 0 && write(fd, line, strlen(line)) > 0;
    close(fd);
    return written;
}

/* Mounts of our own; root of a container that may not have them gets them with a user namespace. */
static bool leave(void) {
    if (!unshare(CLONE_NEWNS))
        return true;
    return !unshare(CLONE_NEWUSER | CLONE_NEWNS) && map_root("/proc/self/setgroups", "deny") &&
           map_root("/proc/self/uid_map", "0 0 1") && map_root("/proc/self/gid_map", "0 0 1");
}

static bool make_read_only(const char *node) {
    struct statvfs now;
    unsigned long flags = MS_REMOUNT | MS_BIND | MS_RDONLY;
    if (mount(node, node, NULL, MS_BIND, NULL) || statvfs(node, &now))
        return false;
    for (size_t i = 0; i < sizeof KEPT / sizeof *KEPT; i++)
        flags |= now.f_flag & KEPT[i].stands ? KEPT[i].flag : 0;
    return !mount(NULL, node, NULL, flags, NULL);
}

int lock_devices(int argc, char **argv) {
    const char *failed = argc < 1 ? "what is to be run" : NULL;
    if (!failed && (!leave() || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)))
        failed = "mounts of one's own";
    for (size_t i = 0; !failed && i < sizeof NODES / sizeof *NODES; i++)
        if (!access(NODES[i], F_OK) && !make_read_only(NODES[i]))
            failed = NODES[i];
    if (!failed)
        execv(argv[0], argv);
    fprintf(stderr, "cannot lock %s: %s\n", failed ? failed : argv[0], strerror(errno));
    return 6;
}
