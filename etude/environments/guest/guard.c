/* Stops every call that could make or change a name, or open a file to write, and lets a thread of process 1 make it.
 *
 * A filter can see numbers and flags, not paths; and a call that were let go on after a look at its path could be given
 * another path meanwhile. So it is never let go on: the thread reads the path once, finds what it means, asks planted.c
 * and makes the call itself (seccomp_unotify(2), SECCOMP_ADDFD_FLAG_SEND). One thread answers all, one after the other,
 * so nothing that is judged changes before it is made. The filter is the main thread's and inherited by every command:
 * file tools are judged as commands are. The thread ends only with process 1, and every process here with that.
 *
 * Body of a request of kind g: the rules (planted.c); none, to be told how many calls were made, and refused, u64 each. */
#include "filter.h"
#include "guard.h"

#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum {
    WAIT_KILLABLE = 1 << 5,   /* Linux 5.19: a signal does not make a call seem to have been made twice */
    RETRY_MS = 10, MAX_WAITING = 64, NOTES = 5, NOTE_SIZE = 200, TOLD_APART = 16, MAX_ANCESTORS = 100,
};
static const uint32_t SUBVOLUMES[] = {0x5000940e, 0x50009401, 0x50009417, 0x50009418, /* btrfs: create, snapshot */
                                      0x4020bc10};                                    /* bcachefs: create, snapshot */

static struct waiting {
    struct call call;
    int fd, flags;
} waiting[MAX_WAITING];

static int listener = -1, waiting_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what both threads touch, which follows */
static pthread_cond_t begun = PTHREAD_COND_INITIALIZER;
static uint64_t counts[2]; /* made, refused */
static struct refused { /* to the processes of one command */
    pid_t leader;
    unsigned count;
    char paths[NOTES][NOTE_SIZE];
} refused[TOLD_APART];

/* The filter ------------------------------------------------------------------------------------------------------ */

static void answer_if(uint16_t test, uint32_t value, uint32_t answer) {
    add(BPF_JMP | test | BPF_K, value, 0, 1);
    add(BPF_RET | BPF_K, answer, 0, 0);
}

/* Asks us when the argument has one of `bits` and none of `unless`. */
static void ask_if_any(uint32_t number, int argument, uint32_t bits, uint32_t unless) {
    add(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 6);
    load_argument(argument);
    answer_if(BPF_JSET, unless, SECCOMP_RET_ALLOW);
    answer_if(BPF_JSET, bits, SECCOMP_RET_USER_NOTIF);
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
}

static void build(void) {
    static const uint32_t asked[] = {
#ifdef SYS_open
        SYS_creat, SYS_mkdir, SYS_mknod, SYS_symlink, SYS_link, SYS_rename, SYS_unlink,
#endif
#ifdef SYS_renameat
        SYS_renameat,
#endif
        OPENAT2, SYS_unlinkat, SYS_mkdirat, SYS_mknodat, SYS_symlinkat, SYS_linkat, SYS_renameat2, SYS_truncate, SYS_bind,
    };
    const uint32_t writes = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC, runs = 0111;
    load(offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        answer_if(BPF_JEQ, asked[i], SECCOMP_RET_USER_NOTIF);
#ifdef SYS_open
    ask_if_any(SYS_open, 1, writes, O_PATH);
    ask_if_any(SYS_chmod, 1, runs, 0);
#endif
    ask_if_any(SYS_openat, 2, writes, O_PATH);
    ask_if_any(SYS_fchmod, 1, runs, 0);
    ask_if_any(SYS_fchmodat, 2, runs, 0);
    ask_if_any(FCHMODAT2, 2, runs, 0);
    /* a program that confines itself so would not be: its calls are made by us */
    answer_if(BPF_JEQ, SYS_landlock_create_ruleset, SECCOMP_RET_ERRNO | EOPNOTSUPP);
    add(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 5);
    load_argument(0);
    add(BPF_JMP | BPF_JEQ | BPF_K, PR_SET_DUMPABLE, 0, 3);
    load_argument(1);
    answer_if(BPF_JEQ, 0, SECCOMP_RET_ERRNO); /* 0: done. We read the memory of no caller that hides it */
    load(offsetof(struct seccomp_data, nr));
    add(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 1 + 2 * sizeof SUBVOLUMES / sizeof *SUBVOLUMES);
    load_argument(1);
    for (size_t i = 0; i < sizeof SUBVOLUMES / sizeof *SUBVOLUMES; i++)
        answer_if(BPF_JEQ, SUBVOLUMES[i], SECCOMP_RET_ERRNO | EPERM); /* they make names, and bring trees along */
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
}

/* Answers --------------------------------------------------------------------------------------------------------- */

static void send(const struct call *call, long got, uint32_t flags) {
    struct seccomp_notif_resp response = {.id = call->id, .flags = flags};
    response.val = got < 0 ? 0 : got;
    response.error = got < 0 ? got : 0;
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response); /* fails only where the caller has gone */
}

