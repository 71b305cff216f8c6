"""The `etude` command: finds the subcommand and turns our errors into one line and an exit code.

Owns dispatch, and which error ends with which `Exit`. What may be typed is `parser`'s. Holds no logic of any room.
"""

from __future__ import annotations

import argparse
import errno
import os
import pkgutil
import signal
import sys
from pathlib import Path

from etude.cli.parser import parser_of
from etude.errors import BuildError, ConfigError, EtudeError, Exit, Interrupted, Terminated
from etude.plain import in_a_sentence, plain_event, plain_traceback, say

_ELSEWHERE = "name another place (XDG_STATE_HOME, XDG_CACHE_HOME and XDG_CONFIG_HOME move what lies in your home)"
_SICK = {
    errno.ENOSPC: "the disk is full ({}); make room and go on",
    errno.EDQUOT: "the disk quota is used up ({}); make room and go on",
    errno.EROFS: "the file system is read-only ({}); let it be written to, or {elsewhere}, and go on",
    errno.EIO: "the disk fails ({}); look at the kernel's log, and go on from another disk",
    errno.EMFILE: "too many files are open ({}); raise the limit, `ulimit -n 65536`, and go on",
    errno.ENFILE: "too many files are open on this machine ({}); raise fs.file-max and go on",
    errno.EACCES: "not permitted ({}); give your user the right to it, or {elsewhere}",
    errno.EPERM: "not permitted ({}); name a directory where your user may write, or {elsewhere}",
    errno.ENOTDIR: "a file lies where a directory should be ({}); move it away, or {elsewhere}",
    errno.EEXIST: "something else lies there, or a link that leads nowhere ({}); move it away, or {elsewhere}",
    errno.ENAMETOOLONG: "a name is longer than the file system holds ({}); give a shorter one",
    errno.ELOOP: "links lead in a circle ({}); remove one, or {elsewhere}",
}
"""What is wrong with the machine, and what to do. Any other error of the system is a bug of ours."""


FILES = {
    "train": ("etude.rollouts.config:RunConfig",),
    "cluster": ("etude.rollouts.machines.bare_config:BareConfig",),
    "cluster manifest": ("etude.rollouts.machines.nodes_config:NodesConfig",),
    "pretrain": (
        "etude.trainer.base_model:BaseConfig",
        "etude.trainer.warm_start:WarmStartConfig",
        "etude.trainer.continued:ContinuedConfig",
        "etude.trainer.embedder.config:EmbedderConfig",
    ),
    "bench run --config": ("etude.bench.config:BenchConfig",),
    "bench judge": ("etude.rewards.judge.calibration:CalibrationConfig",),
    "agent --config": ("etude.product.config:AgentConfig",),
    "sessions serve": ("etude.product.sessions.config:SessionsConfig",),
    "studio --config": ("etude.studio.config:StudioConfig",),
    "serve --config": ("etude.engine.server.app:ServeConfig",),
    "environments serve": ("etude.environments.server.app:ServerConfig",),
    "weights relay --config": ("etude.weights.relay:RelayConfig",),
    "images build --config": ("etude.environments.images.build:BuildConfig",),
    "tasks mine --config": ("etude.rewards.mining.mine:MineConfig",),
    "tasks generate --config": ("etude.rewards.mining.making:GenerateConfig",),
    "tasks import --config": ("etude.rewards.mining.importing:ImportConfig",),
}
"""What takes a TOML file, and the configs that one may be of."""
_ALIKE = {"config": "train", "plan": "train", "acp": "agent", "cluster manifest": "train"}
"""Commands that take the file of another one."""
_NEEDED = dict.fromkeys(
    ("train", "config", "plan", "cluster", "pretrain", "play", "serve", "models", "weights"), "train"
)
_NEEDED["studio"] = "studio"
"""The extras that commands need as a whole, whichever of its packages they miss first."""


def os_error_line(error: OSError) -> str | None:
    """One line a user can act on; None for what is no fault of the machine's."""
    line = _SICK.get(error.errno or 0)
    if line is None or (error.errno == errno.EEXIST and os.path.isdir(error.filename or "")):
        return None
    return line.format(error, elsewhere=_ELSEWHERE)


def main(arguments: list[str] | None = None) -> int:
    """Entry point of the console script."""
    argv = sys.argv[1:] if arguments is None else arguments
    options = parser_of(argv[:1]).parse_args(argv)
    _log_to_stderr()
    try:
        return int(options.run(options) or 0)
    except ConfigError as error:
        _tell(options.command, _of_another(options) or error)
        return Exit.BAD_INPUT
    except Interrupted as error:
        _tell(options.command, error)
        return Exit.TERMINATED if isinstance(error, Terminated) else Exit.INTERRUPTED
    except EtudeError as error:
        _tell(options.command, error)
        return Exit.FAILED
    except ModuleNotFoundError as error:
        if (line := _of_an_extra(error, options.command)) is None:
            raise
        say(f"etude {options.command}: {line}", sys.stderr)
        return Exit.FAILED
    except BrokenPipeError:  # `etude … | head`: who reads has enough, and what is buffered must not be tried again
        os._exit(Exit.FAILED)
    except OSError as error:
        if (line := os_error_line(error)) is None:
            raise
        say(f"etude {options.command}: {line}", sys.stderr)
        return Exit.FAILED
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # one Ctrl-C may come twice, and this is its last word
        say(f"etude {options.command}: interrupted", sys.stderr)
        return Exit.INTERRUPTED


def _tell(command: str, error: EtudeError | str) -> None:
    """One line, whatever others wrote into it; but a build that failed is shown with what it printed."""
    said = str(error) if isinstance(error, BuildError) else in_a_sentence(str(error).strip())
    say(f"etude {command}: {said}", sys.stderr)


def _of_an_extra(error: ModuleNotFoundError, command: str) -> str | None:
    """One line that names the extra; None where the module is no extra's, so that its absence is a bug."""
    from etude.extras import extra_of, install_command

    extra = extra_of(error.name or "")
    if extra is None:
        return None
    return f"{error.name} is not installed: {install_command(_NEEDED.get(command, extra))}"


def _of_another(options: argparse.Namespace) -> str | None:
    """Where a file is one for another command."""
    words = f"{options.command} {getattr(options, 'action', '')}"
    ours = _ALIKE.get(words) or _ALIKE.get(options.command, options.command)
    given = [(getattr(options, "recipe", None) or getattr(options, "config", None), ours)]
    given.append((getattr(options, "nodes", None), "cluster manifest"))
    return next((said for file, line in given if file is not None and (said := _not_of(line, file))), None)


def _not_of(ours: str, file: Path) -> str | None:
    """What another command's file is: this one knows less than half of its keys, and the other all."""
    from etude.config import read_toml

    try:
        keys = read_toml(file).keys()
    except (ConfigError, OSError):
        return None
    own = {line: ours in (line, line.split()[0]) for line in FILES}
    for line in sorted(FILES, key=lambda line: not own[line]):  # this command's own first
        most = max(len(keys & pkgutil.resolve_name(config).model_fields.keys()) for config in FILES[line])
        if own[line] and 2 * most >= len(keys):
            return None
        if not own[line] and most == len(keys):
            return f"{file}: this is a file for `etude {line}`"
    return None


def _log_to_stderr() -> None:
    """stdout is for what was asked for."""
    import structlog  # not for `etude --help`: it takes three times as long as all the rest

    shown = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain_traceback)
    before = [each for each in structlog.get_config()["processors"] if not isinstance(each, type(shown))]
    structlog.configure([*before, plain_event, shown], logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


if __name__ == "__main__":
    sys.exit(main())
