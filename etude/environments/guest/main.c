#include "guest.h"

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "launch"))
        return launch(argc - 2, argv + 2);
    if (argc > 1 && !strcmp(argv[1], "serve")) {
        stay_apart();
        confine(); /* before anything of the sandbox is heard, so that every command inherits it */
        return serve(argc - 2, argv + 2);
    }
    if (argc > 1 && !strcmp(argv[1], "hold"))
        return hold(argc - 2, argv + 2);
    if (argc > 1 && !strcmp(argv[1], "maps"))
        return maps(argc - 2, argv + 2);
    if (argc > 1 && !strcmp(argv[1], "contain"))
        return contain(argc - 2, argv + 2);
    if (argc > 1 && !strcmp(argv[1], "emulate"))
        return emulate(argc - 2, argv + 2);
    if (argc > 1 && !strcmp(argv[1], "boot"))
        return boot(argc - 2, argv + 2);
    if (argc > 1 && !strcmp(argv[1], "reach"))
        return reach(argc - 2, argv + 2);
    if (argc > 1 && !strcmp(argv[1], "ticks"))
        return ticks();
    if (argc > 1 && !strcmp(argv[1], "lock-devices"))
        return lock_devices(argc - 2, argv + 2);
    fprintf(stderr, "usage: %s launch|serve|hold|maps|contain|emulate|boot|reach|ticks|lock-devices ...; started by the sandbox backend, not by hand\n", argv[0]);
    return 2;
}
