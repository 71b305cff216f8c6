"""Child of `guard`: lays migrations over a PostgreSQL database with data nobody has seen, and asks what came of it.

The request is {"files": {path below /workspace: content} of the migrations that were there, "directory": where they
are, "data": SQL, "queries": {key: SQL}}; the answer to a key is the query's rows, each a dict by column, or text saying
what went wrong. The database is new, in /tmp, and listens on a socket there alone. Migrations run in the order of their
names: those that were there, as they were; then the data comes in; then all that are new. The first failure ends it.
"""

import glob
import json
import os
import subprocess

WORKSPACE = "/workspace"
ROOT = "/tmp/verifier-database"
OPTIONS = f"-k {ROOT} -h '' -c fsync=off -c shared_buffers=8MB -c max_connections=10"


def run(request, _observe):
    problem = prepare(request)
    for key, query in request["queries"].items():
        yield key, repr(problem or rows(query))


def prepare(request):
    """Empty, or what failed."""
    directory = f"{WORKSPACE}/{request['directory']}"
    old = sorted(request["files"])
    for path in old:
        os.makedirs(os.path.dirname(f"{WORKSPACE}/{path}"), exist_ok=True)
        with open(f"{WORKSPACE}/{path}", "wb") as file:
            file.write(request["files"][path])
    start()
    for path in old:
        if problem := psql("-f", f"{WORKSPACE}/{path}")[1]:
            return f"{path}: {problem}"
    if problem := psql(stdin=request["data"])[1]:
        return f"the data: {problem}"
    names = sorted(name for name in os.listdir(directory) if name.endswith(".sql"))
    new = [name for name in names if f"{request['directory']}/{name}" not in old]
    for name in new:
        if problem := psql("-f", f"{directory}/{name}")[1]:
            return f"{name}: {problem}"
    return ""


def start():
    """A server of the newest PostgreSQL that is here. If it does not start there is no answer to any question."""
    os.mkdir(ROOT)
    programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: float(path.split("/")[4]))
    os.environ["PATH"] = ":".join([*programs[-1:], "/usr/local/bin", "/usr/bin", "/bin"])
    new = ["-N", "-U", "postgres", "--no-locale", "-E", "UTF8", "-A", "trust", "--wal-segsize=1"]
    for command in (
        ["initdb", "-D", f"{ROOT}/data", *new],
        ["pg_ctl", "-D", f"{ROOT}/data", "-w", "-t", "60", "-o", OPTIONS, "-l", f"{ROOT}/log", "start"],
    ):
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def psql(*words, stdin=""):
    """(what it printed, what went wrong)"""
    command = ["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", ROOT, "-U", "postgres", *words]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, cwd=WORKSPACE)
    return done.stdout, done.stderr.strip()[-300:] if done.returncode else ""


def rows(query):
    said, problem = psql(stdin=f"select coalesce(json_agg(answer), '[]') from ({query}) answer")
    return problem or json.loads(said)
