/* Commands: started in a session of their own without standard input, answered when the command's process exits.
 *
 * Output is kept up to a cap, first half and last half; past the cap the whole goes to /tmp/exec-ID.log as well. The
 * answer does not wait for the pipe to close, since a background child may hold it for ever; what such a child writes
 * later is read and dropped, so that it neither blocks nor dies of SIGPIPE. At its deadline the whole session is killed.
 *
 * Body of exec: u32 timeout in ms, u32 cap, directory, NUL, command, NUL, then NAME=VALUE, NUL for each variable.
 * Answer: i32 exit code (128 + signal when killed), u8 timed out, u8 logged, u32 bytes of the first part, u64 total,
 * output. Body of cancel: u32 id of the exec. */
#include "guest.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { TIMED_OUT = 124, CANNOT_START = 126, DRAIN_MAX = 1 << 20, LOG_MAX = 16 << 20 };

struct command {
    struct command *next;
    uint32_t id;
    pid_t leader; /* also the number of its session */
    int pipe, log;
    int64_t deadline;
    bool answered, timed_out;
    uint64_t total;
    size_t cap;
    char *kept; /* cap bytes: the first cap/2 of the output, then a ring of the rest */
};

static struct command *commands;
static uint64_t address_space_limit, process_limit;
static int group_count;
static char chunk[65536];

void commands_limit(uint64_t address_space, uint64_t processes, int groups) {
    address_space_limit = address_space;
    process_limit = processes;
    group_count = groups;
    for (int fd = CONTROL_FD + 1; fd <= CONTROL_FD + groups; fd++)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
}

static void log_path(const struct command *command, char path[32]) {
    snprintf(path, 32, "/tmp/exec-%u.log", command->id);
}

static void write_log(struct command *command, const char *data, size_t size) {
    if (command->log >= 0 && command->total < LOG_MAX && write(command->log, data, size) < 0)
        close(command->log), command->log = -2; /* /tmp is full: the log ends here, the capped output is still whole */
}

static void keep(struct command *command, const char *data, size_t size) {
    if (command->total <= command->cap && command->total + size > command->cap) {
        char path[32];
        log_path(command, path);
        command->log = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
        write_log(command, command->kept, command->total);
    }
    write_log(command, data, size);
    size_t half = command->cap / 2, ring = command->cap - half;
    while (size) {
        bool first = command->total < half;
        size_t at = first ? command->total : half + (ring ? (command->total - half) % ring : 0);
        size_t room = first ? half - at : command->cap - at;
        size_t step = size < room || !room ? size : room;
        if (room)
            memcpy(command->kept + at, data, step);
        command->total += step;
        data += step;
        size -= step;
    }
}

static void answer(struct command *command, int code) {
    struct __attribute__((packed)) {
        int32_t code;
        uint8_t timed_out, logged;
        uint32_t first;
        uint64_t total;
    } head = {code, command->timed_out, command->log >= 0, command->cap / 2, command->total};
    size_t half = command->cap / 2, ring = command->cap - half, turn = 0;
    bool cut = command->total > command->cap;
    if (cut && ring)
        turn = (command->total - half) % ring;
    if (!cut)
        head.first = command->total;
    struct piece pieces[4] = {{&head, sizeof head}, {command->kept, head.first}};
    pieces[2] = (struct piece){command->kept + half + turn, cut ? ring - turn : 0};
    pieces[3] = (struct piece){command->kept + half, turn};
    reply(command->id, 0, pieces, 4);
    command->answered = true;
    free(command->kept);
    command->kept = NULL;
    if (command->log >= 0)
        close(command->log);
    command->log = -1;
}

static void drain(struct command *command, size_t most) {
    while (command->pipe >= 0 && most) {
        ssize_t got = read(command->pipe, chunk, sizeof chunk);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (got <= 0) {
            close(command->pipe);
            command->pipe = -1;
            return;
        }
        if (!command->answered)
            keep(command, chunk, got);
        most -= (size_t)got < most ? (size_t)got : most;
    }
}

static bool enter_groups(void) {
    for (int fd = CONTROL_FD + 1; fd <= CONTROL_FD + group_count; fd++)
        if (write(fd, "0", 1) != 1)
            return false;
    return true;
}

static void limit(int resource, uint64_t value) {
    struct rlimit both = {value, value};
    if (value)
        setrlimit(resource, &both);
}

