/* Keeps mounts that no other process of the host sees: of images, and of their layers while they are built.
 *
 * Lives in a mount namespace of its own, which sandboxes' launchers join and which /proc/PID/root shows to the
 * controller. Mounts what it is asked to: each request is one line of standard input, fields separated by tabs, and is
 * answered by one line, "ok" or what went wrong. Ends at the end of its input, and its mounts with it.
 *
 *   erofs FILE TARGET        the image file, without a loop device
 *   overlay OPTIONS TARGET
 *   gone TARGET              unmount, at once or when its last user ends */
#include "host.h"

#include <sys/mount.h>

enum { LINE_MAX_SIZE = 8192 };

static int answer_request(char **fields) {
    if (fields[2] && !strcmp(fields[0], "erofs"))
        return mount(fields[1], fields[2], "erofs", MS_RDONLY | MS_NOSUID | MS_NODEV, NULL);
    if (fields[2] && !strcmp(fields[0], "overlay"))
        return mount("overlay", fields[2], "overlay", MS_NOSUID | MS_NODEV, fields[1]);
    if (fields[1] && !strcmp(fields[0], "gone"))
        return umount2(fields[1], MNT_DETACH);
    errno = ENOSYS;
    return -1;
}

int hold(int argc, char **argv) {
    char line[LINE_MAX_SIZE];
    if (argc != 1 || chdir(argv[0]))
        return 2;
    private_mounts();
    puts("ok");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        char *fields[4] = {0}, *rest = line;
        line[strcspn(line, "\n")] = 0;
        for (int i = 0; i < 3 && rest; i++)
            fields[i] = strsep(&rest, "\t");
        puts(answer_request(fields) ? strerror(errno) : "ok");
        fflush(stdout);
    }
    return 0;
}
