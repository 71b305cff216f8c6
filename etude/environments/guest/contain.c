/* Process 1 of a container: the agent over the two streams that a container engine attaches.
 *
 * Requests come on standard input and answers leave on standard output, which nothing else may write to: commands get
 * their own (see commands.c). The engine closes the input when the controller's connection ends, and so ends the sandbox.
 *
 *   contain NAME [PROCESSES]
 *
 * PROCESSES limits what its user may run, the agent included, where the engine has no such limit. */
#include "guest.h"

int contain(int argc, char **argv) {
    char *limits[] = {"0", argc > 1 ? argv[1] : "0", "0", argc > 0 ? argv[0] : "container", NULL};
    int answers = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, CONTROL_FD + 1);
    if (answers < 0 || dup2(STDIN_FILENO, CONTROL_FD) < 0)
        return 2;
    answer_on(answers);
    commands_give_way();
    stay_apart();
    confine();
    return serve(4, limits);
}
