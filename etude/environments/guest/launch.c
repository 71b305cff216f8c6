/* The host side of one sandbox's start: joins its cgroups, makes a private mount namespace, mounts the workspace
 * overlay there, gives up root, and becomes bubblewrap.
 *
 * The overlay is mounted after the namespace is made so that no other sandbox's namespace copies it, and so that it
 * disappears with the last process. Started by the backend with posix_spawn; its errors go to standard error, which
 * the backend keeps in a file and quotes.
 *
 *   launch PARENT UID GID DIRECTORY OVERLAY_OPTIONS [-c CGROUP_PROCS]... [-b SOURCE STAGE]... -- PROGRAM ARGUMENT...
 *
 * Relative paths are relative to DIRECTORY; the overlay lands on DIRECTORY/merged, and each SOURCE is bound on its
 * STAGE, where an unprivileged bubblewrap can reach it even if SOURCE lies below a directory only root may enter. */
#include "guest.h"

#include <grp.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static void fail(const char *what, const char *object) {
    fprintf(stderr, "cannot %s %s: %s\n", what, object, strerror(errno));
    _exit(1);
}

static void write_text(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        fail("write", path);
    close(fd);
}

static void detach_from_host(pid_t parent) {
    struct rlimit no_core = {0, 0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1); /* the controller died before the line above took effect */
    syscall(SYS_close_range, CONTROL_FD + 1, ~0U, 0);
    setrlimit(RLIMIT_CORE, &no_core);
    write_text("/proc/self/oom_score_adj", "500"); /* when the host runs out, sandboxes go before the trainer */
    syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL); /* refused where keyrings are off: nothing to leave then */
}

/* Root needs only a mount namespace; anyone else gains the right to mount by owning a user namespace. */
static void private_mounts(void) {
    uid_t uid = geteuid();
    gid_t gid = getegid();
    char map[64];
    if (unshare(uid ? CLONE_NEWUSER | CLONE_NEWNS : CLONE_NEWNS))
        fail("make", uid ? "a user and mount namespace" : "a mount namespace");
    if (uid) {
        write_text("/proc/self/setgroups", "deny");
        snprintf(map, sizeof map, "%u %u 1", uid, uid);
        write_text("/proc/self/uid_map", map);
        snprintf(map, sizeof map, "%u %u 1", gid, gid);
        write_text("/proc/self/gid_map", map);
    }
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))
        fail("make private", "/");
}

static void give_up_root(uid_t uid, gid_t gid) {
    if (geteuid() != 0)
        return;
    if (setgroups(0, NULL) || setresgid(gid, gid, gid) || setresuid(uid, uid, uid))
        fail("become", "the sandbox user");
}

int launch(int argc, char **argv) {
    if (argc < 5)
        return 2;
    detach_from_host(atoi(argv[0]));
    uid_t uid = strtoul(argv[1], NULL, 10);
    gid_t gid = strtoul(argv[2], NULL, 10);
    if (chdir(argv[3]))
        fail("enter", argv[3]);
    int at = 5;
    for (; at + 1 < argc && !strcmp(argv[at], "-c"); at += 2)
        write_text(argv[at + 1], "0");
    private_mounts();
    for (; at + 2 < argc && !strcmp(argv[at], "-b"); at += 3)
        if (mount(argv[at + 1], argv[at + 2], NULL, MS_BIND | MS_REC, NULL))
            fail("bind", argv[at + 1]);
    if (mount("overlay", "merged", "overlay", MS_NOSUID | MS_NODEV, argv[4]))
        fail("mount an overlay with", argv[4]);
    if (at + 1 >= argc || strcmp(argv[at], "--"))
        return 2;
    give_up_root(uid, gid);
    execv(argv[at + 1], argv + at + 1);
    fail("run", argv[at + 1]);
    return 1;
}
