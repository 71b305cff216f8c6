/* Process 1 of a sandbox: reads request frames from the inherited socket, answers them, reaps every orphan.
 *
 * Frames, little-endian: request = u32 size, u32 id, u8 kind, body; reply = u32 size, u32 id, i32 status, body (size
 * counts what follows it). Status is 0, an errno, or -1: a part, with more to come. Kinds: x exec, s start in the
 * background, a attach, c list commands, k cancel, r read, w write, l list, d remove, u unpack, p pack, f freeze, t
 * thaw, m metrics, e resume a machine, g guard the workspace's names. The first reply, with id 0, says the sandbox is up. It ends, and with it every
 * process of the sandbox, when the controller closes the socket, but see line.c.
 *
 *   serve ADDRESS_SPACE PROCESSES GROUPS NAME [PORT]
 *
 * The first two limit each command, 0 for not at all; GROUPS is how many open cgroup.procs files follow CONTROL_FD;
 * NAME is for whoever reads the process list. With PORT, a socket listening there goes with the first reply.
 *
 * It is not dumpable, so a command inside can neither trace it nor open its descriptors, and as process 1 no signal
 * from inside can end it. It runs with the sandbox's own rights and view, so no path or symlink leads further for it
 * than for a command. */
#include "guest.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/uio.h>

enum { HEADER = 9, FRAME_MAX = 64 << 20, INBOX_IDLE = 1 << 18, MAX_PIECES = 6 };

static struct {
    char *data;
    size_t used, size;
} inbox;

static int answers = CONTROL_FD;

void answer_on(int fd) {
    answers = fd;
}

static void send_all(struct iovec *parts, int count) {
    while (count) {
        ssize_t sent = writev(answers, parts, count);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && line_may_be_called_again())
            return; /* cut before it was used; the controller does not count on an answer */
        if (sent < 0)
            _exit(0); /* the controller has gone */
        for (; count && (size_t)sent >= parts->iov_len; parts++, count--)
            sent -= parts->iov_len;
        if (count) {
            parts->iov_base = (char *)parts->iov_base + sent;
            parts->iov_len -= sent;
        }
    }
}

void reply(uint32_t id, int status, const struct piece *pieces, int count) {
    struct iovec parts[MAX_PIECES + 1];
    uint32_t head[3] = {8, id, (uint32_t)status};
    for (int i = 0; i < count; i++) {
        parts[i + 1] = (struct iovec){(void *)pieces[i].data, pieces[i].size};
        head[0] += pieces[i].size;
    }
    parts[0] = (struct iovec){head, sizeof head};
    send_all(parts, count + 1);
}

static void handle(const struct request *request) {
    switch (request->kind) {
    case 'x':
    case 's': command_start(request); break;
    case 'a': command_attach(request); break;
    case 'c': command_list(request); break;
    case 'k': command_cancel(request); break;
    case 'r': read_file(request); break;
    case 'w': write_file(request); break;
    case 'l': list_dir(request); break;
    case 'd': remove_path(request); break;
    case 'u': unpack(request); break;
    case 'p': pack(request); break;
    case 'f': stop_everyone(request); break;
    case 't': continue_everyone(request); break;
    case 'm': metrics(request); break;
    case 'e': resume(request); break;
    case 'g': guard(request); break;
    default: reply(request->id, ENOSYS, NULL, 0);
    }
}

static void reserve(size_t size) {
    if (size <= inbox.size)
        return;
    inbox.size = size + (size >> 2);
    inbox.data = realloc(inbox.data, inbox.size);
    if (!inbox.data)
        _exit(3);
}

static void receive(void) {
    reserve(inbox.used + 65536);
    ssize_t got = read(CONTROL_FD, inbox.data + inbox.used, inbox.size - inbox.used - 1);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
        if (!line_may_be_called_again() || !line_accept())
            _exit(0);
        inbox.used = 0;
        return;
    }
    if (got > 0)
        inbox.used += got;
    size_t at = 0;
    while (inbox.used - at >= HEADER) {
        uint32_t size, id;
        memcpy(&size, inbox.data + at, 4);
        memcpy(&id, inbox.data + at + 4, 4);
        if (size < HEADER - 4 || size > FRAME_MAX)
            _exit(4);
        if (inbox.used - at < size + 4) {
            reserve(size + 5);
            break;
        }
        char *end = inbox.data + at + 4 + size, kept = *end;
        *end = 0;
        handle(&(struct request){id, inbox.data[at + 8], inbox.data + at + HEADER, size + 4 - HEADER});
        *end = kept;
        at += size + 4;
    }
    memmove(inbox.data, inbox.data + at, inbox.used - at);
    inbox.used -= at;
    if (inbox.size > INBOX_IDLE && inbox.used < INBOX_IDLE / 2) { /* a large file went by; it must not stay charged */
        char *smaller = realloc(inbox.data, INBOX_IDLE);
        inbox.data = smaller ? smaller : inbox.data;
        inbox.size = smaller ? INBOX_IDLE : inbox.size;
    }
}

static int prepare(void) {
    sigset_t child;
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++)
        dup2(null, fd);
    if (null > 2)
        close(null);
    fcntl(CONTROL_FD, F_SETFD, FD_CLOEXEC);
    prctl(PR_SET_DUMPABLE, 0);
    umask(022);
    signal(SIGPIPE, SIG_IGN);
    processes_start();
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    return signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
}

int serve(int argc, char **argv) {
    struct signalfd_siginfo discarded;
    struct pollfd *slots = calloc(16, sizeof *slots);
    int listener = argc > 4 ? listen_inside(atoi(argv[4])) : -1; /* while what it says is still heard */
    if (argc < 3)
        return 2;
    commands_limit(strtoull(argv[0], NULL, 10), strtoull(argv[1], NULL, 10), atoi(argv[2]));
    int size = 16, children = prepare();
    bool more = false;
    if (listener < 0)
        reply(0, 0, NULL, 0);
    else
        greet_with(listener);
    for (;;) {
        slots[0] = (struct pollfd){CONTROL_FD, POLLIN, 0};
        bool quiet = is_machine() && everyone_is_stopped(); /* it may be captured now, but not in the midst of a reply */
        slots[1] = (struct pollfd){quiet ? -1 : children, POLLIN, 0};
        int used = quiet ? 2 : commands_poll(&slots, 2, &size);
        poll(slots, used, more && !quiet ? 0 : commands_wait_ms());
        commands_read(slots + 2, used - 2);
        if (slots[1].revents || (more && !quiet)) {
            while (read(children, &discarded, sizeof discarded) > 0)
                ;
            more = commands_reap();
        }
        commands_expire();
        if (slots[0].revents)
            receive();
    }
}
