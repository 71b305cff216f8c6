"""A stand-in for a Docker engine, on a unix socket: it holds every request against the published API, and runs agents.

What it is asked must be in contracts/docker.json, which has the names and types of the fields of the engine's own API
document, and nothing else. A container it is told to start really runs, under bubblewrap and on this machine's /usr,
with the streams framed as engines frame them. It limits nothing but the size of tmpfs: that is for a real engine to do.
"""

import contextlib
import io
import itertools
import json
import os
import re
import socket
import socketserver
import struct
import subprocess
import tarfile
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import jsonschema

from etude.environments.launcher import proc

CONTRACT = json.loads((Path(__file__).parent / "contracts" / "docker.json").read_text())
USR_LINKS = [part for name in ("bin", "lib", "lib64", "sbin") for part in ("--symlink", f"usr/{name}", f"/{name}")]


class Container:
    def __init__(self, body):
        self.body, self.process, self.stream = body, None, None

    def start(self, ended):
        host, env = self.body["HostConfig"], self.body["Env"]
        argv = ["bwrap", "--unshare-all", "--as-pid-1", "--new-session", "--cap-drop", "ALL", "--clearenv"]
        argv += ["--hostname", self.body["Hostname"], "--ro-bind", "/usr", "/usr", *USR_LINKS]
        argv += [*proc(), "--dev", "/dev"]
        for place, options in host["Tmpfs"].items():
            said = dict(option.partition("=")[::2] for option in options.split(","))
            argv += ["--size", said["size"], "--perms", said["mode"].zfill(4), "--tmpfs", place]
        for mount in host["Mounts"]:
            argv += ["--ro-bind", mount["Source"], mount["Target"]]
        argv += ["--remount-ro", "/", "--unshare-user", "--uid", "1000", "--gid", "1000"]
        argv += [part for line in env for part in ("--setenv", *line.partition("=")[::2])]
        argv += ["--chdir", self.body["WorkingDir"], "--", *self.body["Entrypoint"], *self.body["Cmd"]]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        pumps = [
            threading.Thread(target=self.frame, args=(number, pipe), daemon=True)
            for number, pipe in ((1, self.process.stdout), (2, self.process.stderr))
        ]
        for pump in pumps:
            pump.start()
        threading.Thread(target=self.wait, args=(pumps, ended), daemon=True).start()

    def frame(self, number, pipe):
        while data := os.read(pipe.fileno(), 65536):
            try:
                self.stream.sendall(struct.pack(">BxxxI", number, len(data)) + data)
            except OSError:
                return

    def wait(self, pumps, ended):
        self.process.wait()
        for pump in pumps:
            pump.join()
        with contextlib.suppress(OSError):
            self.stream.shutdown(socket.SHUT_RDWR)  # to close it is not enough, while another thread reads
        ended()

    def feed(self, stream):
        """What the client sends, until it hangs up; then the input is closed, as StdinOnce says."""
        with contextlib.suppress(OSError):
            while data := stream.recv(65536):
                self.process.stdin.write(data)
                self.process.stdin.flush()
        if self.process is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.carry_out()

    do_POST = do_DELETE = do_GET

    def carry_out(self):
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.engine.log.append((self.command, unquote(url.path), json.loads(body) if body else None))
        if url.path == "/version":
            return self.say(200, {"Version": "stand-in", "ApiVersion": self.engine.version, "MinAPIVersion": "1.24"})
        version, _, path = url.path.removeprefix("/v").partition("/")
        route, name = match(self.command, f"/{path}")
        query = parse_qs(url.query)
        wrong = complaints(route, query, body)
        if wrong or version != self.engine.version:
            self.engine.wrong += wrong or [f"version {version}"]
            return self.say(400, {"message": "; ".join(wrong)})
        return getattr(self, "on_" + route.split()[0].lower() + re.sub(r"\W+", "_", route.split()[1]).rstrip("_"))(
            name, query, body
        )

    def say(self, status, answer=None, kind="application/json"):
        data = b"" if answer is None else answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        if data:
            self.send_header("Content-Type", kind)
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def on_get_images_name_json(self, name, query, body):
        found = self.engine.images.get(name)
        return self.say(200, found) if found else self.say(404, {"message": f"No such image: {name}"})

    def on_get_containers_json(self, name, query, body):
        (label,) = json.loads(query["filters"][0])["label"]
        found = [(key, box.body.get("Labels", {})) for key, box in self.engine.containers.items()]
        self.say(200, [{"Id": key, "Labels": labels} for key, labels in found if label in labels])

    def on_post_containers_create(self, name, query, body):
        number = f"{next(self.engine.numbers):064x}"
        self.engine.containers[number] = Container(json.loads(body))
        self.say(201, {"Id": number, "Warnings": []})

    def on_post_containers_id_attach(self, name, query, body):
        box = self.engine.containers[name]
        box.stream, self.close_connection = self.connection, True
        self.wfile.write(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
        box.feed(self.connection)

    def on_post_containers_id_start(self, name, query, body):
        if refusal := self.engine.refuse_start:
            return self.say(500, {"message": refusal})
        self.engine.containers[name].start(lambda: self.engine.containers.pop(name, None))
        return self.say(204)

    def on_get_events(self, name, query, body):
        told = [{"Action": action} for action in self.engine.events]
        return self.say(200, "\n".join(map(json.dumps, told)).encode())

    def on_delete_containers_id(self, name, query, body):
        box = self.engine.containers.pop(name, None)
        if box is None:
            return self.say(404, {"message": f"No such container: {name}"})
        if box.process is not None:
            box.process.kill()
        return self.say(204)

    def on_get_containers_id_archive(self, name, query, body):
        files = self.engine.workspaces.get(self.engine.containers[name].body["Image"])
        if files is None:
            return self.say(404, {"message": "no such directory"})
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            for path, content in {"workspace/" + path: content for path, content in files.items()}.items():
                info = tarfile.TarInfo(path)
                info.size, info.uid, info.uname = len(content), 0, "root"
                archive.addfile(info, io.BytesIO(content))
        return self.say(200, out.getvalue(), "application/x-tar")


class StandIn(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Use as a context manager. `log` has each request; `wrong` what the API document does not know."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path, version="1.44"):
        self.version, self.refuse_start, self.numbers = version, None, itertools.count(1)
        self.log, self.wrong, self.containers, self.workspaces = [], [], {}, {}
        self.events = ["die"]
        self.images = {"machine": {"Id": "sha256:" + "0" * 64, "Config": {"Env": ["PATH=/usr/bin"], "WorkingDir": ""}}}
        super().__init__(str(path), type("Bound", (Handler,), {"engine": self}))

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        for box in list(self.containers.values()):
            if box.process is not None:
                box.process.kill()
        self.server_close()


def match(method, path):
    """The document's route for a request, and the name in it."""
    for route in CONTRACT["requests"]:
        known, pattern = route.split()
        found = re.fullmatch(re.sub(r"\{\w+\}", "([^/]+)", pattern), path)
        if known == method and found:
            return route, unquote(found.group(1)) if found.groups() else None
    raise LookupError(f"{method} {path} is not in the API document")


def complaints(route, query, body):
    known = CONTRACT["requests"][route]
    wrong = [f"{route} has no query {name!r}" for name in query if name not in known["query"]]
    if not body:
        return wrong + ([f"{route} needs a body"] if "body" in known else [])
    if "body" not in known:
        return [*wrong, f"{route} takes no body"]
    schema = {"$ref": f"#/$defs/{known['body']}", "$defs": CONTRACT["$defs"]}
    errors = jsonschema.Draft202012Validator(schema).iter_errors(json.loads(body))
    return wrong + [f"{route}: {'.'.join(map(str, error.path))}: {error.message}" for error in errors]
