/* What the roles that run on the host share; `boot`, too, ends when something cannot be done. */
#ifndef ETUDE_HOST_H
#define ETUDE_HOST_H

#include "guest.h"

/* launch.c: on the host, before the sandbox; they end the process when they cannot do what they are asked. */
void fail(const char *what, const char *object);
void write_text(const char *path, const char *text);
void private_mounts(void);
void detach_from_host(pid_t parent, int last_fd); /* descriptors above it are closed */

/* users.c: likewise. */
int user_range(unsigned first);
void mount_tree(const char *source, const char *stage, int users);
void join_mounts(const char *namespace, const char *directory);
void enter_range(int users, uid_t uid, gid_t gid, const char *nested);

#endif
