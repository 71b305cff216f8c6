/* Commands: started in a session of their own without standard input, answered when the command's process exits.
 *
 * The answer does not wait for the pipe to close, since a background child may hold it for ever; what such a child
 * writes later is read and dropped, so that it neither blocks nor dies of SIGPIPE. At its deadline the whole session is
 * killed. A background command (kind s) is told of when it runs and sends its output as it comes, up to its cap; who
 * lost it may attach again, by its id, also for some time after its end.
 *
 * The agent waits for no command, not even for one that has not become /bin/sh yet: others can stop it before it has.
 * It outlives them where memory runs short. Whoever asks to be traced by his parent, where that is the agent, is let go:
 * his stops are no end.
 *
 * Body of exec and start: u32 timeout in ms, 0 for none, u32 cap, directory, NUL, command, NUL, then NAME=VALUE, NUL for
 * each variable. Answer: i32 exit code (128 + signal when killed), u8 timed out, u8 logged, u32 bytes of the first part,
 * u64 total, output. Body of cancel and attach: u32 id. List: u32 id, u8 running, command, NUL for each in background. */
#include "guest.h"
#include "output.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum {
    TIMED_OUT = 124,
    CANNOT_START = 126,
    DRAIN_MAX = 1 << 20,
    REMEMBERED = 16,
    TEXT_MAX = 2000,
    REAPED_AT_ONCE = 64, /* commands can make more orphans, or stops, than would ever let the agent do anything else */
    SOONER_KILLED = 250, /* a quarter of the memory that is short, as the kernel reckons */
    OOM_SCORE_ADJ_MAX = 1000,
    LAST = 19, /* of niceness: hundreds of commands together weigh what the agent does */
};

struct command {
    struct command *next;
    uint32_t id, answer_to;
    pid_t leader; /* also the number of its session */
    int pipe, code;
    int started; /* closed by the exec; before it, brings the errno of what could not be had. -1 when that is known */
    int64_t deadline;
    bool background, answered, timed_out;
    char *text; /* of a background command */
    struct output output;
};

static struct command *commands;
static uint64_t address_space_limit, process_limit;
static int group_count, oom_score_fd = -1;
static bool giving_way;
static char chunk[65536];

void commands_limit(uint64_t address_space, uint64_t processes, int groups) {
    address_space_limit = address_space;
    process_limit = processes;
    group_count = groups;
    for (int fd = CONTROL_FD + 1; fd <= CONTROL_FD + groups; fd++)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    oom_score_fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC); /* not to be had any more by who is not dumpable */
}

void commands_give_way(void) {
    giving_way = true;
}

static void answer(struct command *command) {
    struct __attribute__((packed)) {
        int32_t code;
        uint8_t timed_out, logged;
        uint32_t first;
        uint64_t total;
    } head = {command->code, command->timed_out, output_logged(&command->output), 0, command->output.total};
    struct piece pieces[1 + OUTPUT_PIECES] = {{&head, sizeof head}};
    head.first = output_pieces(&command->output, pieces + 1);
    reply(command->answer_to, 0, pieces, 1 + OUTPUT_PIECES);
}

/* Keeps it; of a background command, sends what comes before its cap. */
static void take(struct command *command, const char *data, size_t size) {
    uint64_t total = command->output.total, cap = command->output.cap;
    if (command->background && total < cap)
        reply(command->answer_to, MORE_FOLLOWS, &(struct piece){data, size < cap - total ? size : cap - total}, 1);
    output_keep(&command->output, data, size);
}

