/* The system-call filter under which everything in a sandbox runs, the agent included but for a machine's.
 *
 * It takes away what no program of a task needs and what kernel exploits begin with: mounting, further namespaces,
 * keyrings, tracing the kernel, loading code into it, setting clocks, sockets that see frames. Most of it the sandbox's
 * user may not do anyway; a filter holds also where a bug would let him.
 *
 * It is a list of refusals, since what databases, compilers, debuggers and JITs call is open-ended, and a machine on
 * which half of them break teaches a model nothing. But a call newer than the ones looked at here does not exist: a
 * kernel upgrade opens nothing that nobody has considered. ptrace stays, for debuggers and sanitizers: it reaches no
 * further than the sandbox's own processes, the agent not being dumpable. But nobody may be stopped at his end by whoever
 * traces him: SIGKILL does not move him on from there, and two who do it to each other stay until the machine is restarted.
 *
 * What the kernel lets a user do to all his processes, limits, priorities and the choice of processors, is refused for
 * process 1: the agent has the same user where there is only one, and in a machine process 1 is everybody's. */
#include "filter.h"
#include "guest.h"

#include <linux/audit.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
enum { ARCHITECTURE = AUDIT_ARCH_X86_64, X32_BIT = 0x40000000 };
#elif defined(__aarch64__)
enum { ARCHITECTURE = AUDIT_ARCH_AARCH64 };
#else
#error "no system-call filter for this machine: add its AUDIT_ARCH and look at the list below"
#endif

enum {
    NEWEST = 466,            /* removexattrat; numbers from 424 on are the same on every machine */
    IO_URING_SETUP = 425,    /* its requests pass by every filter */
    IO_URING_ENTER = 426,
    IO_URING_REGISTER = 427,
    OPEN_TREE = 428,         /* to 433: open_tree, move_mount, fsopen, fsconfig, fsmount, fspick */
    FSPICK = 433,
    CLONE3 = 435,            /* its flags lie in memory, where a filter cannot look; the C library then uses clone */
    MOUNT_SETATTR = 442,
    QUOTACTL_FD = 443,
    LISTMOUNT = 458,
    STATMOUNT = 457,
    MEMFD_SECRET = 447,
    LANDLOCK_CREATE_RULESET = 444,
    LANDLOCK_RESTRICT_SELF = 446,
    SCOPE_ABSTRACT_SOCKETS = 1,
    SCOPE_SIGNALS = 2,
    SETDELEG = F_SETLEASE + 16,
    IOPRIO_WHO_USER = 3,
    OLD_SETOPTIONS = 21,     /* of ptrace: what debuggers of before 2002 call */
};
static const uint32_t NAMESPACES = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER |
                                   CLONE_NEWPID | CLONE_NEWNET;
static const uint32_t TIME_NAMESPACE = 0x80; /* means it in unshare only: in clone it is part of a signal's number */

static const uint32_t REFUSED[] = {
    SYS_mount, SYS_umount2, SYS_pivot_root, MOUNT_SETATTR, STATMOUNT, LISTMOUNT, SYS_setns, SYS_swapon, SYS_swapoff,
    SYS_quotactl, QUOTACTL_FD, SYS_open_by_handle_at, SYS_fanotify_init,
    SYS_add_key, SYS_request_key, SYS_keyctl,
    SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_lookup_dcookie, SYS_kcmp, SYS_move_pages, SYS_migrate_pages,
    IO_URING_SETUP, IO_URING_ENTER, IO_URING_REGISTER, MEMFD_SECRET,
    SYS_kexec_load, SYS_init_module, SYS_finit_module, SYS_delete_module,
    SYS_clock_settime, SYS_settimeofday, SYS_clock_adjtime, SYS_adjtimex,
    SYS_reboot, SYS_syslog, SYS_acct, SYS_vhangup, SYS_sethostname, SYS_setdomainname, SYS_nfsservctl,
#ifdef SYS_kexec_file_load
    SYS_kexec_file_load,
#endif
#ifdef __x86_64__
    SYS_iopl, SYS_ioperm, SYS_uselib, SYS_ustat, SYS_sysfs, SYS__sysctl, SYS_create_module, SYS_get_kernel_syms,
    SYS_query_module, SYS_modify_ldt,
#endif
};

