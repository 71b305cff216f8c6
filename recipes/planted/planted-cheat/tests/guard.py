"""The trusted parent of a verifier: it alone knows what is right, and it alone writes the reward.

Runs as `python3 -I -S -B /tests/guard.py`, so nothing in the workspace can be imported by accident; or from its code,
by `start`. Code under test runs in a forked child that is sent a program and a request, and answers in lines over a
pipe. The parent

  - forks before it knows any answer, once for each run that there may be, then becomes unreadable to other processes
    (not dumpable) and only then reads /tests/secret, which it removes;
  - takes an answer only with a mark that this run's nonce was needed for, and never runs, imports or unpickles anything
    the child sent;
  - before it judges, ends every other process in the sandbox, so that none is left to change the reward.

Whatever goes wrong here ends in a non-zero exit status, and then no reward counts. The time limit is the sandbox's.
/tests/secret is one Python literal, or after a NUL the same marshalled: {"program": source of `run(request, observe)`,
which yields (key, text), "request": …, "expected": {key: value}}; a key has no space in its repr. A program may also be
(magic number, its code marshalled, source); the source is compiled where this interpreter is of another version. Where
tests run in the child it has two more keys (see `observe`): "asked", {place in the tests: (how, value)}, the values
that were taken out of the tests, and "must", {key: places that a test passes on its way}. What the child saw at a
place, "@KEY:PLACE", is compared here, and each of these places must have been passed before the test's own answer;
"tools" is the last. "away" names files that go before a run, whose questions are then asked in an order that nobody
knows. "unseen" is a second run, told as the first, in a child of its own: both must be right. Knows nothing else of
what a request means. Talks to nobody outside the sandbox.
"""

import _ctypes
import marshal
import posix
import time
from _blake2 import blake2s
from _frozen_importlib_external import MAGIC_NUMBER
from itertools import chain, starmap

SECRET = "/tests/secret"
WORKSPACE = "/workspace"
REWARD_DIR = "/logs/verifier"
ANSWER_BYTES = 1 << 25
DONE, TOOLS = "done", "tools"
PR_SET_DUMPABLE = 4
SIGKILL = 9
MOST_TRIES = 3000
MOST_RUNS = 2
ONLY_AST = 0x400


def main(runs=MOST_RUNS):
    children = []
    while len(children) < runs:
        children.append(forked(children))
    become_unreadable()
    with open(SECRET, "rb") as file:
        told = file.read()
    posix.unlink(SECRET)
    secret = marshal.loads(told[1:]) if told[:1] == b"\0" else eval(told)
    wrong, asked = [], 0
    for pipes, run in zip(children, (secret, secret.get("unseen"))[:runs], strict=True):
        if run and not wrong:
            wrong, asked = judged(run, *pipes), asked + len(run["expected"])
    end_the_others()
    print(f"passed {asked - len(wrong)} of {asked}; wrong: {wrong}", flush=True)
    write_reward(0.0 if wrong else 1.0)
    posix._exit(0)  # what an interpreter does at its end takes a tenth of all this


def forked(others):
    """The parent's ends of the pipes to and from a new child."""
    request_end, to_child = posix.pipe()
    from_child, answer_end = posix.pipe()
    if posix.fork() == 0:
        for pipe in (to_child, from_child, *sum(others, ())):
            posix.close(pipe)
        be_child(request_end, answer_end)
    posix.close(request_end)
    posix.close(answer_end)
    return to_child, from_child


def judged(run, to_child, from_child):
    """Have a child run the program, and say which keys are wrong."""
    request = run["request"]
    if "away" in run:
        take_away(run["away"])
        request = dict(sorted(request.items(), key=lambda item: posix.urandom(8)))
    nonce = posix.urandom(16).hex()
    send(to_child, marshal.dumps((run["program"], request, nonce)))
    posix.close(to_child)
    answers, seen = receive(from_child, run.get("asked", {}), blake2s(key=nonce.encode()))
    expected, must = run["expected"], run.get("must", {})
    wrong = [key for key, value in expected.items() if not equal(answers.get(repr(key)), value, ANSWERED)]
    for key, places in must.items():
        found = seen.get(str(key), {})
        if key not in wrong and not (all(found.values()) and all(place in found for place in places)):
            wrong.append(key)
    for key in (key for key in wrong if key in must):
        found = seen.get(str(key), {})
        print(f"{key}: wrong at {[place for place in {*found, *must[key]} if not found.get(place)]}")
    return wrong


