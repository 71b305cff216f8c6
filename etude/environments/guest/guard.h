/* The guard of a workspace: what names its commands may make and change, decided here and done here.
 *
 * guard.c stops the calls and answers them, calls.c makes each in the caller's place, places.c finds what its path
 * means, planted.c judges. None of it is in the sandbox of a rollout. */
#ifndef ETUDE_GUARD_H
#define ETUDE_GUARD_H

#include "guest.h"

#include <limits.h>
#include <sys/stat.h>

/* One call of a command, which waits for its answer. */
struct call {
    uint64_t id, arguments[6];
    pid_t pid; /* of the thread that makes it */
    int number;
};

/* What a path means: a name in a directory, or, behind a link of /proc, an open file. */
struct place {
    int directory;       /* O_PATH; -1 for a file that has no name */
    char path[PATH_MAX]; /* of the directory, as the kernel writes it */
    char name[NAME_MAX + 2];
    bool empty; /* there was no path */
    bool slash; /* the path ended with one, which asks for a directory */
    int object; /* O_PATH, of an open file; -1 for a name */
    bool exists;
    struct stat info; /* of what is there */
};

enum { FCHMODAT2 = 452, OPENAT2 = 437 }; /* the same on every machine */
enum { TURNS_FD = CONTROL_FD + 1 };      /* the file whose lock all guards of this user take turns by */

enum change { MADE_FILE, MADE_PIPE, MADE_DIRECTORY, MADE_LINK, MOVED_DIRECTORY, WRITTEN, REMOVED };

/* guard.c */
enum { ANSWERED = 1 };
bool guard_give(const struct call *call, int fd, int flags); /* the caller gets the descriptor, ours is closed */
int guard_wait_to_open(const struct call *call, int fd, int flags); /* until somebody reads that FIFO; 0 or an errno */
void guard_note(pid_t pid, const char *path); /* one more that was refused, and to whom; NULL is not told */

/* calls.c: makes the call; its result, or minus an errno, or ANSWERED. */
long guard_perform(const struct call *call);

long status_of(pid_t pid, const char *field, int base); /* a number of /proc/PID/status; -1 if it is not to be had */

/* places.c: 0 or an errno. */
int read_caller(const struct call *call, uint64_t address, void *bytes, size_t size);
int read_path(const struct call *call, uint64_t address, char path[PATH_MAX]);
int find_place(const struct call *call, int at, uint64_t address, struct place *place);
int find_open_file(const struct call *call, int fd, struct place *place);
int find_text(const struct call *call, int at, const char *path, struct place *place);
int follow_links(const struct call *call, struct place *place);
void leave_place(struct place *place);

/* planted.c: whether a program of the user's would obey what changes there; `shown` is then its name for people, or NULL. */
int planted_rules(const char *text, size_t size); /* 0 or an errno */
bool planted(const char *directory, const char *name, enum change change, const char **shown);
void planted_done(void);                                             /* when what was judged has been made */
/* Within what packages are unpacked in, or not guarded; with `whole` nothing of it may be where somebody works. */
bool planted_unpacked(const char *directory, const char *name, bool whole);
/* Whether a link with this text would have somebody work among packages. One to a file is none: programs have them. */
bool planted_leads(const struct place *link, const char *text, const char **shown);

#endif
