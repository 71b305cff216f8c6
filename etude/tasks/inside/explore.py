"""Calls functions with drawn arguments, right and broken, where a task is made: run by itself, in a sandbox.

Reads Python literals in /tests/request, one a line, each a function: "files" of the workspace, "module", "name",
"path", "kinds" (of each parameter, kinds of values to draw), "least" (how many parameters must be given), "words" and
"numbers" (of its source, which are the values that its branches ask for), "examples" (arguments that its documentation
has) and "mutants" ({id: text of the file}). For each it writes a line to /logs/explored: the calls that were kept,
[(arguments, value, lines)] as Python writes them, and by mutant a string with a letter a call: "=" the same value, "x"
another or an error, "~" too many steps. What is kept is plain and exact, and comes again in the same process. Steps are
lines of the workspace's code, not seconds, so that every machine keeps the same.
"""

import ast
import os
import random
import resource
import shutil
import signal
import sys

WORKSPACE = "/workspace"
SEARCH, HARVEST, MOST, ALIKE = 240, 260, 48, 3
STEPS, CPU_S = 2500, 1.0
LONGEST_ARGUMENTS, LONGEST_VALUE, MOST_ITEMS = 90, 110, 60
MEMORY = 2 << 30
WORDS = (
    "alpha", "beta gamma", "Delta", "x", "", "snake_case_name", "CamelCaseName", "two-part", "a,b,,c", "key=value",
    "key=value; q=0.5", "/usr/lib/../share/a.txt", "dir/file.tar.gz", "http://user@host:8080/p/a?q=1&r=2#top",
    "example.com", "10.0.0.1", "text/html; charset=utf-8", "1.2.3", "1.10rc1", "42", "-7", "0x1F", "3.5", "2024-02-29",
    "12:30:05", "  padded  ", "line one\nline two\n", "a\tb", "<b>bold & more</b>", '"quoted"', "it's", "(a (b) c)",
    "a.b.c", "%41%20b", "HELLO WORLD", "aaabbc", "\u00fcber", "caf\u00e9 \u4e2d", "don't stop",
    "tail\\", "{name}", "*.py", "@user",
)  # fmt: skip


class TooLong(BaseException):
    pass


class Draw:
    """Values of a kind. Numbers are small: nobody waits for a list of a billion."""

    def __init__(self, rng, words, numbers):
        self.rng, self.numbers = rng, [*range(-2, 13), 16, 31, 60, 64, 100, 255, 365, 1000, *numbers]
        self.words = [*WORDS, *words]
        self.own = list(words)

    def of(self, kind):
        if kind.startswith(("list_", "tuple_")):
            shape, _, inner = kind.partition("_")
            items = [self.of(inner) for _ in range(self.rng.choice((0, 1, 2, 3, 3, 4, 5, 6)))]
            if inner == "int" and self.rng.random() < 0.3:
                items.sort()
            return items if shape == "list" else tuple(items)
        return getattr(self, kind)()

    def int(self):
        return self.rng.choice(self.numbers)

    def size(self):
        return self.rng.randrange(0, 9)

    def natural(self):
        return self.rng.choice([1, 2, 3, 5, 7, 8, 12, 30, 97, 100, 360, 1024])

    def float(self):
        return self.rng.choice([0.0, 0.5, 1.0, 1.5, 2.25, -3.0, 10.0, 99.5])

    def bool(self):
        return self.rng.random() < 0.5

    def none(self):
        return None

    def bytes(self):
        return self.str().encode()

    def str(self):
        rng = self.rng
        text = rng.choice(self.own) if self.own and rng.random() < 0.4 else rng.choice(self.words)
        if rng.random() < 0.35:
            text = rng.choice((" ", "", "", ",", "-", "/")).join((text, rng.choice([*self.own, *self.words])))
        return text

    def word(self):
        return self.rng.choice(self.own) if self.own and self.rng.random() < 0.5 else self.rng.choice(self.words[:8])

    def pair(self):
        return (self.word(), self.int())

    def texts(self):
        return (self.word(), self.str())

    def span(self):
        return tuple(sorted((self.int(), self.int())))

    def dict_int(self):
        return {self.word(): self.int() for _ in range(self.size() % 4)}

    def dict_str(self):
        return {self.word(): self.str() for _ in range(self.size() % 4)}

    def like(self, value):
        """A neighbour of an example's value."""
        rng = self.rng
        if isinstance(value, bool) or value is None:
            return value if rng.random() < 0.7 else not value
        if isinstance(value, int):
            return rng.choice((value, value + 1, value - 1, value * 2, rng.randint(0, 2 * abs(value) + 3)))
        if isinstance(value, str | list | tuple) and value:
            items = list(value)
            match rng.randrange(5):
                case 0:
                    rng.shuffle(items)
                case 1:
                    items = items[1:]
                case 2:
                    items.insert(rng.randrange(len(items) + 1), rng.choice(items))
                case 3:
                    items = items[:-1]
                case _:
                    items[rng.randrange(len(items))] = self.like_item(value, rng.choice(items))
            return "".join(items) if isinstance(value, str) else type(value)(items)
        if isinstance(value, dict):
            return {key: self.like(item) for key, item in value.items()}
        return value

    def like_item(self, value, item):
        return self.rng.choice("aB1 -._/,:") if isinstance(value, str) else self.like(item)


