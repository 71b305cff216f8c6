/* The sandbox's one native program. On the host, `launch` prepares a private mount namespace and becomes bubblewrap,
 * `hold` keeps the mounts of images, `lock-devices` comes before a workspace, and `emulate` becomes a virtual machine; inside, `serve` is process 1 and answers
 * requests, after `boot` where the inside is a machine. See the head of each file. */
#ifndef ETUDE_GUEST_H
#define ETUDE_GUEST_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum {
    CONTROL_FD = 3, /* the socket to the controller, inherited through every exec */
    NO_CORE = 1,    /* as a limit: too little for a file, and the one number that keeps the kernel from a pipe's program */
};

/* One request. `body` is NUL-terminated past `size`, so strings at its end are safe to read. */
struct request {
    uint32_t id;
    char kind;
    const char *body;
    size_t size;
};

/* One piece of a reply's body. */
struct piece {
    const void *data;
    size_t size;
};

enum { MORE_FOLLOWS = -1 };

int launch(int argc, char **argv);
int serve(int argc, char **argv);
int hold(int argc, char **argv);
int maps(int argc, char **argv);
int contain(int argc, char **argv);
int emulate(int argc, char **argv);
int boot(int argc, char **argv);
int reach(int argc, char **argv);
int ticks(void);
int lock_devices(int argc, char **argv);

/* serve.c: sends one reply frame; `status` is 0 or an errno, or MORE_FOLLOWS. Ends the process when the controller has gone. */
void reply(uint32_t id, int status, const struct piece *pieces, int count);
void answer_on(int fd); /* where that is not CONTROL_FD, from which requests are read */

/* listen.c: the way to the egress proxy, a socket that listens in here; made, and given away with the first reply. */
int listen_inside(int port);
void greet_with(int listener);

/* confine.c: takes away, for ever, the system calls that no sandbox needs; ends the process where that cannot be. */
void confine(void);
void stay_apart(void); /* from what is outside, though it is in the same network */

/* files.c, pack.c, remove.c, unpack.c: each answers its request. */
void read_file(const struct request *request);
void write_file(const struct request *request);
void list_dir(const struct request *request);
void unpack(const struct request *request);
void pack(const struct request *request);
void remove_path(const struct request *request);
int make_parents(const char *path); /* of this path; 0 or an errno */

/* guard.c: begins to guard the names of a workspace; whether it does; what it refused since it was last asked, in words,
 * 0 when nothing. */
void guard(const struct request *request);
bool guarding(void);
size_t guard_says(pid_t leader, char *text, size_t size);

/* processes.c: what runs here. */
void processes_start(void); /* from here on, metrics count */
void kill_session(pid_t session);
void await_session_end(pid_t session);
void stop_everyone(const struct request *request);
void continue_everyone(const struct request *request);
void metrics(const struct request *request);
bool everyone_is_stopped(void);
int64_t now_ms(void); /* stands still while everyone is stopped, and so do deadlines */

/* resume.c: a virtual machine after its start. */
void resume(const struct request *request);
bool is_machine(void);
int64_t machine_memory(void); /* bytes that its commands take; -1 where this is no machine */

/* line.c: the controller's calls, where the line is one of vsock. */
bool line_accept(void); /* waits for one, and makes it CONTROL_FD; false where there can be none */
bool line_may_be_called_again(void);

/* commands.c: running commands. `commands_*` are called by the loop in serve.c. */
void commands_limit(uint64_t address_space, uint64_t processes, int groups);
void commands_give_way(void); /* to the agent, which has the same processors and no group of its own */
void command_start(const struct request *request);
void command_cancel(const struct request *request);
void command_attach(const struct request *request);
void command_list(const struct request *request);
bool commands_reap(void); /* true where there is more, for the next time */
void commands_expire(void);
struct pollfd;
int commands_poll(struct pollfd **slots, int used, int *size); /* adds slots; returns how many are used */
void commands_read(const struct pollfd *slots, int count);
int commands_wait_ms(void); /* until the nearest deadline; -1 when none */

#endif
