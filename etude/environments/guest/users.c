/* What the launcher does about users: those of a sandbox as a range of the host's, and trees mounted so that their owners
 * come out right in that range. Runs on the host, as root, before anything of the sandbox does. */
#include "host.h"

#include <grp.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { USERS = 65536 };

static void write_map(pid_t process, const char *name, unsigned first) {
    char path[64], map[64];
    snprintf(path, sizeof path, "/proc/%d/%s", process, name);
    snprintf(map, sizeof map, "0 %u %u", first, USERS);
    write_text(path, map);
}

static pid_t hold_namespace(void) {
    pid_t launcher = getpid(), holder = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
    if (holder)
        return holder;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (getppid() == launcher) /* it may have been killed before the line above */
        pause();
    _exit(0);
}

/* A user namespace in which the users 0..65535 are the host's FIRST..; only the returned descriptor keeps it. The kernel
 * counts what is used in it also as used by who made it, so that is FIRST; root where nobody else may make any. */
int user_range(unsigned first) {
    char path[64];
    if (setresuid(-1, first, -1))
        fail("become", "a user of the range");
    pid_t holder = hold_namespace();
    if (setresuid(-1, 0, -1))
        fail("become", "root again");
    if (holder < 0)
        holder = hold_namespace();
    if (holder < 0)
        fail("make", "a user namespace");
    write_map(holder, "uid_map", first);
    write_map(holder, "gid_map", first);
    snprintf(path, sizeof path, "/proc/%d/ns/user", holder);
    int users = open(path, O_RDONLY | O_CLOEXEC);
    if (users < 0)
        fail("open", path);
    kill(holder, SIGKILL); /* it ends while its maker goes on, who reaps it later */
    return users;
}

/* Shows the tree `source` at `stage`, read-only, its owners shifted into the range `users`. */
void mount_tree(const char *source, const char *stage, int users) {
    struct mount_attr attributes = {
        .attr_set = MOUNT_ATTR_IDMAP | MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, .userns_fd = users};
    int tree = open_tree(AT_FDCWD, source, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (tree < 0)
        fail("reach the tree", source);
    if (mount_setattr(tree, "", AT_EMPTY_PATH, &attributes, sizeof attributes))
        fail("map the owners (its file system must support idmapped mounts) of", source);
    if (move_mount(tree, "", AT_FDCWD, stage, MOVE_MOUNT_F_EMPTY_PATH))
        fail("mount the tree", source);
    close(tree);
}

/* Tries whether what lies in DIRECTORY can be shown, at STAGE below it, as owned by a range: ends with 0 where it can.
 *
 *   maps FIRST DIRECTORY STAGE */
int maps(int argc, char **argv) {
    if (argc != 3 || chdir(argv[1]))
        return 2;
    private_mounts();
    mount_tree(".", argv[2], user_range(strtoul(argv[0], NULL, 10)));
    return 0;
}

/* Goes on in the mount namespace of another process, where images are mounted, and in the same directory. */
void join_mounts(const char *namespace, const char *directory) {
    int mounts = open(namespace, O_RDONLY | O_CLOEXEC);
    if (mounts < 0 || setns(mounts, CLONE_NEWNS))
        fail("enter the image mounts", namespace);
    close(mounts);
    if (chdir(directory))
        fail("enter", directory);
}

/* Becomes a user of the range. `nested` is how many user namespaces may be made below it, "-" for the host's limit. */
void enter_range(int users, uid_t uid, gid_t gid, const char *nested) {
    if (setns(users, CLONE_NEWUSER))
        fail("enter", "the image's user namespace");
    close(users);
    if (setgroups(0, NULL) || setresgid(gid, gid, gid) || setresuid(uid, uid, uid))
        fail("become", "the image's user");
    if (strcmp(nested, "-"))
        write_text("/proc/sys/user/max_user_namespaces", nested);
}
