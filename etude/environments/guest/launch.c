/* The host side of one sandbox's start: joins its cgroup, makes a private mount namespace, mounts the workspace overlay
 * there, gives up root, and becomes bubblewrap.
 *
 * The overlay, and the sized tmpfs that holds its upper directory, are mounted after the namespace is made, so that no
 * other sandbox's namespace copies them and they disappear with the last process. Started by the backend with
 * posix_spawn; its errors go to standard error, which the backend keeps in a file and quotes.
 *
 *   launch PARENT UID GID DIRECTORY TMPFS_OPTIONS OVERLAY_OPTIONS
 *          [-c CGROUP_PROCS]... [-j CGROUP_PROCS]... [-n MOUNTS] [-b SOURCE STAGE]... [-t TMPFS_OPTIONS STAGE]...
 *          [-u FIRST [-l TREE STAGE]... [-r OVERLAY_OPTIONS] [-i UID GID NESTED]] -- PROGRAM ARGUMENT...
 *
 * Paths are relative to DIRECTORY; the tmpfs lands on `scratch`, the overlay on `merged`. -c groups are joined here; -j
 * groups are opened for the guest, which puts each command into them: the guest itself stays outside the limits of its
 * commands, so that it can still answer when they have used up everything. Each -b SOURCE is bound on its STAGE,
 * read-only with all below it, and each -t STAGE gets a tmpfs of its own: bubblewrap's have a size, but no limit on the
 * number of files.
 * A sandbox's users are the host's from FIRST on: each -l TREE is mounted on its STAGE as owned by such. One on an image
 * starts from the mount namespace MOUNTS of `hold`, -r lays a read-only overlay of its trees on `root`, and -i lets it run
 * among its users as UID and GID (the first two then only own its overlay).
 * All of DIRECTORY is then moved to /tmp, in this namespace: bubblewrap runs as a user who may not be able to reach the
 * real places, below somebody's home say. It lists every mount for each that it makes, so there are as few as can be. */
#include "host.h"

#include <grp.h>
#include <linux/keyctl.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

void fail(const char *what, const char *object) {
    fprintf(stderr, "cannot %s %s: %s\n", what, object, strerror(errno));
    _exit(1);
}

void write_text(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        fail("write", path);
    close(fd);
}

void detach_from_host(pid_t parent, int last_fd) {
    struct rlimit no_core = {NO_CORE, NO_CORE};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1); /* the controller died before the line above took effect */
    syscall(SYS_close_range, last_fd + 1, ~0U, 0);
    setrlimit(RLIMIT_CORE, &no_core);
    write_text("/proc/self/oom_score_adj", "500"); /* when the host runs out, sandboxes go before the trainer */
    syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL); /* refused where keyrings are off: nothing to leave then */
}

