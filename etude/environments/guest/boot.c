/* Process 1 of a virtual machine, before it serves: makes of a bare kernel what a sandbox is.
 *
 * The root is the image, read-only on the machine's only disk, under an overlay whose changes live in a sized tmpfs.
 * Commands get a control group with the machine's limits on memory and processes, a /dev with harmless devices only, and
 * no capability, whoever they are; process 1 keeps the two that a resume needs (see resume.c), and nothing else. The
 * modules it loads, and this program, are all there is in the initial file system. What goes wrong is said on the console.
 *
 * The line to the controller is the virtio-serial port, or, where PORT is not 0, a call on that port of vsock (line.c).
 *
 *   boot DISK_BYTES MEMORY_BYTES UID GID WORKSPACE PORT */
#include "host.h"
#include "machine.h"

#include <dirent.h>
#include <glob.h>
#include <grp.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/klog.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>

enum { SETTLE_MS = 10000, SECUREBITS_NOROOT_LOCKED = 3, CONSOLE_OFF = 6 };

static void mount_on(const char *source, const char *target, const char *kind, unsigned long flags, const char *options) {
    mkdir(target, 0755);
    if (mount(source, target, kind, flags, options))
        fail("mount", target);
}

static void console(void) {
    mount_on("dev", "/dev", "devtmpfs", MS_NOSUID, "mode=755");
    int fd = open("/dev/console", O_RDWR);
    for (int to = 0; fd >= 0 && to < 3; to++)
        dup2(fd, to);
}

static void load_modules(void) {
    struct dirent **names;
    int count = scandir("/modules", &names, NULL, alphasort); /* their names say the order */
    if (count < 0 || chdir("/modules"))
        fail("read", "/modules");
    for (int i = 0; i < count; i++) {
        if (names[i]->d_name[0] == '.')
            continue;
        int fd = open(names[i]->d_name, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST))
            fail("load the module", names[i]->d_name);
        close(fd);
        unlink(names[i]->d_name); /* it lies in memory */
    }
}

