/* The way to the egress proxy: a socket that listens in here and is answered out there.
 *
 * A socket belongs to the network it was made in, whoever holds it. So the agent makes one that listens on the sandbox's
 * own loopback, which is all the network there is, and hands it to the controller before anything of the sandbox runs:
 * who connects to it in here speaks with the proxy, no byte passes through the agent, and no path of the host is shown. */
#include "guest.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

enum { WAITING = 64 };

int listen_inside(int port) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, WAITING)) {
        fprintf(stderr, "cannot listen for the egress proxy at port %d: %s\n", port, strerror(errno));
        _exit(1);
    }
    return listener;
}

void greet_with(int listener) {
    uint32_t greeting[3] = {8, 0, 0}; /* as reply(0, 0, NULL, 0) */
    union {
        struct cmsghdr head; /* for its alignment */
        char room[CMSG_SPACE(sizeof listener)];
    } beside = {.room = {0}};
    struct iovec part = {greeting, sizeof greeting};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = beside.room, .msg_controllen = sizeof beside.room};
    struct cmsghdr *note = CMSG_FIRSTHDR(&message);
    note->cmsg_level = SOL_SOCKET;
    note->cmsg_type = SCM_RIGHTS;
    note->cmsg_len = CMSG_LEN(sizeof listener);
    memcpy(CMSG_DATA(note), &listener, sizeof listener);
    if (sendmsg(CONTROL_FD, &message, 0) != sizeof greeting)
        _exit(0); /* the controller has gone */
    close(listener);
}