/* What is known of its start: that it has become /bin/sh, or ended before, or which of its limits it could not get. */
static void hear(struct command *command) {
    int failure = 0;
    ssize_t told = read(command->started, &failure, sizeof failure);
    if (told < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    close(command->started);
    command->started = -1;
    if (told > 0) {
        reply(command->answer_to, failure, NULL, 0);
        command->answered = true;
        command->background = false; /* nobody need remember it */
    } else if (command->background)
        reply(command->answer_to, MORE_FOLLOWS, NULL, 0);
}

static void end(struct command *command, int code) {
    size_t said = guard_says(command->leader, chunk, sizeof chunk);
    if (said)
        take(command, chunk, said);
    command->code = command->timed_out ? TIMED_OUT : code;
    command->answered = true;
    output_end(&command->output);
    answer(command);
    if (!command->background)
        output_free(&command->output);
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
            take(command, chunk, got);
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
    if (giving_way)
        setpriority(PRIO_PROCESS, 0, LAST);
    if (is_machine())
        confine(); /* the agent of a machine sets its clock: it is not confined itself */
    if (!enter_groups()) {
        while (write(failure, &errno, sizeof errno) < 0 && errno == EINTR)
            ; /* told to the agent, not in the command's output: it has not run */
    } else if (chdir(directory))
        dprintf(2, "cannot enter %s: %s\n", directory, strerror(errno));
    else if (execl("/bin/sh", "sh", "-c", text, NULL))
        dprintf(2, "cannot run /bin/sh: %s\n", strerror(errno));
    _exit(CANNOT_START);
}

static void forget(struct command *command) {
    output_free(&command->output);
    free(command->text);
    free(command);
}

/* Forks; what it becomes is sooner killed than the agent. */
static pid_t fork_expendable(void) {
    char own[16] = "", more[16];
    ssize_t size = oom_score_fd < 0 ? 0 : pread(oom_score_fd, own, sizeof own - 1, 0);
    int raised = atoi(own) + SOONER_KILLED;
    if (size > 0 && pwrite(oom_score_fd, more, snprintf(more, sizeof more, "%d",
                           raised < OOM_SCORE_ADJ_MAX ? raised : OOM_SCORE_ADJ_MAX), 0) < 0)
        size = 0;
    pid_t child = fork();
    int refused = errno;
    if (child && size > 0 && pwrite(oom_score_fd, own, size, 0) < 0)
        size = 0; /* it may always go back to where it began */
    errno = refused;
    return child;
}

/* -1 with errno set when the command could not get its pipes. No process left is no failure. */
static int spawn(struct command *command, const char *directory, const char *text, const char *end) {
    int ends[2], started[2];
    if (pipe2(ends, O_CLOEXEC))
        return -1;
    if (pipe2(started, O_CLOEXEC)) {
        int failure = errno;
        close(ends[0]);
        close(ends[1]);
        return errno = failure, -1;
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    fcntl(started[0], F_SETFL, O_NONBLOCK);
    command->leader = fork_expendable();
    if (command->leader == 0)
        become(directory, text, text + strlen(text) + 1, end, ends[1], started[1]);
    int refused = errno;
    close(ends[1]);
    close(started[1]);
    command->pipe = ends[0];
    command->started = started[0];
    return errno = refused, 0;
}

void command_start(const struct request *request) {
    uint32_t numbers[2];
    const char *stop = request->body + request->size, *directory = request->body + sizeof numbers;
    const char *text = directory < stop ? directory + strlen(directory) + 1 : stop;
    if (text >= stop)
        return reply(request->id, EINVAL, NULL, 0);
    memcpy(numbers, request->body, sizeof numbers);
    struct command *command = calloc(1, sizeof *command);
    int status = command ? output_open(&command->output, request->id, numbers[1]) : ENOMEM;
    if (!status) {
        command->id = command->answer_to = request->id;
        command->deadline = numbers[0] ? now_ms() + numbers[0] : INT64_MAX;
        command->background = request->kind == 's';
        command->text = command->background ? strndup(text, TEXT_MAX) : NULL;
        status = spawn(command, directory, text, stop) ? errno : 0;
    }
    if (status) {
        if (command)
            forget(command);
        return reply(request->id, status, NULL, 0);
    }
    command->next = commands;
    commands = command;
    if (command->leader > 0)
        return;
    close(command->started);
    command->started = -1;
    int size = snprintf(chunk, sizeof chunk, "cannot start the command: %s\n", strerror(errno));
    take(command, chunk, size); /* the process limit is reached: for the caller to see, not a broken sandbox */
    end(command, CANNOT_START);
}

static struct command *find(const struct request *request) {
    uint32_t id = 0;
    memcpy(&id, request->body, request->size < sizeof id ? request->size : sizeof id);
    struct command *command = commands;
    while (command && command->id != id)
        command = command->next;
    return command;
}

/* It leads its session from soon after its start; until it is answered nobody else has its number. */
static void kill_command(const struct command *command) {
    kill(command->leader, SIGKILL);
    kill_session(command->leader);
}

void command_cancel(const struct request *request) {
    struct command *command = find(request);
    if (!command || command->answered)
        return;
    kill_command(command);
    await_session_end(command->leader); /* whoever gave it up goes on when it is gone, and its children with it */
}

/* Sends what it has printed until now, its first half only where that is no longer whole, and then as it comes. */
void command_attach(const struct request *request) {
    struct command *command = find(request);
    struct piece pieces[OUTPUT_PIECES];
    if (!command || !command->background)
        return reply(request->id, ESRCH, NULL, 0);
    output_pieces(&command->output, pieces);
    command->answer_to = request->id;
    reply(request->id, MORE_FOLLOWS, pieces, 1);
    if (command->answered)
        answer(command);
}

void command_list(const struct request *request) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    for (struct command *command = commands; command; command = command->next) {
        if (!command->background)
            continue;
        fwrite(&command->id, sizeof command->id, 1, out);
        fputc(!command->answered, out);
        fwrite(command->text ? command->text : "", command->text ? strlen(command->text) + 1 : 1, 1, out);
    }
    fclose(out);
    reply(request->id, 0, &(struct piece){text, size}, 1);
    free(text);
}

static void ended(pid_t leader, int state) {
    for (struct command *command = commands; command; command = command->next) {
        if (command->leader != leader || command->answered)
            continue;
        if (command->started >= 0)
            hear(command);
        drain(command, DRAIN_MAX);
        if (!command->answered)
            end(command, WIFSIGNALED(state) ? 128 + WTERMSIG(state) : WEXITSTATUS(state));
        return;
    }
}

/* The SIGTRAP is the kernel's own word to a tracer that there is a new program. */
static void let_go(pid_t stopped, int signal) {
    ptrace(PTRACE_DETACH, stopped, NULL, (void *)(intptr_t)(signal == SIGTRAP ? 0 : signal));
}

bool commands_reap(void) {
    int state = 0;
    for (int heard = 0; heard < REAPED_AT_ONCE; heard++) {
        pid_t pid = waitpid(-1, &state, WNOHANG);
        if (pid <= 0)
            return false;
        if (WIFSTOPPED(state))
            let_go(pid, WSTOPSIG(state));
        else
            ended(pid, state);
    }
    return true;
}

void commands_expire(void) {
    int64_t now = now_ms();
    int ended = 0; /* the newest first */
    for (struct command **at = &commands; *at;) {
        struct command *command = *at;
        bool remembered = command->background && (!command->answered || ended++ < REMEMBERED);
        if (command->answered && command->pipe < 0 && !remembered) {
            *at = command->next;
            forget(command);
            continue;
        }
        if (!command->answered && !command->timed_out && now >= command->deadline) {
            command->timed_out = true;
            kill_command(command);
        }
        at = &command->next;
    }
}

int commands_wait_ms(void) {
    int64_t nearest = -1, now = now_ms();
    for (struct command *command = commands; command; command = command->next)
        if (!command->answered && !command->timed_out && (nearest < 0 || command->deadline < nearest))
            nearest = command->deadline;
    if (nearest < 0 || nearest == INT64_MAX || everyone_is_stopped())
        return -1;
    return nearest <= now ? 0 : nearest - now > INT_MAX ? INT_MAX : (int)(nearest - now);
}

static int add_slot(struct pollfd **slots, int used, int *size, int fd) {
    if (fd < 0)
        return used;
    if (used == *size)
        *slots = realloc(*slots, (*size *= 2) * sizeof **slots);
    (*slots)[used] = (struct pollfd){fd, POLLIN, 0};
    return used + 1;
}

int commands_poll(struct pollfd **slots, int used, int *size) {
    for (struct command *command = commands; command; command = command->next) {
        used = add_slot(slots, used, size, command->started);
        used = add_slot(slots, used, size, command->pipe);
    }
    return used;
}

void commands_read(const struct pollfd *slots, int count) {
    for (int i = 0; i < count; i++)
        for (struct command *command = commands; slots[i].revents && command; command = command->next)
            if (command->started == slots[i].fd || command->pipe == slots[i].fd) {
                if (command->started == slots[i].fd)
                    hear(command);
                else
                    drain(command, sizeof chunk);
                break;
            }
}
