"""What a command tries against the host, by name: each must fail, whatever it prints.

Shell, and Python where a shell has no words for it. A program ends with 0 only where it got what it wanted.
"""

REFUSED_CALL = """python3 -c '
import ctypes, errno, os, sys
library = ctypes.CDLL(None, use_errno=True)
library.syscall.restype = ctypes.c_long
{}
got = library.{}
sys.exit(got < 0 and ctypes.get_errno() == errno.EPERM)'"""
NO_LINES = "pass"
REMOTE_READ = """
class Piece(ctypes.Structure): _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]
kept = ctypes.create_string_buffer(8)
ours, theirs = Piece(ctypes.addressof(kept), 8), Piece(0x400000, 8)"""
EVERY_SETTING = """python3 -c '
import os, sys
changed, names = [], ("shm", "msg", "sem", "auto_msgmni", "pid_max")
own = ("/proc/sys/fs/mqueue/", *(f"/proc/sys/kernel/{name}" for name in names))
for top in ("/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/proc/pressure"):
    for directory, _, names in os.walk(top):
        for path in (os.path.join(directory, name) for name in names):
            if path.startswith(own): continue  # of its own IPC and process namespaces: see OWN_SETTINGS
            try:
                with open(path, "r+b", buffering=0) as file: file.write(file.read())
                changed.append(path)
            except OSError: pass
print(changed)
sys.exit(not changed)'"""
OWN_SETTINGS = ("shmmax", "shmall", "msgmax", "msgmnb", "pid_max")
"""What a sandbox may set below /proc/sys/kernel, where it may, for itself alone."""
RAISE_AN_INTERFACE = """python3 -c '
import socket, struct, sys
netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
netlink.send(struct.pack("=IHHII", 32, 16, 5, 1, 0) + struct.pack("=BBHiII", 0, 0, 0, 1, 1, 1))
sys.exit(struct.unpack_from("=i", netlink.recv(4096), 16)[0] != 0)'"""
DATAGRAM = "python3 -c 'import socket; socket.socket({}, socket.SOCK_DGRAM).sendto(bytes(12), ({}, 53))'"
ASK_THE_RESOLVER = """python3 -c '
import socket
asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asking.settimeout(2)
asking.connect(("127.0.0.53", 53))
asking.send(bytes.fromhex("000101000001000000000000076578616d706c6503636f6d0000010001"))
asking.recv(512)'"""

JOIN_A_CGROUP = r"""while read -r _ at kind _; do
case $kind in cgroup*) find "$(printf %b "$at")" -name cgroup.procs -writable;; esac
done < /proc/self/mounts 2>/dev/null | grep ."""
"""Looked for where control groups are mounted: a workspace over the user's own files has all of theirs to search."""