bool guard_give(const struct call *call, int fd, int flags) {
    struct seccomp_notif_addfd given = {.id = call->id, .flags = SECCOMP_ADDFD_FLAG_SEND, .srcfd = fd};
    given.newfd_flags = flags & O_CLOEXEC;
    if (!(flags & O_NONBLOCK))
        fcntl(fd, F_SETFL, flags & (O_APPEND | O_DIRECT | O_NOATIME | O_ASYNC));
    int got = ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, &given), error = errno;
    close(fd);
    errno = error;
    return got >= 0;
}

int guard_wait_to_open(const struct call *call, int fd, int flags) {
    if (waiting_count == MAX_WAITING) {
        close(fd);
        return ENFILE;
    }
    waiting[waiting_count++] = (struct waiting){*call, fd, flags};
    return 0;
}

static bool still_waits(const struct waiting *one) {
    char link[40];
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &one->call.id))
        return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", one->fd);
    int fd = open(link, one->flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 && (errno == ENXIO || errno == EWOULDBLOCK))
        return true;
    if (fd < 0 || !guard_give(&one->call, fd, one->flags))
        send(&one->call, -errno, 0);
    return false;
}

static void try_again(void) {
    for (int i = 0; i < waiting_count;)
        if (still_waits(waiting + i))
            i++;
        else {
            close(waiting[i].fd);
            waiting[i] = waiting[--waiting_count];
        }
}

/* The command that a process belongs to: its session's leader, or, where a process has begun a session of its own, that
 * of its ancestors. */
static pid_t leader_of(pid_t pid) {
    for (int i = 0; i < MAX_ANCESTORS; i++) {
        pid_t parent = status_of(pid, "\nPPid:", 10);
        if (parent <= 1)
            break;
        pid = parent;
    }
    return getsid(pid);
}

/* Of several at a time the one that was begun last is kept; the others go on, and less is told of them. */
static struct refused *refused_to(pid_t leader) {
    static unsigned next;
    for (int i = 0; i < TOLD_APART; i++)
        if (refused[i].leader == leader)
            return refused + i;
    struct refused *found = refused + next++ % TOLD_APART;
    *found = (struct refused){.leader = leader};
    return found;
}

