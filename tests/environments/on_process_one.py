"""What a command tries against process 1 of its sandbox, by name: to end it, slow it, stop it, or make it lie.

Runs inside a sandbox: `python3 on_process_one.py NAME` tries one, whatever comes of it, and ends with 7, which is what
the sandbox must say, or with 8 where it has changed what process 1 is given. What a try leaves running goes on trying
while the sandbox is asked for ordinary things.
"""

import ctypes
import fcntl
import os
import resource
import signal
import sys
import time

LIBRARY = ctypes.CDLL(None, use_errno=True)
LIBRARY.syscall.restype = ctypes.c_long
SETPARAM, SETSCHEDULER, SETAFFINITY, SETATTR, IOPRIO_SET, PIDFD_GETFD, MADVISE = 142, 144, 203, 314, 251, 438, 440
TRACEME, ATTACH, SEIZE = 0, 16, 0x4206
TRACEEXIT = ctypes.c_void_p(0x40)
SCHED_CORE = 62
IOPRIO_GET = 252
ENDED, CHANGED = 7, 8


def call(number, *arguments):
    return LIBRARY.syscall(
        ctypes.c_long(number), *(ctypes.c_long(each) if isinstance(each, int) else each for each in arguments)
    )


def attempt(function, *arguments):
    try:
        return function(*arguments)
    except OSError:
        return None


def given():
    """What process 1 has of limits, of priorities, and of processors."""
    stat = read("/proc/1/stat").rpartition(")")[2].split()
    status = [line for line in read("/proc/1/status").splitlines() if line.startswith("Cpus_allowed")]
    files = [read(f"/proc/1/{name}") for name in ("limits", "oom_score_adj", "autogroup")]
    return files, status, stat[15:17], stat[37:39], call(IOPRIO_GET, 1, 1)


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def limit(name, soft=0):
    """A limit it stands above already: of time, the kernel kills it; of anything else, no more can be had."""
    return lambda: attempt(resource.prlimit, 1, getattr(resource, f"RLIMIT_{name}"), (soft, soft))


def affinity():
    attempt(os.sched_setaffinity, 1, {max(os.sched_getaffinity(0))})
    call(SETAFFINITY, 1, 8, b"\1" + bytes(7))


def scheduler():
    for policy in (os.SCHED_IDLE, os.SCHED_BATCH, os.SCHED_FIFO):
        attempt(os.sched_setscheduler, 1, policy, os.sched_param(0))
    call(SETPARAM, 1, bytes(4))
    idle = (48).to_bytes(4, "little") + (5).to_bytes(4, "little") + bytes(40)
    call(SETATTR, 1, idle, 0)


def nice():
    for which, who in ((os.PRIO_PROCESS, 1), (os.PRIO_PGRP, 1), (os.PRIO_USER, 0), (os.PRIO_USER, os.getuid())):
        attempt(os.setpriority, which, who, 19)
    for which, who in ((1, 1), (2, 1), (3, os.getuid())):
        call(IOPRIO_SET, which, who, 3 << 13)


def traced_and_stopped():
    """Its parent is process 1, which is now told of each signal as if it were an end."""
    LIBRARY.ptrace(TRACEME, 0, None, None)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    os.kill(os.getpid(), signal.SIGUSR1)


def traced_and_replaced():
    LIBRARY.ptrace(TRACEME, 0, None, None)
    os.execl("/bin/sh", "sh", "-c", f"exit {ENDED}")


def traced_in_a_thread():
    import threading

    def trace():
        LIBRARY.ptrace(TRACEME, 0, None, None)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    signal.signal(signal.SIGUSR1, lambda *_: None)
    thread = threading.Thread(target=trace)
    thread.start()
    thread.join()


def traced_for_ever():
    """Many that process 1 hears of all the time."""
    for _ in range(6):
        if os.fork() == 0:
            apart()
            while os.getppid() != 1:
                pass
            signal.signal(signal.SIGUSR1, lambda *_: None)
            while True:
                LIBRARY.ptrace(TRACEME, 0, None, None)
                os.kill(os.getpid(), signal.SIGUSR1)


def traced_to_its_end():
    """Somebody who never lets it go on from there."""
    told, tell = os.pipe()
    leader = os.getpid()
    if os.fork() == 0:
        os.setsid()
        apart()
        LIBRARY.ptrace(SEIZE, leader, None, TRACEEXIT)
        os.write(tell, b"t")
        time.sleep(600)
    os.read(told, 1)


