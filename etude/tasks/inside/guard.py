"""The trusted parent of a verifier: it alone knows what is right, and it alone writes the reward.

Runs as `python3 -I -S -B /tests/guard.py`, so nothing in the workspace can be imported by accident. Code under test
runs in a forked child that is sent a program and a request, and answers in lines over a pipe. The parent

  - forks before it knows any answer, then becomes unreadable to other processes (not dumpable) and only then reads
    /tests/secret, which it removes;
  - takes an answer only with this run's nonce, and never runs, imports or unpickles anything the child sent;
  - before it judges, kills every other process in the sandbox, so that none is left to change the reward.

Whatever goes wrong here ends in a non-zero exit status, and then no reward counts. The time limit is the sandbox's.
/tests/secret is one Python literal: {"program": source of `run(request, report)`, "request": …, "expected": {key:
value}}; a key has no space in its repr. Knows nothing of what the request means. Talks to nobody outside the sandbox.
"""

import _ctypes
import posix

SECRET = "/tests/secret"
REWARD_DIR = "/logs/verifier"
ANSWER_BYTES = 1 << 20
PR_SET_DUMPABLE = 4
SIGKILL = 9
ONLY_AST = 0x400


def main():
    request_end, to_child = posix.pipe()
    from_child, answer_end = posix.pipe()
    if posix.fork() == 0:
        posix.close(to_child)
        posix.close(from_child)
        be_child(request_end, answer_end)
    posix.close(request_end)
    posix.close(answer_end)
    become_unreadable()
    with open(SECRET, encoding="utf-8") as file:
        secret = eval(file.read())
    posix.unlink(SECRET)
    nonce = posix.urandom(16).hex()
    send(to_child, repr((secret["program"], secret["request"], nonce)).encode())
    answers = receive(from_child, nonce, len(secret["expected"]))
    posix.kill(-1, SIGKILL)  # every process but this one and the sandbox's first
    wrong = [key for key, value in secret["expected"].items() if not equal(answers.get(repr(key)), value)]
    print(f"passed {len(secret['expected']) - len(wrong)} of {len(secret['expected'])}; wrong: {wrong}")
    write_reward(0.0 if wrong else 1.0)


def be_child(request_end, answer_end):
    """Read the request, run the program, and never return."""
    try:
        with open(request_end, encoding="utf-8") as file:
            program, request, nonce = eval(file.read())
        null = posix.open("/dev/null", posix.O_RDWR)
        for stream in (0, 1, 2):
            posix.dup2(null, stream)

        def report(key, text):
            line = f"{nonce} {key!r} {text}".replace("\n", " ")
            send(answer_end, line.encode("utf-8", "backslashreplace") + b"\n", close=False)

        space: dict = {"__name__": "child"}
        exec(compile(program, "child", "exec"), space)
        space["run"](request, report)
    finally:
        posix._exit(0)


def become_unreadable():
    """No ptrace, no /proc/PID/mem, no /proc/PID/fd for processes of the same user."""
    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # ty: ignore[invalid-argument-type]  # None: this program itself
    if _ctypes.call_function(prctl, (PR_SET_DUMPABLE, 0, 0, 0, 0)) != 0:
        raise OSError("prctl(PR_SET_DUMPABLE) failed")


def send(pipe, data, close=True):
    while data:
        data = data[posix.write(pipe, data) :]
    if close:
        posix.close(pipe)


def receive(pipe, nonce, wanted):
    """Answers by key's text: as many lines as there are questions, or fewer when the child ends or floods."""
    data = b""
    while data.count(b"\n") < wanted and len(data) <= ANSWER_BYTES:
        chunk = posix.read(pipe, 1 << 16)
        if not chunk:
            break
        data += chunk
    answers = {}
    for line in data.decode("utf-8", "replace").split("\n")[:-1]:
        said, _, rest = line.partition(" ")
        key, _, text = rest.partition(" ")
        if said != nonce or key in answers:
            raise SystemExit("tampering: an answer without this run's nonce, or a second one to a question")
        answers[key] = text
    return answers


def equal(text, expected):
    """Whether a value's text stands for the expected value. Text that is no literal must match to the letter."""
    if text is None:
        return False
    if text == repr(expected):
        return True
    try:
        tree = compile(text, "answer", "eval", ONLY_AST)
        return literal(tree.body) == expected  # ty: ignore[missing-attribute]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return False


def literal(node):
    """The value of a parsed literal; it builds, and never calls, anything."""
    kind = type(node).__name__
    if kind == "Constant":
        return node.value
    if kind == "List":
        return [literal(item) for item in node.elts]
    if kind == "Tuple":
        return tuple([literal(item) for item in node.elts])
    if kind == "Set":
        return {literal(item) for item in node.elts}
    if kind == "Dict":
        return {literal(key): literal(value) for key, value in zip(node.keys, node.values, strict=True)}
    if kind == "UnaryOp" and type(node.op).__name__ == "USub":
        return -literal(node.operand)
    raise ValueError(kind)


def write_reward(reward):
    path = REWARD_DIR + "/reward.txt"
    for operation, place, harmless in (
        (posix.mkdir, REWARD_DIR, FileExistsError),
        (posix.unlink, path, FileNotFoundError),
    ):
        try:
            operation(place)
        except harmless:
            continue
    with open(posix.open(path, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL, 0o644), "w") as file:
        file.write(str(reward))


if __name__ == "__main__":
    main()
