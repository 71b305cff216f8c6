"""A stand-in for a Kubernetes cluster: it holds every request against the published API, and runs agents.

What it is sent must survive the objects of the published API document, as kubernetes_asyncio has them, unchanged: what
is no field there, or of another type, does not. Beyond the document it refuses what an API server's validation and the
"restricted" Pod Security Standard refuse of such pods. A pod really runs, under bubblewrap and on this machine's /usr,
first one container and then the other, and is attached to by the remote-command protocol: what it says while nobody is
attached is lost, and its input ends with the first attachment. It limits nothing, is no virtual machine, and has no
network: that is for a real cluster to show.
"""

import asyncio
import base64
import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import yaml
from aiohttp import web
from kubernetes_asyncio import client

TOKEN = "the-token"
USR_LINKS = [part for name in ("bin", "lib", "lib64", "sbin") for part in ("--symlink", f"usr/{name}", f"/{name}")]
STDIN, STDOUT, STDERR, STATUS = range(4)
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
FRAME = 32 << 10
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
QUANTITY = re.compile(r"\d+(m|Ki|Mi|Gi)?")
NODE_INFO = {
    "machineID": "m", "systemUUID": "u", "bootID": "5f0c5e0e-0000-4000-8000-000000000000", "kernelVersion": "6.12",
    "osImage": "Linux", "containerRuntimeVersion": "containerd://2.1.0", "kubeletVersion": "v1.35.0",
    "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64",
}  # fmt: skip


def now():
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def expanded(text):
    """As a kubelet does: $$ is one, and $(NAME) a variable, of which we use none."""
    assert "$(" not in text.replace("$$", "")
    return text.replace("$$", "$")


class Pod:
    """One pod and its kubelet."""

    def __init__(self, cluster, body):
        self.cluster, self.body = cluster, body
        self.spec, self.name = body["spec"], body["metadata"]["name"]
        body["metadata"] |= {"uid": f"uid-{self.name}", "creationTimestamp": now()}
        self.status = {"phase": "Pending"}
        self.place = Path(tempfile.mkdtemp(prefix="etude-pod-"))
        self.process, self.attached, self.stdin_open = None, None, True
        self.life = asyncio.ensure_future(self.live())

    def shown(self):
        return {**self.body, "status": self.status}

    def state(self, container, **state):
        kind = "initContainerStatuses" if container in self.spec.get("initContainers", []) else "containerStatuses"
        about = {"name": container["name"], "image": container["image"], "imageID": "i", "ready": False}
        self.status[kind] = [{**about, "restartCount": 0, "state": state}]

    async def live(self):
        unschedulable = self.cluster.unschedulable
        if unschedulable:
            about = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": unschedulable}
            self.status["conditions"] = [about]
            return
        self.spec["nodeName"] = "node-1"
        image = self.cluster.images.get(self.spec["containers"][0]["image"])
        if image is None:
            waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
            return self.state(self.spec["initContainers"][0], waiting=waiting)
        for volume in self.spec["volumes"]:
            directory = self.place / volume["name"]
            directory.mkdir()
            directory.chmod(0o777)
            if "configMap" in volume:
                for key, value in self.cluster.config_maps[volume["configMap"]["name"]]["binaryData"].items():
                    (directory / key).write_bytes(base64.b64decode(value))
        for container in (*self.spec["initContainers"], *self.spec["containers"]):
            code, said = await self.run(container, image)
            reason = "Completed" if code == 0 else "Error"
            about = {"exitCode": code, "reason": self.cluster.killed_for or reason, "finishedAt": now()}
            self.state(container, terminated={**about, **({"message": said} if code else {})})
            if code:
                break
        self.status["phase"] = "Failed" if code else "Succeeded"

    async def run(self, container, image):
        argv = [*self.confined(container, image), "--", *map(expanded, container["command"])]
        pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
        self.process = await asyncio.create_subprocess_exec(*argv, **pipes)
        said = bytearray()
        pumps = [self.pump(STDOUT, self.process.stdout, said), self.pump(STDERR, self.process.stderr, said)]
        if not container.get("stdin"):
            self.process.stdin.close()
        self.state(container, running={"startedAt": now()})
        if "stdin" in container:
            self.status["phase"] = "Running"
        await asyncio.gather(*pumps)
        code = await self.process.wait()
        if self.attached is not None:
            with contextlib.suppress(ConnectionError):
                await self.attached.send_bytes(bytes([STATUS]) + b'{"metadata":{},"status":"Success"}')
            await self.attached.close()
        return (128 - code if code < 0 else code), said.decode(errors="replace")[-2048:]

    async def pump(self, stream, pipe, said):
        """To whoever is attached; and to the log, the end of which is a failed container's message."""
        while data := await pipe.read(FRAME):
            said[:] = (said + data)[-4096:]
            if self.attached is not None:
                with contextlib.suppress(ConnectionError):
                    await self.attached.send_bytes(bytes([stream]) + data)

    def confined(self, container, image):
        argv = ["bwrap", "--unshare-all", "--as-pid-1", "--new-session", "--cap-drop", "ALL", "--clearenv"]
        argv += ["--share-net"] if self.cluster.networked else []
        argv += ["--hostname", self.spec["hostname"], "--ro-bind", "/usr", "/usr", *USR_LINKS]
        argv += ["--proc", "/proc", "--dev", "/dev"]
        if "files" in image:
            root = self.place / "image"
            for name, content in image["files"].items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(content)
            argv += ["--ro-bind", str(root), "/workspace"]
        workdir = container.get("workingDir", image.get("workdir", "/"))
        argv += ["--dir", workdir]
        for mount in container["volumeMounts"]:
            kind = "--ro-bind" if mount["readOnly"] else "--bind"
            argv += [kind, str(self.place / mount["name"]), mount["mountPath"]]
        argv += ["--remount-ro", "/", "--unshare-user", "--uid", "1000", "--gid", "1000", "--chdir", workdir]
        env = {"PATH": "/usr/bin:/bin", **image.get("env", {})}
        env |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.cluster.port)}
        env |= {each["name"]: expanded(each["value"]) for each in container.get("env", [])}
        return argv + [part for key, value in env.items() for part in ("--setenv", key, value)]

    async def serve(self, socket):
        """Of the first attachment until it ends, and with it the container's input, as stdinOnce says."""
        self.attached = socket
        async for message in socket:
            assert message.type is aiohttp.WSMsgType.BINARY, message
            if message.data[0] == STDIN and self.stdin_open:
                with contextlib.suppress(ConnectionError):
                    self.process.stdin.write(message.data[1:])
                    await self.process.stdin.drain()
        self.attached, self.stdin_open = None, False
        self.process.stdin.close()

    async def end(self, grace_s):
        """A deletion: it is killed when it has not ended within its time, and only then gone."""
        self.body["metadata"] |= {"deletionTimestamp": now(), "deletionGracePeriodSeconds": grace_s}
        await asyncio.wait({self.life}, timeout=grace_s)
        self.kill()
        await asyncio.wait({self.life})
        shutil.rmtree(self.place, ignore_errors=True)
        await asyncio.sleep(0.05)
        self.cluster.pods.pop(self.name, None)

    def kill(self):
        if self.process is None or self.process.returncode is not None:
            self.life.cancel()
            return
        with contextlib.suppress(OSError):  # it may be ending by itself
            for child in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
            self.process.kill()


