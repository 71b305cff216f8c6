/* What the roles of a virtual machine share: `boot` prepares what `serve` needs once root's rights are gone. */
#ifndef ETUDE_MACHINE_H
#define ETUDE_MACHINE_H

#include "guest.h"

#include <linux/capability.h>
#include <sys/syscall.h>

/* Sets what process 1 may use now, and what it may take up again. */
static inline int set_capabilities(uint64_t effective, uint64_t permitted) {
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2] = {{(uint32_t)effective, (uint32_t)permitted, 0},
                                             {(uint32_t)(effective >> 32), (uint32_t)(permitted >> 32), 0}};
    return syscall(SYS_capset, &head, sets);
}

#define RESUME_CAPABILITIES (1ULL << CAP_SYS_TIME | 1ULL << CAP_SYS_ADMIN)

/* resume.c: open, as root, what a resume writes to; `group` is the directory of the commands' control group. */
void resume_prepare(int group);

/* line.c: a line over vsock, from the first thing to the last that a boot does for it. */
void line_reserve(void);
void line_listen(unsigned port);

#endif
