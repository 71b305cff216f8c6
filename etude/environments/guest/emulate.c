/* The host side of a virtual machine's start: gives up what the emulator does not need, and becomes it.
 *
 * A guest that breaks out of its machine finds itself a user of its own without network, that can gain no rights and
 * dies with the controller. Open descriptors up to LAST_FD are the emulator's; all others are closed.
 *
 *   emulate PARENT UID GID LAST_FD FILE_MAX [-k] [-j CGROUP_PROCS]... -- PROGRAM ARGUMENT...
 *
 * No file it writes may grow beyond FILE_MAX bytes.
 * With -k it may use the host's virtualization: root gives it a /dev/kvm of its own, in a mount namespace of its own. */
#include "host.h"

#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

static void own_kvm(uid_t uid) {
    struct stat info;
    if (stat("/dev/kvm", &info))
        fail("find", "/dev/kvm");
    private_mounts();
    if (mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=64k,mode=755") ||
        mknod("/dev/shm/kvm", S_IFCHR | 0600, info.st_rdev) || chown("/dev/shm/kvm", uid, -1) ||
        mount("/dev/shm/kvm", "/dev/kvm", NULL, MS_BIND, NULL) || umount2("/dev/shm", MNT_DETACH))
        fail("hand over", "/dev/kvm");
}

int emulate(int argc, char **argv) {
    if (argc < 7)
        return 2;
    pid_t parent = atoi(argv[0]);
    uid_t uid = strtoul(argv[1], NULL, 10);
    gid_t gid = strtoul(argv[2], NULL, 10);
    rlim_t file_max = strtoull(argv[4], NULL, 10);
    struct rlimit largest = {file_max, file_max};
    int at = 5;
    bool kvm = !strcmp(argv[at], "-k");
    at += kvm;
    detach_from_host(parent, atoi(argv[3]));
    for (; at + 1 < argc && !strcmp(argv[at], "-j"); at += 2)
        write_text(argv[at + 1], "0");
    if (at + 1 >= argc || strcmp(argv[at], "--"))
        return 2;
    if (geteuid() == 0) {
        if (unshare(CLONE_NEWNET | CLONE_NEWIPC))
            fail("make", "a network namespace");
        if (kvm)
            own_kvm(uid);
        if (setgroups(0, NULL) || setresgid(gid, gid, gid) || setresuid(uid, uid, uid))
            fail("become", "the machine's user");
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* changing the user took it away */
        if (getppid() != parent)
            _exit(1);
    }
    setrlimit(RLIMIT_FSIZE, &largest);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    execv(argv[at + 1], argv + at + 1);
    fail("run", argv[at + 1]);
    return 1;
}