class StandIn:
    """Use as a context manager. `log` has each request; `wrong` what the published API does not know."""

    def __init__(self, directory, protocols=PROTOCOLS):
        self.protocols, self.kubeconfig = protocols, directory / "kubeconfig"
        self.log, self.wrong, self.pods, self.config_maps, self.policies = [], [], {}, {}, {}
        self.images = {"machine": {}}
        self.runtime_classes = {"kata": "kata-qemu", "plain": "runc"}
        self.boot_id, self.networked, self.unschedulable, self.killed_for = None, False, None, None
        self.denied, self.events, self.busy, self.stuck = set(), [], 0, False
        self.loop = asyncio.new_event_loop()

    def __enter__(self):
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.call(self.open())
        user = {"name": "u", "user": {"token": TOKEN}}
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "x"}
        config |= {"users": [user], "clusters": [cluster], "contexts": [context]}
        self.kubeconfig.write_text(yaml.safe_dump(config))
        return self

    def __exit__(self, *_):
        self.call(self.close())
        self.loop.call_soon_threadsafe(self.loop.stop)

    def call(self, what):
        return asyncio.run_coroutine_threadsafe(what, self.loop).result(30)

    async def open(self):
        self.api = client.ApiClient(client.Configuration(host="http://nowhere"))
        app = web.Application(client_max_size=3 << 20)
        one = "/api/v1/namespaces/etude/pods/{name}"
        policies = "/apis/networking.k8s.io/v1/namespaces/etude/networkpolicies"
        reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        for method, path, handler, query in (
            ("GET", "/version/", self.show_version, ()),
            ("POST", "/api/v1/namespaces/etude/pods", self.make_pod, ()),
            ("GET", "/api/v1/namespaces/etude/pods", self.list_pods, ("labelSelector",)),
            ("GET", one, self.show_pod, ()),
            ("DELETE", one, self.remove_pod, ("gracePeriodSeconds",)),
            ("GET", f"{one}/attach", self.attach, ("container", "stdin", "stdout", "stderr", "tty")),
            ("GET", "/api/v1/namespaces/etude/events", self.list_events, ("fieldSelector",)),
            ("POST", "/api/v1/namespaces/etude/configmaps", self.make_config_map, ()),
            ("GET", "/api/v1/namespaces/etude/configmaps/{name}", self.show_config_map, ()),
            ("POST", policies, self.make_policy, ()),
            ("GET", policies, self.list_policies, ()),
            ("GET", "/api/v1/nodes/{name}", self.show_node, ()),
            ("GET", "/apis/node.k8s.io/v1/runtimeclasses/{name}", self.show_runtime_class, ()),
            ("POST", reviews, self.review, ()),
        ):
            app.router.add_route(method, path, self.checked(handler, query))
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]

    async def close(self):
        for pod in list(self.pods.values()):
            pod.kill()
            await asyncio.wait({pod.life})
            shutil.rmtree(pod.place, ignore_errors=True)
        await self.runner.cleanup()
        await self.api.close()

    async def abandon(self, body):
        """A pod that somebody has made, and that no node has taken."""
        self.unschedulable, before = "no node", self.unschedulable
        self.pods[body["metadata"]["name"]] = pod = Pod(self, body)
        await pod.life
        self.unschedulable = before

    def checked(self, handler, known):
        async def checked(request):
            body = await request.json() if request.can_read_body else None
            self.log.append((request.method, request.path, dict(request.query), body))
            self.wrong += [f"{request.path} has no query {name!r}" for name in request.query if name not in known]
            if request.headers.get("Authorization") != f"Bearer {TOKEN}":
                return refused(401, "Unauthorized")
            if self.busy:
                self.busy -= 1
                return refused(429, "too many requests, please try again later", {"Retry-After": "1"})
            return await handler(request, body)

        return checked

    def complaints(self, body, kind):
        """What of `body` is not what the published document says of objects of this kind."""
        try:
            seen = self.api.sanitize_for_serialization(
                self.api.deserialize(SimpleNamespace(data=json.dumps(body)), kind)
            )
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            return [f"{kind}: {error}"]
        return [] if seen == body else [f"{kind}: {difference(body, seen)}"]

    def taken(self, body, kind, *more):
        wrong = [*self.complaints(body, kind), *more]
        self.wrong += wrong
        return refused(422, "; ".join(wrong)) if wrong else None

    async def show_version(self, request, body):
        names = ("gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform")
        return web.json_response({"major": "1", "minor": "35", "gitVersion": "v1.35.0", **dict.fromkeys(names, "")})

    async def make_pod(self, request, body):
        if wrong := self.taken(body, "V1Pod", *unsound(body)):
            return wrong
        name, runtime = body["metadata"]["name"], body["spec"]["runtimeClassName"]
        if name in self.pods:
            return refused(409, f'pods "{name}" already exists')
        if runtime not in self.runtime_classes:
            return refused(403, f'pod rejected: RuntimeClass "{runtime}" not found')
        self.pods[name] = Pod(self, body)
        return web.json_response(self.pods[name].shown(), status=201)

    async def list_pods(self, request, body):
        wanted = [part.partition("=") for part in request.query["labelSelector"].split(",")]
        found = [pod.shown() for pod in self.pods.values() if selected(pod.body["metadata"]["labels"], wanted)]
        return web.json_response({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": found})

    async def show_pod(self, request, body):
        pod = self.pods.get(request.match_info["name"])
        return refused(404, "pods not found") if pod is None else web.json_response(pod.shown())

    async def remove_pod(self, request, body):
        pod = self.pods.get(request.match_info["name"])
        if pod is None:
            return refused(404, "pods not found")
        grace_s = int(request.query.get("gracePeriodSeconds", 30))
        if grace_s == 0:
            self.wrong.append("a pod was forgotten, and may still run")
        if not self.stuck:
            pod.removal = asyncio.ensure_future(pod.end(grace_s))
        return web.json_response(pod.shown())

    async def attach(self, request, body):
        pod = self.pods.get(request.match_info["name"])
        if pod is None:
            return refused(404, "pods not found")
        asked = {name: value.lower() for name, value in request.query.items()}
        if asked != {"container": "sandbox", "stdin": "true", "stdout": "true", "stderr": "true", "tty": "false"}:
            self.wrong.append(f"attached with {asked}")
        socket = web.WebSocketResponse(protocols=self.protocols, max_msg_size=32 << 20)
        await socket.prepare(request)
        if socket.ws_protocol is None:
            self.wrong.append("attached by no protocol that we have in common")
        if pod.status["phase"] != "Running":
            told = {"metadata": {}, "status": "Failure", "message": "container not running"}
            await socket.send_bytes(bytes([STATUS]) + json.dumps(told).encode())
            await socket.close()
        else:
            await pod.serve(socket)
        return socket

    async def list_events(self, request, body):
        items = [{"metadata": {}, "involvedObject": {}, "message": text, "type": "Warning"} for text in self.events]
        return web.json_response({"apiVersion": "v1", "kind": "EventList", "metadata": {}, "items": items})

    async def make_config_map(self, request, body):
        size = sum(len(base64.b64decode(value)) for value in body["binaryData"].values())
        if wrong := self.taken(body, "V1ConfigMap", *(["Too long: may not be more than 1048576 bytes"][: size >> 20])):
            return wrong
        return self.made(self.config_maps, body)

    async def show_config_map(self, request, body):
        return web.json_response(self.config_maps[request.match_info["name"]])

    async def make_policy(self, request, body):
        return self.taken(body, "V1NetworkPolicy") or self.made(self.policies, body)

    def made(self, kept, body):
        name = body["metadata"]["name"]
        if name in kept:
            return refused(409, f'"{name}" already exists')
        kept[name] = body
        return web.json_response(body, status=201)

    async def list_policies(self, request, body):
        items = list(self.policies.values())
        return web.json_response({"kind": "NetworkPolicyList", "metadata": {}, "items": items})

    async def show_node(self, request, body):
        info = {**NODE_INFO, **({"bootID": self.boot_id} if self.boot_id else {})}
        name = request.match_info["name"]
        return web.json_response({"kind": "Node", "metadata": {"name": name}, "status": {"nodeInfo": info}})

    async def show_runtime_class(self, request, body):
        name = request.match_info["name"]
        if name not in self.runtime_classes:
            return refused(404, f'runtimeclasses.node.k8s.io "{name}" not found')
        about = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}}
        return web.json_response({**about, "handler": self.runtime_classes[name]})

    async def review(self, request, body):
        if wrong := self.taken(body, "V1SelfSubjectAccessReview"):
            return wrong
        asked = body["spec"]["resourceAttributes"]
        allowed = (asked["verb"], asked["resource"]) not in self.denied
        return web.json_response({**body, "status": {"allowed": allowed}}, status=201)