def take_away(paths):
    for path in paths:
        try:
            posix.unlink(f"{WORKSPACE}/{path}")
        except OSError:  # something else stands there, or nothing
            continue


def end_the_others():
    """Every process but this one and the sandbox's first. One that is told to end first finishes the call it is in, and
    that may take long and be a rename onto the reward: so until there is none any more.
    """
    for _ in range(MOST_TRIES):
        try:
            posix.kill(-1, SIGKILL)
        except ProcessLookupError:
            return
        try:
            posix.waitpid(-1, 0)  # as long as it has children; what is nobody's child can only be asked about
        except ChildProcessError:
            time.sleep(0.01)
    raise SystemExit("tampering: a process does not end")


def be_child(request_end, answer_end):
    """Run the program, and never return. Code under test walks frames: none of them holds what reports, as it is C that
    calls it with what the program yields."""
    try:
        any(starmap(*started(request_end, answer_end)))
    finally:
        posix._exit(0)


def started(request_end, answer_end):
    """What reports, and what the program answers, one after the other, once it is asked."""
    with open(request_end, "rb") as told:
        program, request, nonce = marshal.loads(told.read())
    null = posix.open("/dev/null", posix.O_RDWR)
    for stream in (0, 1, 2):
        posix.dup2(null, stream)
    marks = blake2s(key=nonce.encode())  # from here on nothing shows the nonce

    def report(key, text):
        line = f"{key!r} {text}".replace("\n", " ").encode("utf-8", "backslashreplace")
        send(answer_end, mark(marks, line) + b" " + line)

    space: dict = {"__name__": "child"}
    exec(code_of(program), space)
    observe = map(space.get("Observer", id), iter([report].pop, None))  # gives one, and has nothing then
    return report, chain(space["run"](request, observe), [(DONE, "")])


def code_of(program):
    if isinstance(program, str):
        return compile(program, "child", "exec")
    magic, code, source = program
    return marshal.loads(code) if magic == MAGIC_NUMBER else compile(source, "child", "exec")


def mark(marks, line):
    mine = marks.copy()
    mine.update(line)
    return mine.hexdigest().encode()


def become_unreadable():
    """No ptrace, no /proc/PID/mem, no /proc/PID/fd for processes of the same user."""
    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # ty: ignore[invalid-argument-type]  # None: this program itself
    if _ctypes.call_function(prctl, (PR_SET_DUMPABLE, 0, 0, 0, 0)) != 0:
        raise OSError("prctl(PR_SET_DUMPABLE) failed")


def send(pipe, line):
    data = line + b"\n"
    while data:
        data = data[posix.write(pipe, data) :]


def receive(pipe, asked, marks):
    """(answers by key's text, whether what was seen is right by test and place), until the child is done, ends, or
    floods. What a test sees after its own answer, as in a process it left behind, does not count."""
    answers, seen, halves, rest, size = {}, {}, {}, b"", 0
    while repr(DONE) not in answers and size <= ANSWER_BYTES:
        chunk = posix.read(pipe, 1 << 16)
        if not chunk:
            break
        size += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            said, _, told = line.partition(b" ")
            key, _, text = told.decode("utf-8", "replace").partition(" ")
            if said != mark(marks, told) or key in answers:
                raise SystemExit("tampering: an answer without this run's mark, or a second one to a question")
            if not key.startswith("'@"):
                if repr(DONE) in answers or (repr(TOOLS) in answers and key != repr(DONE)):
                    raise SystemExit("tampering: an answer after the last one")
                answers[key] = text
                continue
            test, _, number = key[2:-1].rpartition(":")
            if {test, repr(test), repr(TOOLS), repr(DONE)} & answers.keys():
                continue
            place = int(number) if number.isdecimal() else None
            if text[:2] == "< ":
                halves[key] = text[2:]
                continue
            if text[:2] == "> ":
                text = f": ({halves.pop(key, '')}, {text[2:]})"
            places = seen.setdefault(test, {})
            if not right(text, asked.get(place)):
                places[place] = False
            places.setdefault(place, True)
    return answers, seen


