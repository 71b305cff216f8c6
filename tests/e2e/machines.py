"""Machines on this machine: each with its own network, processes, host name and files, and the real sshd.

A machine is a process 1 with namespaces of its own. It has an end of a wire to a bridge, which is in a network where
the operator stands. What a machine must have of this one (the checkout, Python) it sees where that is; /tmp, /run,
/root, /var/tmp and /dev/shm are its own, and empty; it has no control groups. Killing process 1 is pulling the plug.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import debian_packages
import pytest
import wide_links

ROOT = Path(__file__).parents[2]
OWN = ("/run", "/tmp", "/var/tmp", "/root", "/dev/shm")
NETWORK = "10.77.0"
HEAR_S = 60.0
_UNSHARE = ("unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child")
_MADE_OF = ("sshd", "/usr/sbin/sshd", "sleep 0.2")
_SSHD = """
ListenAddress {address}
HostKey {there}/host_key
AuthorizedKeysFile {there}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
PidFile none
"""
_BOOT = """
set -e
mount --make-rprivate /
hostname {name}
mount -t proc proc /proc
mkdir -p {stage}
n=0
for path in {kept}; do n=$((n+1)); mkdir -p {stage}/$n; mount --bind $path {stage}/$n; done
mount -t tmpfs own /run
mkdir -p /run/kept /run/sshd
n=0
for path in {kept}; do n=$((n+1)); mkdir -p /run/kept/$n; mount --bind {stage}/$n /run/kept/$n; done
for path in /tmp /var/tmp /root /dev/shm /sys/fs/cgroup; do mount -t tmpfs own $path; done
chmod 1777 /tmp /var/tmp /dev/shm
n=0
for path in {kept}; do n=$((n+1)); mkdir -p $path; mount --bind /run/kept/$n $path; done
cp -r $(readlink -f {keys}) /run/keys
sed -i 's#@there@#/run/keys#' /run/keys/sshd_config
until [ -e /sys/class/net/wire ] || ip link show wire >/dev/null 2>&1; do sleep 0.05; done
ip link set lo up; ip address add {address}/24 dev wire; ip link set wire up
/usr/sbin/sshd -D -e -f /run/keys/sshd_config &
while true; do wait -n || sleep 0.2; done
"""


class Machines:
    """`with Machines(3, tmp_path) as machines:`"""

    def __init__(self, count, directory, shared=(), delay_ms=0.0, loss=0.0):
        """`shared` are further directories of this machine that all see where they are. With a delay or a loss, a share
        of frames, wires are long ones (wide_links.py), with these in each direction."""
        debian_packages.program("sshd", "openssh-server")
        self.directory = directory
        self.addresses = [f"{NETWORK}.{number + 1}" for number in range(count)]
        hidden = [
            each for each in {ROOT, Path(sys.prefix), Path(sys.base_prefix), *shared} if str(each).startswith(OWN)
        ]
        self.kept = [
            each for each in hidden if not any(each != other and each.is_relative_to(other) for other in hidden)
        ]
        self.long = (str(delay_ms), str(loss)) if delay_ms or loss else None
        self.switch = None
        self.inits = {}
        self.wires = {}

    def __enter__(self):
        if os.getuid() != 0:
            pytest.skip("only root can make machines of namespaces")
        self.switch = self._holder()
        self._in_switch("ip", "link", "add", "bridge", "type", "bridge")
        self._in_switch("ip", "address", "add", f"{NETWORK}.254/24", "dev", "bridge")
        for device in ("lo", "bridge"):
            self._in_switch("ip", "link", "set", device, "up")
        self._key("operator")
        for address in self.addresses:
            self.boot(address)
        return self

    def __exit__(self, *error):
        for address in list(self.inits):
            self.unplug(address)
        self.switch.kill()
        self.switch.wait()

    # --- the operator -------------------------------------------------------------------------------------------------

    @property
    def prefix(self):
        """What a command line begins with that the operator gives."""
        return ["nsenter", f"--net=/proc/{self.switch.pid}/ns/net"]

    def there(self, address):
        """What a command line begins with that runs on a machine."""
        return ["nsenter", "--target", str(self.init(address)), "--all", "--wd=/"]

    @property
    def ssh_options(self):
        return [
            f"IdentityFile={self.directory}/operator", f"UserKnownHostsFile={self.directory}/known_hosts",
            "StrictHostKeyChecking=accept-new", "IdentitiesOnly=yes",
        ]  # fmt: skip

    # --- machines -----------------------------------------------------------------------------------------------------

    def boot(self, address):
        """Plug it in; returns when its sshd answers."""
        keys = self.directory / f"keys-{address}"
        shutil.rmtree(keys, ignore_errors=True)
        keys.mkdir()
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / "host_key")], check=True)
        shutil.copy(self.directory / "operator.pub", keys / "authorized_keys")
        (keys / "sshd_config").write_text(_SSHD.format(address=address, there="@there@"))
        number = address.rpartition(".")[2]
        script = _BOOT.format(
            name=f"machine-{number}", address=address, keys=f"/run/kept/{len(self.kept) + 1}",
            stage=f"{self.directory}/stage-{number}", kept=" ".join(map(str, [*self.kept, keys])),
        )  # fmt: skip
        with (self.directory / f"console-{number}.log").open("wb") as console:
            self.inits[address] = subprocess.Popen(
                [*_UNSHARE, "bash", "-c", script],
                stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True, env=self._bare(),
            )  # fmt: skip
        init = self._until(lambda: self.init(address), f"process 1 of {address}")
        wire = f"wire-{number}"
        self._lay(wire, init)
        self._in_switch("ip", "link", "set", wire, "master", "bridge", "up")
        (self.directory / "known_hosts").unlink(missing_ok=True)  # a machine that was plugged in again is another
        self._until(lambda: self.ssh(address, "true").returncode == 0, f"sshd of {address}")

    def unplug(self, address):
        """Everything on it ends at once, and it is off the network."""
        wire = f"wire-{address.rpartition('.')[2]}"
        subprocess.run([*self.prefix, "ip", "link", "delete", wire])  # it would go by itself, at some time
        if (long := self.wires.pop(wire, None)) is not None:
            long.kill()
            long.wait()
        outer = self.inits.pop(address)
        outer.kill()
        outer.wait()

    def cut(self, address, seconds):
        """Its wire is out for this long."""
        wire = f"wire-{address.rpartition('.')[2]}"
        self._in_switch("ip", "link", "set", wire, "down")
        time.sleep(seconds)
        self._in_switch("ip", "link", "set", wire, "up")

    def init(self, address):
        """The number of its process 1, as it is here; None while there is none with a network of its own."""
        outer = self.inits[address]
        assert outer.poll() is None, (self.directory / f"console-{address.rpartition('.')[2]}.log").read_text()
        found = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        if not found or os.readlink(f"/proc/{found[0]}/ns/net") == os.readlink("/proc/self/ns/net"):
            return None
        return int(found[0])

    def ssh(self, address, command):
        options = [part for option in self.ssh_options for part in ("-o", option)]
        return subprocess.run(
            [*self.prefix, "ssh", "-o", "BatchMode=yes", *options, f"root@{address}", command],
            capture_output=True, text=True, timeout=HEAR_S,
        )  # fmt: skip

    def processes(self, address):
        """Command lines of all that runs on it, but for its first process and sshd."""
        return [line for line in self._running(address).values() if not line.startswith(_MADE_OF)]

    def pids(self, address, word):
        """The numbers, as they are here, of its processes whose program has this in its path."""
        return [pid for pid, line in self._running(address).items() if word in line.split()[0]]

    def terminate(self, address):
        """Ask all that runs on it to end, as whoever ends a container does."""
        for pid, line in self._running(address).items():
            if not line.startswith(_MADE_OF):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)

    def _running(self, address):
        init, found = self.init(address), {}
        own = os.readlink(f"/proc/{init}/ns/pid")
        for path in Path("/proc").glob("[0-9]*"):
            try:
                alive = (path / "stat").read_text().rpartition(") ")[2][0] not in "ZX"
                if alive and path.name != str(init) and os.readlink(path / "ns/pid") == own:
                    found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode() or "?"
            except OSError:
                continue  # it ended while we looked
        return found

    # --- how ----------------------------------------------------------------------------------------------------------

    def _key(self, name):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.directory / name)], check=True)

    def _holder(self):
        holder = subprocess.Popen(["unshare", "--net", "sleep", "3600"])
        own = os.readlink("/proc/self/ns/net")
        self._until(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != own, "a network of the operator's")
        return holder

    def _lay(self, wire, init):
        """From the bridge to the machine."""
        if self.long is None:
            ends = ("veth", "peer", "name", "wire", "netns", f"/proc/{init}/ns/net")
            self._in_switch("ip", "link", "add", wire, "type", *ends)
            return
        ends = [wire, str(self.switch.pid), "wire", str(init)]
        self.wires[wire] = subprocess.Popen([sys.executable, wide_links.__file__, *ends, *self.long])
        there = [*self.prefix, "ip", "link", "show", wire]
        self._until(lambda: subprocess.run(there, capture_output=True).returncode == 0, f"the end of {wire}")

    def _in_switch(self, *words):
        subprocess.run([*self.prefix, *words], check=True)

    @staticmethod
    def _bare():
        """A machine does not have the variables of whoever plugs it in."""
        return {"PATH": os.environ["PATH"], "HOME": "/root", "LANG": "C.UTF-8"}

    @staticmethod
    def _until(there, what):
        deadline = time.monotonic() + HEAR_S
        while not (found := there()):
            assert time.monotonic() < deadline, what
            time.sleep(0.05)
        return found