/* Root needs only a mount namespace; anyone else gains the right to mount by owning a user namespace. */
void private_mounts(void) {
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

/* DIRECTORY becomes a mount of its own, so that it can be moved with all that is mounted in it. */
static void mount_directory(const char *directory) {
    if (mount(".", ".", NULL, MS_BIND | MS_REC, NULL) || chdir(directory))
        fail("bind", directory);
}

static void show(const char *source, const char *stage) {
    struct mount_attr attributes = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
    if (mount(source, stage, NULL, MS_BIND | MS_REC, NULL))
        fail("bind", source);
    if (mount_setattr(AT_FDCWD, stage, AT_RECURSIVE, &attributes, sizeof attributes))
        fail("make read-only", source);
}

static void mount_workspace(uid_t uid, gid_t gid, const char *tmpfs, const char *overlay) {
    if (mount("tmpfs", "scratch", "tmpfs", MS_NOSUID | MS_NODEV, tmpfs))
        fail("mount a tmpfs with", tmpfs);
    if (mkdir("scratch/upper", 0755) || mkdir("scratch/work", 0755))
        fail("prepare", "the workspace");
    if (geteuid() == 0 && (chown("scratch/upper", uid, gid) || chown("scratch/work", uid, gid)))
        fail("give away", "the workspace");
    if (mount("overlay", "merged", "overlay", MS_NOSUID | MS_NODEV, overlay))
        fail("mount an overlay with", overlay);
}

static void give_up_root(uid_t uid, gid_t gid) {
    if (geteuid() != 0)
        return;
    if (setgroups(0, NULL) || setresgid(gid, gid, gid) || setresuid(uid, uid, uid))
        fail("become", "the sandbox user");
}

struct users {
    int range;
    uid_t uid;
    gid_t gid;
    const char *nested; /* NULL where it does not run among them */
};

static int map_users(int argc, char **argv, int at, struct users *users) {
    if (at + 1 >= argc || strcmp(argv[at], "-u"))
        return at;
    users->range = user_range(strtoul(argv[at + 1], NULL, 10));
    for (at += 2; at + 2 < argc && !strcmp(argv[at], "-l"); at += 3)
        mount_tree(argv[at + 1], argv[at + 2], users->range);
    if (at + 1 < argc && !strcmp(argv[at], "-r")) {
        if (mount("overlay", "root", "overlay", MS_RDONLY | MS_NOSUID | MS_NODEV, argv[at + 1]))
            fail("mount the image's root with", argv[at + 1]);
        at += 2;
    }
    if (at + 3 < argc && !strcmp(argv[at], "-i")) {
        users->uid = strtoul(argv[at + 1], NULL, 10);
        users->gid = strtoul(argv[at + 2], NULL, 10);
        users->nested = argv[at + 3];
        at += 4;
    }
    return at;
}

int launch(int argc, char **argv) {
    if (argc < 6)
        return 2;
    detach_from_host(atoi(argv[0]), CONTROL_FD);
    uid_t uid = strtoul(argv[1], NULL, 10);
    gid_t gid = strtoul(argv[2], NULL, 10);
    if (chdir(argv[3]))
        fail("enter", argv[3]);
    umask(022);
    int at = 6;
    for (; at + 1 < argc && !strcmp(argv[at], "-c"); at += 2)
        write_text(argv[at + 1], "0");
    for (int fd = CONTROL_FD + 1; at + 1 < argc && !strcmp(argv[at], "-j"); at += 2, fd++)
        if (open(argv[at + 1], O_WRONLY) != fd) /* the lowest free one, since all above CONTROL_FD were closed */
            fail("open", argv[at + 1]);
    if (at + 1 < argc && !strcmp(argv[at], "-n")) {
        join_mounts(argv[at + 1], argv[3]);
        at += 2;
    }
    private_mounts();
    mount_directory(argv[3]);
    for (; at + 2 < argc && !strcmp(argv[at], "-b"); at += 3)
        show(argv[at + 1], argv[at + 2]);
    umount2("/sys", MNT_DETACH); /* which may be a dozen mounts; nobody looks at it any more */
    for (; at + 2 < argc && !strcmp(argv[at], "-t"); at += 3)
        if (mount("tmpfs", argv[at + 2], "tmpfs", MS_NOSUID | MS_NODEV, argv[at + 1]))
            fail("mount a tmpfs with", argv[at + 1]);
    struct users users = {.range = -1};
    at = map_users(argc, argv, at, &users);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* which a change of user has undone */
    mount_workspace(uid, gid, argv[4], argv[5]);
    if (mount(".", "/tmp", NULL, MS_MOVE, NULL))
        fail("move", argv[3]);
    if (at + 1 >= argc || strcmp(argv[at], "--"))
        return 2;
    while (users.range >= 0 && waitpid(-1, NULL, 0) > 0)
        ; /* bubblewrap must not find a child it does not know */
    if (users.nested)
        enter_range(users.range, users.uid, users.gid, users.nested);
    else
        give_up_root(uid, gid);
    execv(argv[at + 1], argv + at + 1);
    fail("run", argv[at + 1]);
    return 1;
}