ESCAPES = {
    "a capability": "grep -q 'Cap[IPEBA].*:.*[1-9a-f]' /proc/self/status",
    "unfiltered system calls": "grep -q 'Seccomp:.*[01]$' /proc/self/status",
    "privileges can be gained": "grep -q 'NoNewPrivs:.*0' /proc/self/status",
    "mount": "mount -t tmpfs none /workspace",
    "device": "mknod /workspace/d c 1 1 || mknod /tmp/d b 254 0",
    "user namespace": "unshare -U true",
    "mount namespace": "unshare -m true",
    "other namespaces": "nsenter -t 1 -m true",
    "chroot": "chroot /workspace /bin/sh",
    "write to the toolchain": "touch /usr/x || touch /etc/x || touch /x || touch /guest/guest",
    "kernel settings": "echo 1 > /proc/sys/kernel/core_pattern || echo 1 > /proc/sys/vm/drop_caches",
    "any setting of the kernel": EVERY_SETTING,
    "sysrq": "echo h > /proc/sysrq-trigger",
    "the kernel's memory": "head -c 1 /proc/kcore || head -c 1 /dev/mem || head -c 1 /dev/kmsg",
    "what others are charged": "echo 1 > /proc/1/oom_score_adj || echo 0 > /proc/1/loginuid",
    "its own limits": JOIN_A_CGROUP,
    "processes of the host": "nsenter -t 1 -p true || [ $(ls -d /proc/[0-9]* | wc -l) -gt 5 ]",
    "kill the agent": "kill -9 1; kill -STOP 1; kill -TERM 1; sleep 0.1; false",
    "the agent's descriptors": "readlink /proc/1/fd/3 || cat /proc/1/environ || ls /proc/1/root/",
    "the agent's socket": REFUSED_CALL.format(NO_LINES, "syscall(438, os.pidfd_open(1), 3, 0)"),
    "the agent's memory": 'python3 -c \'open("/proc/1/mem", "rb")\'',
    "a copy of the agent's memory": REFUSED_CALL.format(
        REMOTE_READ, "process_vm_readv(1, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)"
    ),
    "trace the agent": "python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(16, 1, 0, 0) != 0)'",
    "a key in the kernel's keyring": REFUSED_CALL.format(
        "add_key = {'x86_64': 248}.get(os.uname().machine, 217)".replace("'", '"'),
        'syscall(add_key, b"user", b"name", b"key", ctypes.c_size_t(3), ctypes.c_long(-3))',
    ),
    "host name": "hostname owned",
    "clock": "date -s 2001-01-01",
    "clock, by its call": "python3 -c 'import time; time.clock_settime(time.CLOCK_REALTIME, 0.0)'",
    "clock of the hardware": "cat /dev/rtc /dev/rtc0",
    "a time of its own": "echo 'monotonic 1000 0' > /proc/self/timens_offsets",
    "raw socket": "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)'",
    "packet socket": "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3)'",
    "internet": "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 3)'",
    "internet, by datagram": DATAGRAM.format("socket.AF_INET", '"8.8.8.8"'),
    "metadata": "python3 -c 'import socket; socket.create_connection((\"169.254.169.254\", 80), 3)'",
    "metadata, version 6": DATAGRAM.format("socket.AF_INET6", '"fd00:ec2::254"'),
    "names": "python3 -c 'import socket; socket.getaddrinfo(\"example.com\", 80)'",
    "the host's resolver": ASK_THE_RESOLVER,
    "interfaces": "grep -v -e lo: -e Inter- -e face /proc/net/dev",
    "change an interface": RAISE_AN_INTERFACE,
    "be less killable": "echo -1000 > /proc/self/oom_score_adj",
    "root by setuid": "for su in /usr/bin/passwd /usr/bin/su /usr/bin/newgrp; do cp $su s; chmod u+s s; ./s; done; "
    "python3 -c 'import os; os.setuid(0)'",
}

BOMBS = {
    "forks": "f() { f | f & }; f; sleep 30",
    "forks that leave": """python3 -c 'import os
while True:
    try:
        if os.fork() == 0: os.setsid()
    except OSError: pass'""",
    "memory": "python3 -c 'kept = []\nwhile True: kept.append(bytearray(1 << 20))'",
    "memory of many": "for i in 1 2 3; do python3 -c 'b = bytearray(80 << 20); import time; time.sleep(9)'& done; wait",
    "memory of the kernel": """python3 -c 'import socket
kept = []
while True:
    kept.append(socket.socketpair())
    kept[-1][0].setblocking(False)
    kept[-1][0].send(bytes(100000))'""",
    "disk": "for at in /workspace /tmp /home/agent /dev/shm /tests /logs; do cat /dev/zero > $at/fill; done; false",
    "inodes": """python3 -c 'import os
for place in ["/workspace", "/tmp", "/home/agent", "/dev/shm", "/tests", "/logs"]:
    try:
        for i in range(10**6): open(f"{place}/{i}", "w").close()
    except OSError as error: print(place, i, error.strerror)'; false""",
    "output without end": "yes",
    "output without a reader": "exec >&- 2>&-; yes",
    "a process that will not end": "trap '' TERM INT HUP QUIT; while true; do sleep 1; done",
    "a stopped process": "kill -STOP $$",
}