/* `failure` is closed by the exec; it tells the agent, and not the command's output, that a limit cannot be had. */
static void become(const char *directory, const char *text, const char *variables, const char *end, int output,
                   int failure) {
    sigset_t none;
    sigemptyset(&none);
    setsid();
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    dup2(output, 1);
    dup2(output, 2);
    for (; variables < end; variables += strlen(variables) + 1)
        putenv((char *)variables);
    limit(RLIMIT_AS, address_space_limit);
    limit(RLIMIT_NPROC, process_limit);
    if (!enter_groups()) {
        if (write(failure, &errno, sizeof errno) < 0)
            kill(getppid(), SIGKILL); /* nothing may run without its limits, nor seem to have run */
    } else if (chdir(directory))
        dprintf(2, "cannot enter %s: %s\n", directory, strerror(errno));
    else if (execl("/bin/sh", "sh", "-c", text, NULL))
        dprintf(2, "cannot run /bin/sh: %s\n", strerror(errno));
    _exit(CANNOT_START);
}

static void fail(struct command *command, uint32_t id, int error) {
    free(command->kept);
    free(command);
    reply(id, error, NULL, 0);
}

void command_start(const struct request *request) {
    uint32_t numbers[2];
    int ends[2], started[2], failure = 0;
    const char *end = request->body + request->size, *directory = request->body + sizeof numbers;
    const char *text = directory < end ? directory + strlen(directory) + 1 : end;
    if (text >= end)
        return reply(request->id, EINVAL, NULL, 0);
    memcpy(numbers, request->body, sizeof numbers);
    struct command *command = calloc(1, sizeof *command);
    *command = (struct command){.id = request->id, .pipe = -1, .log = -1, .cap = numbers[1]};
    command->kept = malloc(command->cap + 1);
    command->deadline = now_ms() + numbers[0];
    if (!command->kept || pipe2(ends, O_CLOEXEC))
        return fail(command, request->id, errno);
    if (pipe2(started, O_CLOEXEC)) {
        failure = errno;
        close(ends[0]);
        close(ends[1]);
        return fail(command, request->id, failure);
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    command->leader = fork();
    if (command->leader == 0)
        become(directory, text, text + strlen(text) + 1, end, ends[1], started[1]);
    close(ends[1]);
    close(started[1]);
    ssize_t told = read(started[0], &failure, sizeof failure); /* until the exec, which takes microseconds */
    close(started[0]);
    if (told > 0) {
        waitpid(command->leader, NULL, 0);
        close(ends[0]);
        return fail(command, request->id, failure);
    }
    command->pipe = ends[0];
    command->next = commands;
    commands = command;
    if (command->leader > 0)
        return;
    int size = snprintf(chunk, sizeof chunk, "cannot start the command: %s\n", strerror(errno));
    keep(command, chunk, size); /* the process limit is reached: for the caller to see, not a broken sandbox */
    answer(command, CANNOT_START);
}

void command_cancel(const struct request *request) {
    uint32_t id = 0;
    memcpy(&id, request->body, request->size < sizeof id ? request->size : sizeof id);
    for (struct command *command = commands; command; command = command->next)
        if (command->id == id && !command->answered)
            kill_session(command->leader);
}

void commands_reap(void) {
    int state;
    for (pid_t pid; (pid = waitpid(-1, &state, WNOHANG)) > 0;)
        for (struct command *command = commands; command; command = command->next)
            if (command->leader == pid && !command->answered) {
                int code = WIFSIGNALED(state) ? 128 + WTERMSIG(state) : WEXITSTATUS(state);
                drain(command, DRAIN_MAX);
                answer(command, command->timed_out ? TIMED_OUT : code);
                break;
            }
}

void commands_expire(void) {
    int64_t now = now_ms();
    for (struct command **at = &commands; *at;) {
        struct command *command = *at;
        if (command->answered && command->pipe < 0) {
            *at = command->next;
            free(command);
            continue;
        }
        if (!command->answered && !command->timed_out && now >= command->deadline) {
            command->timed_out = true;
            kill_session(command->leader);
        }
        at = &command->next;
    }
}

int commands_wait_ms(void) {
    int64_t nearest = -1, now = now_ms();
    for (struct command *command = commands; command; command = command->next)
        if (!command->answered && !command->timed_out && (nearest < 0 || command->deadline < nearest))
            nearest = command->deadline;
    return nearest < 0 || everyone_is_stopped() ? -1 : nearest <= now ? 0 : (int)(nearest - now);
}

int commands_poll(struct pollfd **slots, int used, int *size) {
    for (struct command *command = commands; command; command = command->next) {
        if (command->pipe < 0)
            continue;
        if (used == *size)
            *slots = realloc(*slots, (*size *= 2) * sizeof **slots);
        (*slots)[used++] = (struct pollfd){command->pipe, POLLIN, 0};
    }
    return used;
}

void commands_read(const struct pollfd *slots, int count) {
    for (int i = 0; i < count; i++)
        for (struct command *command = commands; slots[i].revents && command; command = command->next)
            if (command->pipe == slots[i].fd) {
                drain(command, sizeof chunk);
                break;
            }
}