class Runner:
    """Calls a function of the workspace, and says the value, the lines that were run, or why there is none."""

    def __init__(self, path):
        self.path, self.left, self.lines = f"{WORKSPACE}/{path}", 0, set()

    def _trace(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(WORKSPACE):
            return None
        if event == "line":
            self.left -= 1
            if self.left < 0:
                raise TooLong
            if frame.f_code.co_filename == self.path:
                self.lines.add(frame.f_lineno)
        return self._trace

    def value(self, function, arguments):
        """The value's text; "!" for an error, "~" for too many steps, None where it is not plain."""
        self.left, self.lines = STEPS, set()
        given = ast.literal_eval(arguments)
        signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
        sys.settrace(self._trace)
        try:
            value = function(*given)
            if hasattr(type(value), "__next__"):
                value = [each for _, each in zip(range(MOST_ITEMS), value, strict=False)]
        except TooLong:
            return "~"
        except BaseException as error:
            return "~" if isinstance(error, TimeoutError) else "!"
        finally:
            sys.settrace(None)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        return repr(value) if plain(value) else None


def explore(request):
    rng = random.Random(f"{request['module']}.{request['name']} v1")
    runner, draw = Runner(request["path"]), Draw(rng, request["words"], request["numbers"])
    function = loaded(request, request["files"])
    kept = calls(request, function, runner, draw, rng)
    judged = {}
    for name, text in request["mutants"].items() if kept else ():
        try:
            broken = loaded(request, {**request["files"], request["path"]: text})
        except Exception:
            continue
        judged[name] = ""
        for arguments, value, _ in kept:
            got = runner.value(broken, arguments)
            judged[name] += "~" if got == "~" else "=" if same(got, value) else "x"
    return kept, judged


def calls(request, function, runner, draw, rng):
    found, per_value, worth, seen = [], {}, {}, set()
    kinds, examples = request["kinds"], request["examples"]
    for turn in range(SEARCH + HARVEST):
        shape = None
        if examples and rng.random() < 0.5:
            arguments = list(rng.choice(examples))
            if turn >= len(examples) and arguments:
                for place in rng.sample(range(len(arguments)), rng.choice((1, 1, len(arguments)))):
                    arguments[place] = draw.like(arguments[place])
        else:
            if turn < SEARCH or not worth:
                count = rng.randint(request["least"], len(kinds))
                shape = tuple(rng.choice(each) for each in kinds[:count])
            else:
                shape = rng.choices([*worth], [*worth.values()])[0]
            arguments = [draw.of(kind) for kind in shape]
        text = repr(arguments)
        if text in seen or len(text) > LONGEST_ARGUMENTS or not plain(arguments):
            continue
        seen.add(text)
        value = runner.value(function, text)
        lines = sorted(runner.lines)
        if value in ("!", "~", None) or len(value) > LONGEST_VALUE or " at 0x" in value:
            continue
        if runner.value(function, text) != value:
            return []
        if shape:
            worth[shape] = worth.get(shape, 0) + (1 if value not in per_value else 0.05)
        per_value[value] = per_value.get(value, 0) + 1
        if per_value[value] <= ALIKE:
            found.append((text, value, lines))
    rng.shuffle(found)
    return found[:MOST]


def same(got, value):
    """As the guard compares: 1 and True are equal."""
    return got == value or (got not in ("!", None) and ast.literal_eval(got) == ast.literal_eval(value))


def loaded(request, files):
    """The function, of files that are laid down anew."""
    for name in [each for each in sys.modules if each.split(".")[0] in request["tops"]]:
        del sys.modules[name]
    for item in os.listdir(WORKSPACE):
        path = os.path.join(WORKSPACE, item)
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    for path, text in files.items():
        os.makedirs(os.path.dirname(f"{WORKSPACE}/{path}"), exist_ok=True)
        with open(f"{WORKSPACE}/{path}", "w", encoding="utf-8") as written:
            written.write(text)
    __import__(request["module"])
    return getattr(sys.modules[request["module"]], request["name"])


def plain(value, depth=0):
    if depth > 6:
        return False
    if type(value) in (list, tuple):
        return all(plain(each, depth + 1) for each in value)
    if type(value) is dict:
        return plain([*value.keys(), *value.values()], depth + 1)
    if type(value) is float:
        return value == value and abs(value) != float("inf")
    return value is None or type(value) in (bool, int, str, bytes)


def too_long(*_):
    raise TimeoutError("takes too long for a verifier")


def main():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGVTALRM, too_long)
    sys.dont_write_bytecode = True
    sys.path.insert(0, WORKSPACE)
    with open("/tests/request", encoding="utf-8") as told:
        requests = [ast.literal_eval(line) for line in told]
    with open("/logs/explored", "w", encoding="utf-8") as written:
        for request in requests:
            try:
                said = explore(request)
            except Exception:
                said = ([], {})
            written.write(repr(said) + "\n")


if __name__ == "__main__":
    main()