static void refuse(int error) {
    add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error, 0, 0);
}

static void allow(void) {
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
}

static void refuse_if(uint16_t test, uint32_t value, int error) {
    add(BPF_JMP | test | BPF_K, value, 0, 1);
    refuse(error);
}

/* Begins a block for one system call, which must end in a return; `end_block` closes it. */
static int block(uint32_t number) {
    add(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 0);
    return used - 1;
}

static void end_block(int start) {
    allow();
    filter[start].jf = used - start - 1;
}

static void check_flags(uint32_t number, uint32_t flags) {
    int start = block(number);
    load_argument(0);
    refuse_if(BPF_JSET, flags, EPERM);
    end_block(start);
}

/* Device nodes. FIFOs, sockets and plain files may be made. */
static void check_node(uint32_t number, int argument) {
    int start = block(number);
    load_argument(argument);
    add(BPF_ALU | BPF_AND | BPF_K, S_IFMT, 0, 0);
    refuse_if(BPF_JEQ, S_IFCHR, EPERM);
    refuse_if(BPF_JEQ, S_IFBLK, EPERM);
    end_block(start);
}

/* By number, and in a group; of a user, who is the agent too. */
static void check_priorities(uint32_t number, uint32_t of_user) {
    int start = block(number);
    load_argument(0);
    refuse_if(BPF_JEQ, of_user, EPERM);
    load_argument(1);
    refuse_if(BPF_JEQ, 1, EPERM);
    end_block(start);
}

static bool cores_are_off(void) {
    struct rlimit now;
    return !getrlimit(RLIMIT_CORE, &now) && now.rlim_max == NO_CORE;
}

/* Of prlimit64: a limit of 0 would have the kernel run the host's program for a core, where there is one. Who sets it is
 * told that it is done; who asks for it, with nothing new at an address of 0, is let through. */
static void keep_core_limit(void) {
    load_argument(1);
    add(BPF_JMP | BPF_JEQ | BPF_K, RLIMIT_CORE, 0, 5);
    load_argument(2);
    add(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 2);
    load(offsetof(struct seccomp_data, args) + 8 * 2 + 4);
    add(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0);
    refuse(0);
}

static void check_process_one(void) {
    static const uint32_t calls[] = {SYS_prlimit64, SYS_sched_setaffinity, SYS_sched_setscheduler, SYS_sched_setparam,
                                     SYS_sched_setattr};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        int start = block(calls[i]);
        load_argument(0);
        refuse_if(BPF_JEQ, 1, EPERM);
        if (calls[i] == SYS_prlimit64 && cores_are_off())
            keep_core_limit();
        end_block(start);
    }
    if (cores_are_off()) {
        int start = block(SYS_setrlimit);
        load_argument(0);
        refuse_if(BPF_JEQ, RLIMIT_CORE, 0);
        end_block(start);
    }
    check_priorities(SYS_setpriority, PRIO_USER);
    check_priorities(SYS_ioprio_set, IOPRIO_WHO_USER);
}

/* Who opens a file under a lease, the agent too, waits for its holder or fails. */
static void check_leases(void) {
    int start = block(SYS_fcntl);
    load_argument(1);
    refuse_if(BPF_JEQ, F_SETLEASE, EPERM);
    refuse_if(BPF_JEQ, SETDELEG, EPERM);
    end_block(start);
}

static void check_tracing(void) {
    static const uint32_t requests[] = {PTRACE_SEIZE, PTRACE_SETOPTIONS, OLD_SETOPTIONS};
    int start = block(SYS_ptrace);
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        load_argument(0);
        add(BPF_JMP | BPF_JEQ | BPF_K, requests[i], 0, 3);
        load_argument(3);
        refuse_if(BPF_JSET, PTRACE_O_TRACEEXIT, EPERM);
    }
    end_block(start);
}

