/* What runs in the sandbox, read from /proc: killing a session, stopping everyone, counting what they use.
 *
 * Owns the sandbox's clock: it stands still while everyone is stopped. Answer of metrics: u64 CPU in microseconds, u64
 * bytes of memory, u32 processes, u64 bytes of disk, u64 milliseconds since the start. */
#include "guest.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <time.h>

enum {
    KERNEL_THREAD = 0x200000, /* PF_KTHREAD: seen in a machine of its own */
    STOP_ROUNDS = 1000,       /* of a millisecond or more */
};

struct process {
    int pid, session;
    char state; /* a letter, as in ps(1) */
    uint64_t ticks; /* of CPU, its own and of the children it has waited for */
};

static int64_t started, stopped_at, stood_still;
static bool by_signal;
static pid_t *kept; /* who was stopped before we stopped everyone */
static size_t kept_count;
static uint64_t used_before; /* CPU in microseconds, when this sandbox started */

static int64_t monotonic_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

int64_t now_ms(void) {
    return (stopped_at ? stopped_at : monotonic_ms()) - stood_still;
}

bool everyone_is_stopped(void) {
    return stopped_at;
}

static bool slurp(int pid, const char *file, char *text, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, size - 1);
    if (fd >= 0)
        close(fd);
    text[got > 0 ? got : 0] = 0;
    return got > 0;
}

/* False for one that has ended since it was listed. A name may hold anything, so its last parenthesis counts. */
static bool look(int pid, struct process *process) {
    char text[1024], *fields;
    unsigned long long own[2], children[2];
    unsigned flags;
    if (!slurp(pid, "stat", text, sizeof text) || !(fields = strrchr(text, ')')))
        return false;
    process->pid = pid;
    if (sscanf(fields + 1, " %*c %*d %*d %d %*d %*d %u %*u %*u %*u %*u %llu %llu %llu %llu", &process->session, &flags,
               own, own + 1, children, children + 1) != 6 ||
        flags & KERNEL_THREAD)
        return false;
    process->state = fields[2];
    process->ticks = own[0] + own[1] + children[0] + children[1];
    return true;
}

static void each_process(void (*visit)(struct process *process, void *context), void *context) {
    struct process process;
    DIR *processes = opendir("/proc");
    for (struct dirent *entry; processes && (entry = readdir(processes));) {
        int pid = atoi(entry->d_name);
        if (pid > 1 && look(pid, &process))
            visit(&process, context);
    }
    if (processes)
        closedir(processes);
}

static void kill_if_of(struct process *process, void *session) {
    if (process->session == *(pid_t *)session)
        kill(process->pid, SIGKILL);
}

/* The session, not only the group: a shell with job control or timeout(1) puts children in groups of their own. */
void kill_session(pid_t session) {
    each_process(kill_if_of, &session);
    kill(-session, SIGKILL);
}

static void note_if_of(struct process *process, void *session) {
    if (process->session == *(pid_t *)session && process->state != 'Z' && process->state != 'X')
        *(pid_t *)session = 0;
}

/* Killed processes are there until the kernel has ended them: a moment, unless a disk holds them. */
void await_session_end(pid_t session) {
    for (int tries = 0; tries < 100; tries++) {
        pid_t sought = session;
        each_process(note_if_of, &sought);
        if (sought == session)
            return;
        usleep(1000);
    }
}

static void note_if_stopped(struct process *process, void *context) {
    (void)context;
    if (process->state != 'T')
        return;
    pid_t *more = realloc(kept, (kept_count + 1) * sizeof *kept);
    if (more) {
        kept = more;
        kept[kept_count++] = process->pid;
    }
}

static void let_go_on(struct process *process, void *context) {
    (void)context;
    for (size_t i = 0; i < kept_count; i++)
        if (kept[i] == process->pid)
            return;
    kill(process->pid, SIGCONT);
}

/* Whoever waits in the kernel (D) sees that he is stopped before he goes on. */
static void note_if_running(struct process *process, void *running) {
    if (process->state == 'R' || process->state == 'S')
        *(bool *)running = true;
}

/* Processes may let each other go on faster than they are stopped; not all of them, in the end, unless they mean to. */
static int stop_by_signal(void) {
    for (int round = 0; round < STOP_ROUNDS; round++) {
        bool running = false;
        kill(-1, SIGSTOP); /* fails only when there is nobody, which is as good */
        each_process(note_if_running, &running);
        if (!running)
            return 0;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return EBUSY;
}

/* So that the host may copy the files, or until it has time for us again. The body's first byte, where there is one,
 * says that the host stops the processes itself: only the clock is ours then. SIGSTOP cannot be caught; who was stopped
 * before, by the task, is remembered, to be left so. EBUSY where they would not all stand still. */
void stop_everyone(const struct request *request) {
    int status = 0;
    if (!stopped_at) {
        by_signal = !request->size || !request->body[0];
        kept_count = 0;
        if (by_signal) {
            each_process(note_if_stopped, NULL);
            status = stop_by_signal();
        }
        stopped_at = monotonic_ms();
    }
    reply(request->id, status, NULL, 0);
}

void continue_everyone(const struct request *request) {
    if (stopped_at) {
        if (by_signal)
            each_process(let_go_on, NULL);
        stood_still += monotonic_ms() - stopped_at;
        stopped_at = 0;
    }
    reply(request->id, 0, NULL, 0);
}

struct __attribute__((packed)) totals {
    uint64_t cpu_us, memory;
    uint32_t processes;
    uint64_t disk, uptime_ms;
};

static void add(struct process *process, void *context) {
    struct totals *totals = context;
    char text[128];
    if (process->session == 0)
        return; /* a thread of the kernel's, which a VM shows */
    unsigned long long resident = 0, shared = 0;
    if (slurp(process->pid, "statm", text, sizeof text) && sscanf(text, "%*u %llu %llu", &resident, &shared) == 2)
        totals->memory += (resident - shared) * sysconf(_SC_PAGESIZE);
    totals->cpu_us += process->ticks * (1000000 / sysconf(_SC_CLK_TCK));
    totals->processes++;
}

static struct totals count(void) {
    struct totals totals = {.uptime_ms = monotonic_ms() - started};
    struct rusage ended;
    each_process(add, &totals);
    getrusage(RUSAGE_CHILDREN, &ended);
    totals.cpu_us += (ended.ru_utime.tv_sec + ended.ru_stime.tv_sec) * 1000000LL;
    totals.cpu_us += ended.ru_utime.tv_usec + ended.ru_stime.tv_usec;
    return totals;
}

void processes_start(void) {
    started = monotonic_ms();
    used_before = count().cpu_us;
}

void metrics(const struct request *request) {
    struct statvfs disk;
    struct totals totals = count();
    totals.cpu_us -= totals.cpu_us < used_before ? totals.cpu_us : used_before;
    if (machine_memory() >= 0)
        totals.memory = machine_memory();
    if (statvfs("/workspace", &disk) == 0)
        totals.disk = (uint64_t)(disk.f_blocks - disk.f_bfree) * disk.f_frsize;
    reply(request->id, 0, &(struct piece){&totals, sizeof totals}, 1);
}
