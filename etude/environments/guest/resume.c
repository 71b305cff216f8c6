/* What a virtual machine must be told before anything else after its start: it may be one of many copies of one memory.
 *
 * Copies share the state of their random numbers and the time of their capture. A resume adds entropy that the
 * controller drew for this copy alone, sets the clock, the limit on processes, the sandbox's name (/run/sandbox-id) and
 * the environment of its commands. Commands stand still meanwhile: a machine is captured, and paused, while they do.
 *
 * Body: u64 nanoseconds since 1970, u32 processes, 64 bytes of entropy, name, NUL, then NAME=VALUE, NUL for each
 * variable. */
#include "machine.h"

#include <linux/random.h>
#include <sys/ioctl.h>
#include <time.h>

enum { ENTROPY = 64, HEAD = 12 + ENTROPY };

static int random_fd = -1, limit_fd = -1, memory_fd = -1, name_fd = -1;

void resume_prepare(int group) {
    random_fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);
    limit_fd = openat(group, "pids.max", O_WRONLY | O_CLOEXEC);
    memory_fd = openat(group, "memory.current", O_RDONLY | O_CLOEXEC);
}

bool is_machine(void) {
    return random_fd >= 0;
}

int64_t machine_memory(void) {
    char text[32];
    ssize_t got = memory_fd < 0 ? -1 : pread(memory_fd, text, sizeof text - 1, 0);
    text[got > 0 ? got : 0] = 0;
    return got > 0 ? strtoll(text, NULL, 10) : -1;
}

static int add_entropy(const char *bytes) {
    union {
        struct rand_pool_info info;
        char room[sizeof(struct rand_pool_info) + ENTROPY];
    } pool = {.info = {.entropy_count = 8 * ENTROPY, .buf_size = ENTROPY}};
    memcpy(pool.info.buf, bytes, ENTROPY);
    return ioctl(random_fd, RNDADDENTROPY, &pool) || ioctl(random_fd, RNDRESEEDCRNG) ? -1 : 0;
}

static int set_clock(uint64_t nanoseconds) {
    struct timespec now = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    return clock_settime(CLOCK_REALTIME, &now);
}

static int limit_processes(uint32_t most) {
    char text[16];
    return pwrite(limit_fd, text, snprintf(text, sizeof text, "%u", most), 0) < 0 ? -1 : 0;
}

/* A new name is a new sandbox, whose use of the machine counts from here; the same one has only stood still. */
static int tell_name(const char *name) {
    static char last[128];
    if (strncmp(last, name, sizeof last - 1)) {
        strncpy(last, name, sizeof last - 1);
        processes_start();
    }
    if (name_fd < 0)
        name_fd = open("/run/sandbox-id", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    return ftruncate(name_fd, 0) || pwrite(name_fd, name, strlen(name), 0) < 0 ? -1 : 0;
}

static int set_environment(const char *at, const char *end) {
    clearenv();
    for (; at < end; at += strlen(at) + 1) {
        char *variable = strdup(at); /* kept: the environment points to it */
        if (!variable || putenv(variable))
            return -1;
    }
    return 0;
}

void resume(const struct request *request) {
    uint64_t nanoseconds;
    uint32_t processes;
    const char *name = request->body + HEAD, *end = request->body + request->size;
    if (!is_machine() || request->size <= HEAD)
        return reply(request->id, is_machine() ? EINVAL : ENOSYS, NULL, 0);
    memcpy(&nanoseconds, request->body, sizeof nanoseconds);
    memcpy(&processes, request->body + 8, sizeof processes);
    int failed = set_capabilities(RESUME_CAPABILITIES, RESUME_CAPABILITIES) || add_entropy(request->body + 12) ||
                 set_clock(nanoseconds) || limit_processes(processes) || tell_name(name) ||
                 set_environment(name + strlen(name) + 1, end);
    int status = failed ? errno : 0;
    set_capabilities(0, RESUME_CAPABILITIES);
    reply(request->id, status, NULL, 0);
}