def right(text, asked):
    """Whether what was seen at a place is what is wanted there; `asked` is None where the child has both sides."""
    form, _, value = text.partition(" ")
    if asked is None:
        both = form == ":" and parsed(value)
        return text == "~ True" or (isinstance(both, tuple) and both[0] == both[1])
    how, *wanted = asked
    if how == "end":
        return text == "- True"
    if how == "near":
        return form == "=" and near(parsed(value), *wanted)
    if how in ("items", "count"):
        return form == "=" and (alike(parsed(value), *wanted) if how == "count" else equal(value, *wanted))
    return form == "=" and (value == repr(wanted[0]) if how == "is" else equal(value, wanted[0]))


def alike(value, wanted):
    """Whether two lists hold the same, in any order."""
    rest = value if isinstance(value, list) else [None, *wanted]
    for each in wanted:
        if each not in rest:
            return False
        rest.remove(each)
    return not rest


def near(value, wanted, relative, absolute):
    """As `pytest.approx` has it."""
    if isinstance(wanted, (list, tuple)):
        same = type(value) is type(wanted) and len(value) == len(wanted)
        return same and all(near(*pair, relative, absolute) for pair in zip(value, wanted, strict=True))
    if isinstance(wanted, dict):
        same = isinstance(value, dict) and value.keys() == wanted.keys()
        return same and all(near(value[key], wanted[key], relative, absolute) for key in wanted)
    if not isinstance(value, (int, float, complex)) or not isinstance(wanted, (int, float, complex)):
        return value == wanted
    try:
        return value == wanted or abs(value - wanted) <= max(relative * abs(wanted), absolute)
    except OverflowError:  # an integer beyond all floats
        return False


class Rich:
    """A value of no builtin type, by what it says that it equals: of each kind of builtin value one at most."""

    def __init__(self, views):
        self.views = {kind_of(view): view for view in views}
        if len(self.views) < len(views):
            raise ValueError("two of a kind")

    def __eq__(self, other):
        kind = kind_of(other)
        return kind in self.views and self.views[kind] == other

    __hash__ = None


def kind_of(value):
    return complex if isinstance(value, (int, float, complex)) else type(value)


ANSWERED = {"set": set}
"""What an answer may call, in words of its own; an object has one text, and so says one thing."""
SEEN = {"set": set, "tuple": tuple, "rich": Rich}
"""What the text of a value that tests saw may call."""


def equal(text, expected, built=SEEN):
    """Whether a value's text stands for the expected value. Text that is no literal must match to the letter."""
    return text is not None and (text == repr(expected) or parsed(text, built) == expected)


def parsed(text, built=SEEN):
    """The value of a literal's text; for any other text an object that equals nothing."""
    try:
        tree = compile(text, "answer", "eval", ONLY_AST)
        return literal(tree.body, built)  # ty: ignore[missing-attribute]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return object()


def literal(node, built):
    """The value of a parsed literal; it builds, and never calls, anything."""
    kind = type(node).__name__
    if kind == "Constant":
        return node.value
    if kind == "List":
        return [literal(item, built) for item in node.elts]
    if kind == "Tuple":
        return tuple([literal(item, built) for item in node.elts])
    if kind == "Set":
        return {literal(item, built) for item in node.elts}
    if kind == "Dict":
        return {literal(key, built): literal(value, built) for key, value in zip(node.keys, node.values, strict=True)}
    if kind == "Name" and node.id in ("inf", "nan"):
        return float(node.id)
    if kind == "Call" and type(node.func).__name__ == "Name" and node.func.id in built:
        return built[node.func.id](*[literal(each, built) for each in node.args])
    if kind == "BinOp" and type(node.right).__name__ == "Constant" and type(node.right.value) is complex:
        return literal(node.left, built) + literal(node.right, built)
    if kind == "UnaryOp" and type(node.op).__name__ == "USub":
        return -literal(node.operand, built)
    raise ValueError(kind)


def write_reward(reward):
    """Through no link: who reads it might be led elsewhere by the same one. Fails where there is one."""
    directory = posix.open("/", posix.O_RDONLY)
    for name in REWARD_DIR.split("/")[1:]:
        if name not in posix.listdir(directory):
            posix.mkdir(name, dir_fd=directory)
        directory = posix.open(name, posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW, dir_fd=directory)
    if "reward.txt" in posix.listdir(directory):
        posix.unlink("reward.txt", dir_fd=directory)
    made = posix.open("reward.txt", posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL, 0o644, dir_fd=directory)
    with open(made, "w") as file:
        file.write(str(reward))


if __name__ == "__main__":
    main()
