"""A stand-in for Firecracker: it holds every request against the published API, plays its protocol, and runs agents.

It stands for what Firecracker publishes (its API document 1.17.0-dev, docs/vsock.md and docs/snapshotting), none of
which is ours. Our backend starts a small program in Firecracker's place, confined as it would be; that program tries
as its own user what Firecracker would do with its descriptors, and hands them to this process, which plays the rest:
the API on its socket, the vsock on its own, a memory file with holes and zeros and content, and the rule that a copied
machine's connections are dead. Its guests are agents under bubblewrap. What only a machine's agent can do, a resume, it
answers itself and writes down; what a copy carries beside /workspace is for a real machine to show.
"""

import contextlib
import fcntl
import itertools
import json
import os
import re
import shutil
import socket
import socketserver
import struct
import subprocess
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import jsonschema

from etude.environments.build import default_cache_dir, guest_program

CONTRACT = json.loads((Path(__file__).parent / "contracts" / "firecracker.json").read_text())
PAGE = 4096
EROFS = (1024, b"\xe2\xe1\xf5\xe0")
OURS = 0xFFFFFFF5  # the id of a request of our own
USR_LINKS = [part for name in ("bin", "lib", "lib64", "sbin") for part in ("--symlink", f"usr/{name}", f"/{name}")]
RELAY = """#!{python} -IS
import json, os, socket, sys
if "--version" in sys.argv:
    print("Firecracker v{version}\\n")
    sys.exit()
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
report = {{"argv": sys.argv[1:], "status": status, "denied": [], "kvm": os.access("/dev/kvm", os.R_OK | os.W_OK)}}
report["interfaces"] = [line.split(":")[0].strip() for line in open("/proc/self/net/dev") if ":" in line]
fds = [fd for fd in range(3, 9) if os.path.exists(f"/proc/self/fd/{{fd}}")]
for fd in fds[1:]:
    try:
        os.close(os.open(f"/proc/self/fd/{{fd}}", os.O_WRONLY | os.O_CREAT if fd in (5, 6) else os.O_RDONLY))
    except OSError as error:
        report["denied"].append(f"descriptor {{fd}}: {{error}}")
try:
    os.close(os.open(f"/proc/self/fd/{{fds[0]}}/try", os.O_CREAT | os.O_WRONLY))
    os.unlink(f"/proc/self/fd/{{fds[0]}}/try")
except OSError as error:
    report["denied"].append(f"the directory: {{error}}")
line = socket.socket(socket.AF_UNIX)
line.connect({home!r})
socket.send_fds(line, [json.dumps(report).encode()], fds)
last = line.recv(4096)
print(last.decode(), flush=True)
sys.exit(1)
"""


class Fault(Exception):
    """What the API answers with 400."""


class Guest:
    """An agent that really runs. Frames are described in guest/serve.c."""

    def __init__(self, workspace, greets):
        argv = ["bwrap", "--unshare-all", "--as-pid-1", "--new-session", "--cap-drop", "ALL"]
        argv += ["--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--ro-bind", "/usr", "/usr", *USR_LINKS]
        argv += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--perms", "0777", "--tmpfs", "/workspace"]
        argv += ["--ro-bind", str(guest_program(default_cache_dir())), "/guest"]
        argv += ["--unshare-user", "--uid", "1000", "--gid", "1000", "--", "/guest", "contain", "stand-in"]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.listener, self.answers = threading.Condition(), {}
        self.line, self.stopped, self.quiet = None, not greets, not greets
        threading.Thread(target=self.pump, args=(greets,), daemon=True).start()
        if workspace:
            self.ask(b"u", b"/workspace\0" + workspace)

    def pump(self, greets):
        while head := self.process.stdout.read(12):
            size, number, _ = struct.unpack("<IIi", head)
            frame = head + self.process.stdout.read(size - 8)
            with self.listener:
                if number == OURS:
                    self.answers[number] = frame[12:]
                    self.listener.notify_all()
                elif number or greets:
                    self.listener.wait_for(lambda: self.line is not None or self.process.poll() is not None, 30)
                    self.send(frame)

    def send(self, frame):
        with contextlib.suppress(OSError, AttributeError):  # nobody is there any more
            self.line.sendall(frame)

    def ask(self, kind, body):
        with self.listener:
            self.answers.pop(OURS, None)
            self.write(struct.pack("<IIc", len(body) + 5, OURS, kind) + body)
            self.listener.wait_for(lambda: OURS in self.answers, 30)
            return self.answers[OURS]

    def write(self, frame):
        self.process.stdin.write(frame)
        self.process.stdin.flush()

    def workspace(self):
        whole = struct.pack("<4Q", 48 << 20, 48 << 20, 2**63, 2**64 - 1)  # in one archive, or not at all
        return self.ask(b"p", whole + b"/workspace")[8:]

    def end(self):
        self.process.kill()
        self.process.wait()


