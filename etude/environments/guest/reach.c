/* Tries to leave a sandbox by one TCP connection, to see whether what should stop it does. In images there may be no
 * other program that could.
 *
 *   reach ADDRESS PORT MILLISECONDS
 *
 * Prints "reached", or why it could not; ends with 2 where it cannot tell. */
#include "guest.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

static socklen_t parse(const char *address, int port, struct sockaddr_storage *to) {
    struct sockaddr_in *four = (struct sockaddr_in *)to;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)to;
    if (inet_pton(AF_INET, address, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons(port);
        return sizeof *four;
    }
    if (inet_pton(AF_INET6, address, &six->sin6_addr) == 1) {
        six->sin6_family = AF_INET6;
        six->sin6_port = htons(port);
        return sizeof *six;
    }
    return 0;
}

static int connect_within(const struct sockaddr_storage *to, socklen_t size, int wait_ms) {
    int fd = socket(to->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), error = 0;
    socklen_t error_size = sizeof error;
    if (fd < 0)
        return errno;
    if (!connect(fd, (const struct sockaddr *)to, size))
        return 0;
    if (errno != EINPROGRESS)
        return errno;
    if (poll(&(struct pollfd){fd, POLLOUT, 0}, 1, wait_ms) < 1)
        return ETIMEDOUT;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_size) ? errno : error;
}

int reach(int argc, char **argv) {
    struct sockaddr_storage to = {0};
    socklen_t size = argc == 3 ? parse(argv[0], atoi(argv[1]), &to) : 0;
    if (!size)
        return 2;
    int error = connect_within(&to, size, atoi(argv[2]));
    puts(error ? strerror(error) : "reached");
    return 0;
}