/* The port that leads to the controller: its number depends on the order in which the kernel found its devices. */
static void open_port(void) {
    glob_t found;
    for (int waited = 0; glob("/dev/vport*p*", 0, NULL, &found); waited += 10) {
        if (waited > SETTLE_MS)
            errno = ENODEV, fail("find", "the virtio-serial port");
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    int fd = open(found.gl_pathv[0], O_RDWR);
    if (fd < 0 || dup2(fd, CONTROL_FD) < 0)
        fail("open", found.gl_pathv[0]);
    if (fd != CONTROL_FD)
        close(fd);
}

static void limit_commands(const char *memory) {
    mount_on("cgroup", "/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    write_text("/cgroup/cgroup.subtree_control", "+memory +pids");
    if (mkdir("/cgroup/commands", 0755))
        fail("make", "/cgroup/commands");
    write_text("/cgroup/commands/memory.max", memory);
    if (open("/cgroup/commands/cgroup.procs", O_WRONLY) != CONTROL_FD + 1)
        fail("open", "/cgroup/commands/cgroup.procs");
    int group = open("/cgroup/commands", O_PATH | O_DIRECTORY);
    resume_prepare(group);
    close(group);
}

static void enter_image(const char *disk) {
    char options[96];
    snprintf(options, sizeof options, "size=%s,nr_inodes=%llu,mode=755", disk, strtoull(disk, NULL, 10) / 4096);
    mount_on("/dev/vda", "/image", "erofs", MS_RDONLY, NULL);
    mount_on("disk", "/disk", "tmpfs", MS_NODEV, options);
    if (mkdir("/disk/upper", 0755) || mkdir("/disk/work", 0755))
        fail("prepare", "/disk");
    mount_on("overlay", "/root", "overlay", MS_NODEV,
             "lowerdir=/image,upperdir=/disk/upper,workdir=/disk/work,index=off,metacopy=off,redirect_dir=off");
    if (chdir("/root") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"))
        fail("enter", "the image");
}

static void make_devices(const char *shared) {
    static const struct {
        const char *name;
        int minor;
    } devices[] = {{"null", 3}, {"zero", 5}, {"full", 7}, {"random", 8}, {"urandom", 9}};
    char path[32];
    mount_on("dev", "/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=64k,mode=755");
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        snprintf(path, sizeof path, "/dev/%s", devices[i].name);
        if (mknod(path, S_IFCHR | 0666, makedev(1, devices[i].minor)) || chmod(path, 0666))
            fail("make", path);
    }
    if (mknod("/dev/tty", S_IFCHR | 0666, makedev(5, 0)) || symlink("pts/ptmx", "/dev/ptmx") ||
        symlink("/proc/self/fd", "/dev/fd") || symlink("fd/0", "/dev/stdin") || symlink("fd/1", "/dev/stdout") ||
        symlink("fd/2", "/dev/stderr"))
        fail("fill", "/dev");
    mount_on("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620");
    mount_on("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, shared);
    if (mount(NULL, "/dev", NULL, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NOEXEC, NULL))
        fail("close", "/dev");
}

static void make_system(unsigned long long disk) {
    static const char *const closed[] = {"/proc/1",   "/proc/sys", "/proc/sysrq-trigger",
                                         "/proc/irq", "/proc/bus", "/proc/fs"};
    char whole[48], part[48];
    snprintf(whole, sizeof whole, "size=%llu,mode=1777", disk / 2);
    snprintf(part, sizeof part, "size=%llu,mode=1777", disk / 8);
    mount_on("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    write_text("/proc/sys/user/max_user_namespaces", "0");
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++)
        if (mount(closed[i], closed[i], NULL, MS_BIND, NULL) == 0 &&
            mount(NULL, closed[i], NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL))
            fail("close", closed[i]);
    mount_on("sys", "/sys", "sysfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    mount_on("tmp", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, whole);
    mount_on("run", "/run", "tmpfs", MS_NOSUID | MS_NODEV, part);
    make_devices(part);
}

/* The places an agent may write in, its own; the image's directory for work stands in for the workspace. */
static void make_places(uid_t uid, gid_t gid, const char *workspace) {
    const char *places[] = {"/workspace", "/tests", "/logs", "/home/agent", "/run", workspace};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (make_parents(places[i]) || (mkdir(places[i], 0755) && errno != EEXIST) || chown(places[i], uid, gid))
            fail("make", places[i]);
    }
    if (strcmp(workspace, "/workspace") && mount(workspace, "/workspace", NULL, MS_BIND, NULL))
        fail("show as /workspace", workspace);
}

static void raise_loopback(void) {
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &lo))
        fail("raise", "lo");
    close(fd);
}

static void become_user(uid_t uid, gid_t gid) {
    for (int capability = 0; capability <= CAP_LAST_CAP; capability++)
        prctl(PR_CAPBSET_DROP, capability); /* fails only for what this kernel does not know */
    if (prctl(PR_SET_SECUREBITS, SECUREBITS_NOROOT_LOCKED) || prctl(PR_SET_KEEPCAPS, 1) || setgroups(0, NULL) ||
        setresgid(gid, gid, gid) || setresuid(uid, uid, uid) || set_capabilities(0, RESUME_CAPABILITIES) ||
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        fail("become", "the sandbox's user");
}

int boot(int argc, char **argv) {
    static char *const limits[] = {"0", "0", "1", "machine", NULL};
    if (argc < 6)
        return 2;
    uid_t uid = strtoul(argv[2], NULL, 10);
    gid_t gid = strtoul(argv[3], NULL, 10);
    unsigned port = strtoul(argv[5], NULL, 10);
    umask(0);
    console();
    load_modules();
    if (port)
        line_reserve();
    else
        open_port();
    limit_commands(argv[1]);
    raise_loopback();
    enter_image(argv[0]);
    make_system(strtoull(argv[0], NULL, 10));
    make_places(uid, gid, argv[4]);
    if (sethostname("sandbox", 7))
        fail("set", "the name of the machine");
    if (port)
        line_listen(port);
    klogctl(CONSOLE_OFF, NULL, 0); /* what commands make the kernel complain of would fill the host's log */
    commands_give_way();
    become_user(uid, gid);
    if (port && !line_accept())
        fail("answer", "the controller's call");
    return serve(4, (char **)limits);
}
