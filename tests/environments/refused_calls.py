"""System calls that the filter of a sandbox takes away, each with arguments that do nothing where it is not there.

Runs inside a sandbox: prints one line a call that was not refused in the filter's own words, and nothing else.
"""

import ctypes
import errno

NAMESPACES = {"mount": 1 << 17, "cgroup": 1 << 25, "uts": 1 << 26, "ipc": 1 << 27, "user": 1 << 28}
NAMESPACES |= {"pid": 1 << 29, "net": 1 << 30}
SIGCHLD, CHAR, BLOCK = 17, 0o020000, 0o060000
BAD = 0xFFFFFFFF  # no descriptor, no address
TRACEEXIT = 0x40

NOT_PERMITTED = {
    "mount": (165, 0, 0, 0, 0, 0),
    "umount2": (166, 0, BAD),
    "pivot_root": (155, 0, 0),
    "open_tree": (428, BAD, 0, BAD),
    "move_mount": (429, BAD, 0, BAD, 0, 0),
    "fsopen": (430, 0, BAD),
    "fsmount": (432, BAD, 0, 0),
    "mount_setattr": (442, BAD, 0, 0, 0, 0),
    "statmount": (457, 0, 0, 0, BAD),
    "listmount": (458, 0, 0, 0, BAD),
    "fsconfig": (431, BAD, 99, 0, 0, 0),
    "fspick": (433, BAD, 0, BAD),
    "quotactl": (179, BAD, 0, 0, 0),
    "quotactl_fd": (443, BAD, BAD, 0, 0),
    "kcmp": (312, 1, 1, 99, 0, 0),
    "move_pages": (279, 0, 0, 0, 0, 0, 99),
    "migrate_pages": (256, 0, 0, 0, 0),
    "lookup_dcookie": (212, 0, 0, 0),
    "memfd_secret": (447, BAD),
    "io_uring_enter": (426, BAD, 0, 0, 0, 0, 0),
    "io_uring_register": (427, BAD, 99, 0, 0),
    "swapoff": (168, 0),
    "acct": (163, BAD),
    "vhangup": (153,),
    "sethostname": (170, 0, BAD),
    "setdomainname": (171, 0, BAD),
    "nfsservctl": (180, 0, 0, 0),
    "ioperm": (173, 0, 0, 0),
    "uselib": (134, 0),
    "ustat": (136, 0, 0),
    "sysfs": (139, 99, 0, 0),
    "_sysctl": (156, 0),
    "create_module": (174, 0, 0),
    "get_kernel_syms": (177, 0),
    "query_module": (178, 0, 0, 0, 0, 0),
    "modify_ldt": (154, 99, 0, 0),
    "setns": (308, BAD, 0),
    "keyctl": (250, 99),
    "add_key": (248, 0, 0, 0, 0, 0),
    "request_key": (249, 0, 0, 0, 0),
    "bpf": (321, 99, 0, 0),
    "perf_event_open": (298, 0, 0, 0, 0, 0),
    "userfaultfd": (323, BAD),
    "io_uring_setup": (425, 0, 0),
    "kexec_load": (246, 0, 0, 0, BAD),
    "kexec_file_load": (320, BAD, BAD, 0, 0, BAD),
    "init_module": (175, 0, 0, 0),
    "finit_module": (313, BAD, 0, 0),
    "delete_module": (176, 0, 0),
    "clock_settime": (227, 0, 0),
    "settimeofday": (164, 0, 0),
    "clock_adjtime": (305, 0, 0),
    "adjtimex": (159, 0),
    "open_by_handle_at": (304, BAD, 0, 0),
    "fanotify_init": (300, BAD, 0),
    "syslog": (103, 10, 0, 0),
    "reboot": (169, 0, 0, 0, 0),
    "swapon": (167, 0, 0),
    "iopl": (172, 99),
    "stopping at its end whom one seizes": (101, 0x4206, 0, 0, TRACEEXIT | 1),
    "stopping at its end whom one traces": (101, 0x4200, 0, 0, TRACEEXIT),
    "stopping at its end whom one traces, as of old": (101, 21, 0, 0, TRACEEXIT),
    "raw socket": (41, 2, 3, 1),
    "raw socket, version 6": (41, 10, 3, 58),
    "packet-level socket": (41, 2, 10, 0),
    "character device": (133, b"/workspace/null", CHAR | 0o666, 0x103),
    "whiteout": (133, b"/workspace/whiteout", CHAR, 0),
    "block device": (259, -100, b"/workspace/disk", BLOCK | 0o666, 0x800),
    **{f"unshare {name}": (272, flag) for name, flag in NAMESPACES.items()},
    "unshare time": (272, 0x80),
}
NO_SUCH_CALL = {
    "clone3": (435, 0, 0),
    "newer than the list": (467, BAD, 0, BAD, 0, 0),
    "much newer": (1000,),
    "the x32 table": (0x40000000 + 39,),
}
NO_SUCH_FAMILY = {
    "packet": (41, 17, 3, 3),
    "netfilter": (41, 16, 3, 12),
    "kernel events": (41, 16, 3, 15),
    "vsock": (41, 40, 1, 0),
    "kernel crypto": (41, 38, 5, 0),
    "bluetooth": (41, 31, 3, 1),
    "can": (41, 29, 3, 1),
    "xdp": (41, 44, 3, 0),
    "pair of internet sockets": (53, 2, 1, 0, BAD),
    "pair of vsock": (53, 40, 1, 0, BAD),
}
NO_SUCH_TYPE = {"dccp": (41, 2, 6, 33), "sequenced packets": (41, 10, 5, 132)}
NO_SUCH_PROTOCOL = {
    "sctp": (41, 2, 1, 132),
    "mptcp": (41, 10, 1, 262),
    "udplite": (41, 2, 2, 136),
    "smc": (41, 2, 1, 256),
}
REFUSED = {
    errno.EPERM: NOT_PERMITTED,
    errno.ENOSYS: NO_SUCH_CALL,
    errno.EAFNOSUPPORT: NO_SUCH_FAMILY,
    errno.ESOCKTNOSUPPORT: NO_SUCH_TYPE,
    errno.EPROTONOSUPPORT: NO_SUCH_PROTOCOL,
}


def main() -> None:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    for wanted, calls in REFUSED.items():
        for name, (number, *arguments) in calls.items():
            ctypes.set_errno(0)
            sized = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
            if library.syscall(ctypes.c_long(number), *sized) != -1 or ctypes.get_errno() != wanted:
                print(f"{name}: {errno.errorcode.get(ctypes.get_errno(), 'done')}")
    for name, flag in NAMESPACES.items():  # last, and by hand: where it is not refused there are two of us
        ctypes.set_errno(0)
        got = library.syscall(ctypes.c_long(56), ctypes.c_long(flag | SIGCHLD), *[ctypes.c_long(0)] * 4)
        if got == 0:
            library._exit(0)
        if got != -1 or ctypes.get_errno() != errno.EPERM:
            print(f"clone {name}: {errno.errorcode.get(ctypes.get_errno(), 'done')}")


if __name__ == "__main__":
    main()
