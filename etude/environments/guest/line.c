/* The line of a machine whose controller calls it over vsock: it waits for calls on a port that only root may have.
 *
 * A copied machine has no line: the connection that the copied memory knows of leads nowhere, and its kernel resets it.
 * So the controller hangs up when everyone is stopped, before the machine is, and calls again when the machine goes on;
 * at any other time the end of the line is the end of the sandbox. */
#include "host.h"
#include "machine.h"

#include <sys/socket.h>

#include <linux/vm_sockets.h> /* needs the one above */

static int listener = -1;

void line_reserve(void) {
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC); /* so that nothing else gets this number */
    if (fd < 0 || dup2(fd, CONTROL_FD) < 0)
        fail("reserve", "the line to the controller");
    if (fd != CONTROL_FD)
        close(fd);
}

void line_listen(unsigned port) {
    struct sockaddr_vm here = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = port};
    listener = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 1))
        fail("listen on", "the vsock port");
    dprintf(STDERR_FILENO, "waiting for a call on vsock port %u\n", port);
}

bool line_accept(void) {
    while (listener >= 0) {
        struct sockaddr_vm there = {0};
        socklen_t size = sizeof there;
        int fd = accept4(listener, (struct sockaddr *)&there, &size, SOCK_CLOEXEC);
        if (fd < 0 && errno != EINTR && errno != ECONNABORTED && errno != ECONNRESET)
            return false;
        if (fd >= 0 && there.svm_cid == VMADDR_CID_HOST && dup3(fd, CONTROL_FD, O_CLOEXEC) == CONTROL_FD) {
            close(fd);
            return true;
        }
        if (fd >= 0)
            close(fd);
    }
    return false;
}

bool line_may_be_called_again(void) {
    return listener >= 0 && everyone_is_stopped();
}