def refused(code, message, headers=None):
    status = {"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure"}
    return web.json_response({**status, "message": message, "code": code}, status=code, headers=headers)


def selected(labels, wanted):
    return all(labels.get(key) == value if equals else key in labels for key, equals, value in wanted)


def difference(sent, seen, where=""):
    """The first place where what was sent is not what the document's objects have kept of it."""
    if isinstance(sent, dict) and isinstance(seen, dict):
        for key in sent:
            if key not in seen:
                return f"{where}.{key} is no field"
            if sent[key] != seen[key]:
                return difference(sent[key], seen[key], f"{where}.{key}")
    if isinstance(sent, list) and isinstance(seen, list):
        for number, (one, other) in enumerate(zip(sent, seen, strict=False)):
            if one != other:
                return difference(one, other, f"{where}[{number}]")
    return f"{where}: {sent!r} is read as {seen!r}"


def unsound(body):
    """What validation and the "restricted" Pod Security Standard refuse of such a pod."""
    metadata, spec = body["metadata"], body["spec"]
    containers = [*spec["initContainers"], *spec["containers"]]
    volumes = {volume["name"] for volume in spec["volumes"]}
    pod = spec["securityContext"]
    if not LABEL.fullmatch(metadata["name"]) or not all(map(LABEL.fullmatch, (*volumes, spec["hostname"]))):
        yield "a name is no DNS label"
    if not all(map(LABEL_VALUE.fullmatch, metadata["labels"].values())):
        yield "a label has an impossible value"
    if spec["dnsPolicy"] == "None" and not spec["dnsConfig"]["nameservers"]:
        yield "dnsPolicy None needs a name server"
    if not (pod["runAsNonRoot"] and pod["runAsUser"] and pod["seccompProfile"]["type"] == "RuntimeDefault"):
        yield "the pod is not restricted"
    for container in containers:
        own = container["securityContext"]
        if own["allowPrivilegeEscalation"] or own["capabilities"]["drop"] != ["ALL"] or own["privileged"]:
            yield f"container {container['name']} is not restricted"
        if {mount["name"] for mount in container["volumeMounts"]} - volumes:
            yield f"container {container['name']} mounts a volume that is not there"
        amounts = [value for kind in container["resources"].values() for value in kind.values()]
        if not all(map(QUANTITY.fullmatch, amounts)):
            yield f"container {container['name']} has an amount that is none"