def tracing():
    for request in (ATTACH, SEIZE):
        LIBRARY.ptrace(request, 1, None, None)
    attempt(open, "/proc/1/mem", "r+b")
    process = attempt(os.pidfd_open, 1)
    for fd in range(10) if process is not None else ():
        call(PIDFD_GETFD, process, fd, 0)
    call(MADVISE, process or 0, bytes(16), 1, 21, 0)
    LIBRARY.prctl(SCHED_CORE, 1, 1, 0, 0)
    LIBRARY.prctl(SCHED_CORE, 2, 1, 2, 0)


def files_of_proc():
    for top in ("/proc/1", "/proc/1/task/1"):
        for name in ("oom_score_adj", "oom_adj", "autogroup", "timerslack_ns", "coredump_filter", "comm", "clear_refs"):
            for value in (b"1000", b"19", b"1"):
                try:
                    with open(f"{top}/{name}", "wb", buffering=0) as file:
                        file.write(value)
                except OSError:
                    continue


def signals():
    for number in set(signal.Signals) - {signal.SIGKILL}:
        attempt(os.kill, 1, number)
    attempt(os.kill, 1, signal.SIGKILL)
    if os.fork() == 0:
        apart()
        while True:
            attempt(os.kill, 1, signal.SIGCHLD)


def stop_whoever_is_new():
    """A command that is stopped before it is one, while process 1 waits for it."""
    for _ in range(3):
        if os.fork() == 0:
            apart()
            os.setsid()
            mine, end = os.getpid(), time.monotonic() + 2
            while time.monotonic() < end:
                for name in os.listdir("/proc"):
                    if name.isdigit() and int(name) not in (1, mine):
                        attempt(os.kill, int(name), signal.SIGSTOP)
            attempt(os.kill, -1, signal.SIGCONT)
            os._exit(0)


def let_nobody_be_stopped():
    for _ in range(3):
        if os.fork() == 0:
            apart()
            while True:
                attempt(os.kill, -1, signal.SIGCONT)


def every_process():
    """None is left to start a command with."""
    for _ in range(200):
        try:
            if os.fork() == 0:
                apart()
                time.sleep(3)
                os._exit(0)
        except OSError:
            return


def every_processor():
    for _ in range(16):
        if os.fork() == 0:
            apart()
            while True:
                pass


def orphans():
    if os.fork() == 0:
        apart()
        while True:
            try:
                if os.fork() == 0:
                    if os.fork() == 0:
                        os._exit(0)
                    os._exit(0)
                os.waitpid(-1, 0)
            except OSError:
                continue


def leases():
    """Who opens a file under a lease waits for its holder."""
    if os.fork() == 0:
        apart()
        for number in range(3):
            file = os.open(f"/workspace/leased-{number}", os.O_CREAT | os.O_WRONLY)
            attempt(fcntl.fcntl, file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        time.sleep(60)


def every_descriptor():
    """In a process of its own, as who looks afterwards needs some; what it holds is held when the try has ended."""
    taken, say = os.pipe()
    if os.fork() == 0:
        apart()
        held = []
        while (pipe := attempt(os.pipe)) is not None:
            held.append(pipe)
        os.write(say, b"t")
        time.sleep(60)
    os.read(taken, 1)


def logs():
    """The places where process 1 writes down long output."""
    for number in range(200):
        attempt(os.symlink, ("/proc/1/mem", "/workspace/kept")[number % 2], f"/tmp/exec-{number}.log")


def apart():
    """Without the command's output, which would keep nobody, but with its noise."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)


ATTEMPTS = {
    "no time": limit("CPU"),
    "no descriptors": limit("NOFILE", 3),
    "no memory": limit("AS", 1),
    "no data": limit("DATA"),
    "no stack": limit("STACK"),
    "no files": limit("FSIZE"),
    "no processes": limit("NPROC"),
    "no locked memory": limit("MEMLOCK"),
    "no pending signals": limit("SIGPENDING"),
    "no time in a row": limit("RTTIME"),
    "affinity": affinity,
    "scheduler": scheduler,
    "nice": nice,
    "traced, and stopped": traced_and_stopped,
    "traced, and replaced": traced_and_replaced,
    "traced, in a thread": traced_in_a_thread,
    "traced for ever": traced_for_ever,
    "traced, to its end": traced_to_its_end,
    "tracing": tracing,
    "files of /proc": files_of_proc,
    "signals": signals,
    "whoever is new is stopped": stop_whoever_is_new,
    "nobody may be stopped": let_nobody_be_stopped,
    "every process": every_process,
    "every processor": every_processor,
    "orphans": orphans,
    "leases": leases,
    "every descriptor": every_descriptor,
    "logs": logs,
}

if __name__ == "__main__":
    before = given()
    ATTEMPTS[sys.argv[1]]()
    if given() != before:
        print(before, given(), sep="\n")
        sys.exit(CHANGED)
    sys.exit(ENDED)