static void keep(struct refused *to, const char *path) {
    char shown[NOTE_SIZE];
    snprintf(shown, sizeof shown, "%s", path);
    for (char *c = shown; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = '?'; /* a name says nothing in our words */
    for (unsigned i = 0; i < to->count && i < NOTES; i++)
        if (!strcmp(to->paths[i], shown))
            return;
    if (to->count < NOTES)
        memcpy(to->paths[to->count], shown, sizeof shown);
    to->count++;
}

void guard_note(pid_t pid, const char *path) {
    pid_t leader = pid == 1 || !path ? 0 : leader_of(pid); /* who asked us hears of it in the answer */
    pthread_mutex_lock(&lock);
    counts[1]++;
    if (leader > 0)
        keep(refused_to(leader), path);
    pthread_mutex_unlock(&lock);
}

size_t guard_says(pid_t leader, char *text, size_t size) {
    int at = 0;
    pthread_mutex_lock(&lock);
    for (struct refused *to = refused; to < refused + TOLD_APART; to++) {
        if (leader <= 0 || to->leader != leader)
            continue;
        at = snprintf(text, size, "\n[not written, because programs on the user's machine obey it, and only the user may write it:");
        for (unsigned i = 0; i < to->count && i < NOTES; i++)
            at += snprintf(text + at, size - at, "%s %s", i ? "," : "", to->paths[i]);
        if (to->count > NOTES)
            at += snprintf(text + at, size - at, " and %u more", to->count - NOTES);
        at += snprintf(text + at, size - at, ". Below /tmp it may be written. Do the rest without it, and ask "
                       "the user to write it. If git stopped halfway, ask the user to look at `git status`; `/undo` brings files back]\n");
        *to = (struct refused){0};
    }
    pthread_mutex_unlock(&lock);
    return at;
}

/* Our own thread's openat2 is let go on: nobody else writes our memory. Of others it does not exist, and the C library
 * and programs then do without. */
static void answer(const struct call *call) {
    if (call->number == OPENAT2)
        return send(call, call->pid == 1 ? 0 : -ENOSYS, call->pid == 1 ? SECCOMP_USER_NOTIF_FLAG_CONTINUE : 0);
    pthread_mutex_lock(&lock);
    counts[0]++;
    pthread_mutex_unlock(&lock);
    long got = guard_perform(call);
    planted_done();
    if (got != ANSWERED)
        send(call, got, 0);
}

static void *answer_all(void *unused) {
    static union {
        struct seccomp_notif notice;
        char room[4096]; /* a newer kernel's may be larger */
    } next;
    unshare(CLONE_FS); /* an umask and a directory of this thread's own */
    pthread_mutex_lock(&lock);
    while (listener < 0)
        pthread_cond_wait(&begun, &lock);
    pthread_mutex_unlock(&lock);
    for (;;) {
        if (waiting_count && poll(&(struct pollfd){listener, POLLIN, 0}, 1, RETRY_MS) < 1) {
            try_again();
            continue;
        }
        memset(&next, 0, sizeof next);
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &next))
            continue; /* the caller was killed meanwhile */
        struct call call = {.id = next.notice.id, .pid = next.notice.pid, .number = next.notice.data.nr};
        memcpy(call.arguments, next.notice.data.args, sizeof call.arguments);
        answer(&call);
        if (waiting_count)
            try_again();
    }
    return unused;
}

/* Begin ----------------------------------------------------------------------------------------------------------- */

/* A process that is not us opens a file: its memory can be read, and it gets a descriptor. */
static int try_it(void) {
    int state = 0;
    pid_t child = fork();
    if (!child) {
        prctl(PR_SET_DUMPABLE, 1);
        int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
        _exit(fd < 0 ? errno : 0);
    }
    if (child < 0 || waitpid(child, &state, 0) != child || !WIFEXITED(state))
        return child < 0 ? errno : EIO;
    return WEXITSTATUS(state);
}

static int begin(const char *rules, size_t size) {
    pthread_t thread;
    uint64_t wake_here = 1;
    int error = listener >= 0 ? EALREADY : fcntl(TURNS_FD, F_SETFD, FD_CLOEXEC) ? errno : planted_rules(rules, size);
    if (!error)
        error = pthread_create(&thread, NULL, answer_all, NULL);
    if (error)
        return error;
    build();
    struct sock_fprog program = {used, filter};
    int fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE, &program);
    if (fd < 0 && errno == EINVAL)
        fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    if (fd < 0)
        return errno;
    ioctl(fd, _IOW('!', 4, uint64_t), &wake_here); /* Linux 6.6: the one who answers runs where the caller ran */
    pthread_mutex_lock(&lock);
    listener = fd;
    pthread_cond_signal(&begun);
    pthread_mutex_unlock(&lock);
    return try_it();
}

bool guarding(void) {
    pthread_mutex_lock(&lock);
    bool begun_by_now = listener >= 0;
    pthread_mutex_unlock(&lock);
    return begun_by_now;
}

void guard(const struct request *request) {
    int status = request->size ? begin(request->body, request->size) : 0;
    pthread_mutex_lock(&lock);
    uint64_t now[2] = {counts[0], counts[1]};
    pthread_mutex_unlock(&lock);
    reply(request->id, status, &(struct piece){now, status ? 0 : sizeof now}, 1);
}