class Vm:
    """One process of ours in Firecracker's place: its API, its vsock, its guest."""

    def __init__(self, stand_in, line, report, fds):
        self.stand_in, self.relay, self.report = stand_in, line, report
        self.fds = dict(zip(itertools.count(3), fds, strict=False))
        self.setup, self.state, self.port = {}, "Not started", None
        self.guest = self.vsock = None
        self.gone = False
        self.copied, self.cuts = False, 0
        options = dict(zip(report["argv"][:6:2], report["argv"][1:6:2], strict=True))
        self.api = None
        if stand_in.lead_to is not None:
            os.symlink(stand_in.lead_to, self.own(options["--api-sock"]))
            return
        self.api = Server(self.own(options["--api-sock"]), type("Bound", (Handler,), {"vm": self}))
        threading.Thread(target=self.api.serve_forever, args=(0.02,), daemon=True).start()

    def own(self, path):
        """What a path of the other process leads to, here."""
        found = re.fullmatch(r"/proc/self/fd/(\d+)(/\w+)?", path)
        if found is None:
            self.stand_in.wrong.append(f"{path} names something of the host")
            raise Fault(f"cannot open {path}")
        return f"/proc/self/fd/{self.fds[int(found[1])]}{found[2] or ''}"

    def carry_out(self, method, path, body):
        if refusal := self.stand_in.refuse.get(f"{method} {path}"):
            raise Fault(refusal)
        if method == "PATCH":
            return self.set_state(body["state"])
        if path == "/snapshot/create":
            return self.create(body)
        if self.state != "Not started":
            raise Fault("The requested operation is not supported after starting the microVM.")
        if path == "/snapshot/load":
            return self.load(body)
        if path == "/actions":
            return self.start()
        self.setup[path] = body
        if path == "/vsock":
            self.listen()

    def start(self):
        source, drive = self.setup["/boot-source"], self.setup["/drives/disk"]
        self.must_begin(source["kernel_image_path"], 0, b"\x7fELF")
        self.must_begin(source["initrd_path"], 0, b"070701")
        self.must_begin(drive["path_on_host"], *EROFS)
        self.port = int(source["boot_args"].partition(" -- ")[2].split()[6])
        self.guest, self.state = Guest(b"", True), "Resumed"

    def must_begin(self, path, at, magic):
        with open(self.own(path), "rb") as file:
            file.seek(at)
            if file.read(len(magic)) != magic:
                raise Fault(f"{path} is not what it should be")

    def set_state(self, state):
        if self.state == "Not started":
            raise Fault("The requested operation is not supported before starting the microVM.")
        self.state = state
        if state == "Resumed" and self.copied:
            self.copied, self.cuts = False, self.stand_in.late_cuts
            self.hang_up()

    def create(self, body):
        if self.state != "Paused" or body.get("snapshot_type") == "Diff":
            raise Fault("Cannot create the snapshot: the microVM is not paused")
        size = self.setup["/machine-config"]["mem_size_mib"] << 20
        pages = {at * PAGE: os.urandom(PAGE).hex() for at in (0, 7, size // PAGE - 1, *range(2000, 2050))}
        with open(self.own(body["mem_file_path"]), "r+b") as memory:
            memory.truncate(size)
            memory.seek(1 << 20)
            memory.write(bytes(1 << 20))
            for at, page in pages.items():
                memory.seek(at)
                memory.write(bytes.fromhex(page))
        said = {"setup": self.setup, "port": self.port, "pages": pages, "workspace": self.guest.workspace().hex()}
        with open(self.own(body["snapshot_path"]), "wb") as state:
            state.write(json.dumps(said).encode())
        self.copied = True

    def load(self, body):
        if self.setup:
            raise Fault("Loading a microVM snapshot not allowed after configuring boot-specific resources.")
        with open(self.own(body["snapshot_path"]), "rb") as state:
            said = json.loads(state.read())
        self.check_memory(self.own(body["mem_backend"]["backend_path"]), said)
        self.setup, self.port = said["setup"], said["port"]
        self.must_begin(self.setup["/drives/disk"]["path_on_host"], *EROFS)
        self.listen()
        self.guest, self.cuts = Guest(bytes.fromhex(said["workspace"]), False), self.stand_in.late_cuts
        self.state = "Resumed" if body.get("resume_vm") else "Paused"

    def check_memory(self, path, said):
        fd = os.open(path, os.O_RDONLY)
        try:
            if os.fstat(fd).st_size != said["setup"]["/machine-config"]["mem_size_mib"] << 20:
                raise Fault("the memory file has another size than the memory")
            if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE:
                self.stand_in.wrong.append("a memory that others start from can be changed")
            found, at = {}, 0
            with contextlib.suppress(OSError):  # past the last data
                while True:
                    at = os.lseek(fd, at, os.SEEK_DATA)
                    found[at] = os.pread(fd, PAGE, at).hex()
                    at += PAGE
            if found != {int(at): page for at, page in said["pages"].items()}:
                raise Fault(f"the memory file holds {len(found)} pages, and not those that were written")
        finally:
            os.close(fd)

    def listen(self):
        vm = self

        class Call(socketserver.StreamRequestHandler):
            rbufsize = 0

            def handle(self):
                vm.call(self.connection)

        self.vsock = Server(self.own(self.setup["/vsock"]["uds_path"]), Call)
        threading.Thread(target=self.vsock.serve_forever, args=(0.02,), daemon=True).start()

    def call(self, line):
        asked = b""
        while not asked.endswith(b"\n"):
            asked += line.recv(1) or b"\n"
        self.stand_in.calls.append(asked)
        if self.state != "Resumed" or asked != b"CONNECT %d\n" % self.port or next(self.stand_in.deaf, None):
            return
        line.sendall(b"OK 1073741824\n")
        if self.cuts:
            self.cuts -= 1
            return
        guest = self.guest
        with guest.listener:
            guest.line = line
            guest.listener.notify_all()
        self.forward(line, guest)
        with guest.listener:
            guest.line = None
        if not guest.stopped:
            guest.end()  # as process 1 does: nobody will call it again

    def forward(self, line, guest):
        inbox = b""
        with contextlib.suppress(OSError):
            while data := line.recv(1 << 20):
                if self.state == "Paused":
                    self.stand_in.wrong.append("a machine was spoken to while it stood still")
                inbox += data
                while len(inbox) >= 9 and len(inbox) >= struct.unpack_from("<I", inbox)[0] + 4:
                    size, number, kind = struct.unpack_from("<IIc", inbox)
                    frame, inbox = inbox[: size + 4], inbox[size + 4 :]
                    if guest.quiet and kind != b"e":
                        self.stand_in.wrong.append(f"{kind} was asked between a stop and the resume after it")
                    guest.quiet = {b"f": True, b"e": False}.get(kind, guest.quiet)
                    if kind == b"e":
                        self.stand_in.resumed.append(frame[9:])
                        with guest.listener:
                            guest.send(struct.pack("<IIi", 8, number, 0))
                        continue
                    guest.stopped = {b"f": True, b"t": False}.get(kind, guest.stopped)
                    guest.write(frame)

    def hang_up(self):
        with self.guest.listener, contextlib.suppress(OSError, AttributeError):
            self.guest.line.shutdown(socket.SHUT_RDWR)

    def end(self, last):
        """As when Firecracker ends by itself, saying `last`: nobody answers any more."""
        self.gone = True
        with contextlib.suppress(OSError):
            self.relay.sendall(last)

    def close(self):
        self.gone = True
        if self.guest is not None:
            self.hang_up()
            self.guest.end()
        for server in filter(None, (self.api, self.vsock)):
            server.shutdown()
            server.server_close()
        for fd in self.fds.values():
            os.close(fd)


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_PUT(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        stand_in = self.vm.stand_in
        if self.vm.gone:
            self.close_connection = True
            return
        stand_in.log.append((self.command, self.path, body))
        wrong = complaints(self.command, self.path, body)
        stand_in.wrong += wrong
        try:
            if wrong:
                raise Fault("; ".join(wrong))
            self.vm.carry_out(self.command, self.path, body)
        except (Fault, KeyError, OSError) as fault:
            answer = json.dumps({"fault_message": str(fault)}).encode()
            self.send_response(400)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
            if self.path == "/snapshot/load":  # a failed load ends the process
                self.vm.end(str(fault).encode())
        else:
            self.send_response(204)
            self.end_headers()

    do_PATCH = do_PUT


class StandIn:
    """Use as a context manager. `log` has each request, `calls` each word on a vsock, `resumed` each resume's body;
    `wrong` has what Firecracker's documents do not know, or our own rules forbid. `deaf` gives something true for each
    call that is not answered, `late_cuts` counts calls that a machine started from a copy cuts, `lead_to` is where a
    machine that was taken over would have us talk."""

    def __init__(self, place, version="1.17.0-dev"):
        self.log, self.wrong, self.calls, self.resumed, self.reports, self.vms = [], [], [], [], [], []
        self.refuse, self.deaf, self.late_cuts, self.lead_to = {}, iter(()), 0, None
        python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
        self.program = place / "firecracker"
        home = place / "home"
        self.program.write_text(RELAY.format(python=python, home=str(home), version=version))
        self.program.chmod(0o755)
        stand_in = self

        class Arrival(socketserver.BaseRequestHandler):
            def handle(self):
                stand_in.arrived(self.request)

        self.server = Server(str(home), Arrival)
        home.chmod(0o777)

    def arrived(self, line):
        said, fds, _, _ = socket.recv_fds(line, 1 << 16, 16)
        report = json.loads(said)
        self.wrong += report["denied"]
        self.reports.append(report)
        vm = Vm(self, line, report, fds)
        self.vms.append(vm)
        with contextlib.suppress(OSError):
            line.recv(1)  # until it has been killed
        vm.close()
        self.vms.remove(vm)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def complaints(method, path, body):
    """What the API document does not allow in a request."""
    asked = f"{method} {path}"
    found = [
        name for route, name in CONTRACT["requests"].items() if re.fullmatch(re.sub(r"\{\w+\}", r"\\w+", route), asked)
    ]
    if not found:
        return [f"{asked} is not in the API document"]
    schema = {"$ref": f"#/$defs/{found[0]}", "$defs": CONTRACT["$defs"]}
    errors = jsonschema.Draft202012Validator(schema).iter_errors(body)
    return [f"{method} {path}: {'.'.join(map(str, error.path))}: {error.message}" for error in errors]
