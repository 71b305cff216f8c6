"""Real servers in processes of their own, forked from one that has loaded the program, so that a restart is quick."""

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import time
from pathlib import Path

from own_leftovers import left

from etude.config import parse
from etude.environments.client import RemoteBackend
from etude.environments.leftovers import leaks
from etude.environments.namespace import NamespaceConfig
from etude.environments.remote import RemoteConfig
from etude.environments.server.app import ServerConfig, serve

READY_DEADLINE_S = 120
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["etude.environments.server.app", "etude.environments.client"])  # all of this module's


def serve_in_process(config, pipe, constants):
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    for name, value in constants.items():
        setattr(NamespaceConfig, name, value)
    asyncio.run(serve(config, pipe.send))


class Served:
    """One server on one port and state directory, through however many lives. `constants` are its sandboxes'."""

    def __init__(self, directory: Path, constants=(), **given):
        node = {"state_dir": str(directory / "state"), **given.pop("node", {})}
        self.sandboxes = NamespaceConfig(state_dir=directory / "sandboxes", **given.pop("sandboxes", {}))
        node["backends"] = [self.sandboxes.model_dump()]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.config = parse({"port": port, "node": node, **given}, ServerConfig, "test")
        self.directory, self.url, self.process, self.pids = directory, "", None, []
        self.constants = dict(constants)

    def start(self):
        receiving, sending = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=serve_in_process, args=(self.config, sending, self.constants))
        self.process.start()
        self.pids.append(self.process.pid)
        sending.close()
        assert receiving.poll(READY_DEADLINE_S), "the server did not say that it is ready"
        self.url = receiving.recv()
        return self

    def kill(self):
        """As power loss would: it does nothing of its own any more."""
        self._signal(signal.SIGKILL)

    def stop(self):
        self._signal(signal.SIGTERM)
        assert self.process.exitcode == 0

    def _signal(self, number):
        os.kill(self.process.pid, number)
        self.process.join(READY_DEADLINE_S)
        assert self.process.exitcode is not None, "the server did not end"

    def end(self):
        if self.process is not None and self.process.exitcode is None:
            self.kill()

    @property
    def token(self):
        return self.config.token_path.read_text().strip()

    def remote(self, **given):
        waits = {name: given.pop(name) for name in ("busy_s", "unreachable_s") if name in given}
        asked = type("Asked", (RemoteConfig,), {"__module__": __name__, **waits})
        return asked(url=self.url, token_file=self.config.token_path, **given)

    def client(self, **given):
        return RemoteBackend(self.remote(**given))

    def inner(self, box):
        """What the backend calls a sandbox of ours."""
        lines = (self.directory / "state" / "events.jsonl").read_text().splitlines()
        return next(json.loads(line)["inner"] for line in reversed(lines) if box.id in line and '"inner"' in line)

    def guests(self):
        """The processes of each sandbox of this life, by the backend's name for it: its launcher's and its agent."""
        mine, found = f"{self.process.pid}-", {}
        for directory in Path("/proc").iterdir():
            if not directory.name.isdigit():
                continue
            with contextlib.suppress(OSError):  # it ended meanwhile
                _, serves, words = (directory / "cmdline").read_bytes().decode(errors="replace").partition("\0serve\0")
                for name in (word for word in words.split("\0") if serves and word.startswith(mine)):
                    found.setdefault(name, []).append(int(directory.name))
        return found

    def kill_guest(self, inner):
        """Kill all there is of one sandbox but what runs in it; False where there is nothing."""
        found = self.guests().get(inner, [])
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(found)

    def leaked(self, within_s=90.0):
        """What is left of sandboxes of this life, all of which have been ended."""
        return _waited(lambda: leaks(_Of(f"{self.process.pid}-"), self.sandboxes), within_s)

    def left(self, within_s=90.0):
        """What dead servers of this test left behind, once what is ending has had its time."""
        return _waited(lambda: left(self.sandboxes, self.pids), within_s)


class _Of:
    """Every sandbox of the process whose instances are named so."""

    def __init__(self, prefix):
        self._prefix = prefix

    def __contains__(self, inner):
        return inner.startswith(self._prefix) and inner.rpartition("/")[2].isdigit()


def _waited(look, within_s):
    """What is there, once what is ending has had its time."""
    end = time.monotonic() + within_s
    while (found := look()) and time.monotonic() < end:
        time.sleep(0.02)
    return found