static void refuse_unless(const uint32_t *values, int count, int error) {
    for (int i = 0; i < count; i++)
        add(BPF_JMP | BPF_JEQ | BPF_K, values[i], count - i, 0);
    refuse(error);
}

/* Streams and datagrams of the local, IPv4 and IPv6 families, by the protocols that programs use: asked for another, the
 * kernel loads a module that nobody on the host has looked at. And the one netlink protocol that getifaddrs(3), and so
 * half of all servers, asks for the addresses of `lo`. */
static void check_sockets(void) {
    static const uint32_t families[] = {AF_UNIX, AF_INET, AF_INET6};
    static const uint32_t protocols[] = {0, IPPROTO_TCP, IPPROTO_UDP, IPPROTO_ICMP, IPPROTO_ICMPV6};
    int start = block(SYS_socket);
    load_argument(0);
    add(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 4);
    load_argument(2);
    add(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1); /* NETLINK_ROUTE */
    allow();
    refuse(EAFNOSUPPORT);
    refuse_unless(families, 3, EAFNOSUPPORT);
    load_argument(1);
    add(BPF_ALU | BPF_AND | BPF_K, 0xf, 0, 0);
    refuse_if(BPF_JEQ, SOCK_RAW, EPERM);
    refuse_if(BPF_JEQ, SOCK_PACKET, EPERM);
    load_argument(0);
    add(BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 0, 1);
    allow();
    load_argument(1);
    add(BPF_ALU | BPF_AND | BPF_K, 0xf, 0, 0);
    refuse_if(BPF_JGT, SOCK_DGRAM, ESOCKTNOSUPPORT);
    load_argument(2);
    refuse_unless(protocols, 5, EPROTONOSUPPORT);
    end_block(start);
    start = block(SYS_socketpair); /* makes the sockets before it says that their family has no pairs */
    load_argument(0);
    refuse_unless(families, 1, EAFNOSUPPORT);
    end_block(start);
}

static void build(void) {
    load(offsetof(struct seccomp_data, arch));
    add(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
    refuse(ENOSYS); /* 32-bit programs: another table of calls, which nobody has looked at */
    load(offsetof(struct seccomp_data, nr));
#ifdef __x86_64__
    refuse_if(BPF_JGE, X32_BIT, ENOSYS);
#endif
    refuse_if(BPF_JGT, NEWEST, ENOSYS);
    refuse_if(BPF_JEQ, CLONE3, ENOSYS);
    for (uint32_t number = OPEN_TREE; number <= FSPICK; number++)
        refuse_if(BPF_JEQ, number, EPERM);
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++)
        refuse_if(BPF_JEQ, REFUSED[i], EPERM);
    check_flags(SYS_clone, NAMESPACES);
    check_flags(SYS_unshare, NAMESPACES | TIME_NAMESPACE);
    check_sockets();
    check_process_one();
    check_leases();
    check_tracing();
#ifdef SYS_mknod
    check_node(SYS_mknod, 1);
#endif
    check_node(SYS_mknodat, 2);
    allow();
}

/* Sockets without a path belong to the network: beside the host's, its display and its buses answer on them. A kernel
 * without these scopes (before 6.12, or without Landlock) refuses the set; that is told where it matters (local/outside.py).
 * A machine has the kernel to itself, and its commands must reach each other. */
void stay_apart(void) {
    struct {
        uint64_t files, ports, scopes;
    } rules = {.scopes = SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS};
    int set = syscall(LANDLOCK_CREATE_RULESET, &rules, sizeof rules, 0);
    if (set < 0)
        return;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(LANDLOCK_RESTRICT_SELF, set, 0)) {
        fprintf(stderr, "cannot keep from the sockets and processes of others: %s\n", strerror(errno));
        _exit(1);
    }
    close(set);
}

void confine(void) {
    build();
    struct sock_fprog program = {used, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        fprintf(stderr, "cannot filter system calls: %s\n", strerror(errno));
        _exit(1);
    }
}
