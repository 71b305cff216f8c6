"""What the rules say of one path that a call reads or writes, or that a command could mean by one of its words.

Owns `PathRules`, and what is looked up once for a call: what lies on this machine that a user's rules keep from being
read, which files are secrets by another name, and how much has been looked at. A user's rules go before the built-in
ones. What the sandbox hides need not be asked about: it is not there. Knows nothing of commands: `judge` does, and asks
here. Asks nobody, opens no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from etude.environments.base import WORKSPACE
from etude.harness.permissions import builtin
from etude.harness.permissions.decision import Reason
from etude.harness.permissions.effort import Effort
from etude.harness.permissions.paths import Target, WorkspacePaths, by_process, is_descriptor, lies_in
from etude.harness.permissions.rules import PermissionConfig, Rule, kind_of
from etude.harness.permissions.secret_files import NO_SECRETS
from etude.harness.permissions.unreadable import Denied, LinkedSecrets, denied

_A_NAME, _A_STEP = 100, 4
"""Judging a path costs as much as looking at so many names, and each step of it at so many more."""
DONE = {"allow": "allowed", "ask": "asked about", "deny": "denied"}


class PathRules:
    """The rules of one session, as far as they speak of paths."""

    def __init__(
        self,
        config: PermissionConfig,
        paths: WorkspacePaths,
        hidden: Sequence[str],
        guarded: Callable[[str, bool], str] | None,
    ) -> None:
        """As `Judge` has them."""
        self.rules = config.rules()
        self.hidden = tuple(hidden)
        self._config = config
        self._paths = paths
        self.guarded = guarded
        self._on: dict[str, list[tuple[Rule, bool]]] = {}
        self.look_again()

    def look_again(self) -> None:
        """Forget what was looked up for the call before."""
        self.effort = Effort()
        self.links = LinkedSecrets(self._paths.root, self._asked_about)
        self.reopened = False
        """Whether something is written to a descriptor by its name: it may have been opened to read."""
        self._looked: Denied | None = None

    def add(self, rule: Rule) -> None:
        """From now on it holds too."""
        self.rules.append(rule)
        self._on.clear()

    def ruled(self, tool: str, piece: str, target: Target | None) -> Reason | None:
        """What the first rule that matches says, a user's rules going before the built-in ones."""
        if (found := self._first(tool, target)) is not None:
            rule, built_in = found
            remember = target.rule(kind_of(tool)) if built_in and target else ""
            return Reason(rule.verdict, piece, f"rule {rule}{', which is built in' * built_in}", remember)
        if target is not None and kind_of(tool) == "read":
            if by_process(target.path):
                return Reason("ask", piece, "it leads elsewhere for every process")
            if other := self.left().holding(target.path):
                return Reason(other.verdict, piece, f"it is another name of what rule {other} speaks of")
            if self._config.builtin and (secret := self.links.named(target.path)):
                return Reason("ask", piece, f"it is another name of {secret}", target.rule("read"))
        return None

    def _first(self, tool: str, target: Target | None) -> tuple[Rule, bool] | None:
        """The first rule that matches, and whether it is built in; none where such a one says it is no matter."""
        for rule, built_in in self._rules_on(tool):
            if target is None or rule.matches_path(target.path, target.relative):
                return None if built_in and rule.verdict == "allow" else (rule, built_in)
        return None

    def _asked_about(self, path: str) -> bool:
        """Whether a rule has a path of this machine asked about, by that very name, which the sandbox does not hide."""
        found = [self._first("read_file", target) for target in self._paths.targets(path)]
        there = not lies_in(path, self.hidden)
        return there and any(each is not None and each[0].verdict != "allow" for each in found)

    def left(self) -> Denied:
        """What the user's rules keep from being read, as far as it is there for a command; looked up once a call."""
        if self._looked is None:
            rules = [rule for rule in self.rules if rule.verdict != "allow" and rule.names("read_file")]
            everything = any(rule.pattern is None for rule in rules)
            found = denied(rules, self._paths.root) if self._paths.root and rules else Denied({}, not rules)
            self._looked = Denied(found.without(self.hidden).by_path, found.complete and not everything)
        return self._looked

    def path(
        self,
        tool: str,
        name: str,
        writes: bool,
        directories: Sequence[str | None] = (WORKSPACE,),
        removes: bool = False,
    ) -> list[Reason]:
        """A path, from each directory that it could be meant from."""
        absolute = name.startswith(("/", "~"))
        if None in directories and not absolute:
            return [Reason("ask", name, "only a run would tell from which directory it is meant")]
        places = [WORKSPACE] if absolute else [place for place in directories if place is not None]
        targets = [target for place in places for target in self._paths.targets(name, place)]
        return [self._target(tool, name, target, writes, removes) for target in dict.fromkeys(targets)]

    def _target(self, tool: str, name: str, target: Target, writes: bool, removes: bool = False) -> Reason:
        ruled = self.ruled(tool, name, target)
        if writes and target.relative is None and not target.scratch:
            return Reason("deny", name, f"it is {target.path}, and only the workspace may be written")
        if writes and target.relative is not None and (why := self.refused(target.relative, removes)):
            return Reason("deny", name, why)
        if ruled is not None:
            return ruled
        self.reopened |= writes and is_descriptor(target.path)
        if writes and (kept := self.left().holding(target.path)):
            return Reason(kept.verdict, name, f"what rule {kept} speaks of is not written over either")
        if writes and (secret := self._written_over(target)):
            return Reason("ask", name, f"{secret}, and would be written over", target.rule("edit"))
        if target.scratch:
            return Reason("allow", name, "it is not kept")
        if target.relative is None:
            said = f"it is {target.path}, outside the workspace"
            if ".." in name.split("/"):  # which inside leads elsewhere: there the workspace is /workspace
                return Reason(self._config.outside, name, f"{said}: name such a file by its whole path")
            return Reason(self._config.outside, name, said, remember=target.rule("read"))
        default = self._config.edits if writes else self._config.reads
        said = f"no rule matches; {'edits' if writes else 'reads'} are {DONE[default]} by default"
        return Reason(default, name, said, remember=target.rule(kind_of(tool)))

    def _written_over(self, target: Target) -> str:
        """By what a file that is there holds secrets, where a built-in rule says so and none of the user's."""
        if not self._config.builtin or not self._paths.exists(target) or lies_in(target.path, self.hidden):
            return ""
        rule, built_in = self._first("read_file", target) or (self.links.named(target.path), True)
        return f"it holds secrets by {rule}" if rule and built_in else ""

    def argument(self, name: str, directories: Sequence[str | None], outside: bool = True) -> Iterator[Reason]:
        """A word that may be a path to read: only what a rule says of it counts, for most words are no paths at all."""
        known = [place for place in directories if place is not None] or [WORKSPACE]
        self.effort.spend((_A_NAME + _A_STEP * name.count("/")) * len(known))
        for place in known:
            for target in self._paths.targets(name, place):
                ruled = self.ruled("read_file", name, target)
                if (
                    ruled is None
                    and outside
                    and target.relative is None
                    and not target.scratch
                    and self._paths.exists(target)
                ):
                    ruled = self._target("read_file", name, target, writes=False)
                if ruled is not None and ruled.verdict != "allow":
                    yield ruled

    def refused(self, path: str, removes: bool = False) -> str:
        return self.guarded(path, removes) if self.guarded is not None else ""

    def _rules_on(self, tool: str) -> list[tuple[Rule, bool]]:
        """The rules that are about a tool at all, and whether they are built in."""
        if tool not in self._on:
            more = (*NO_SECRETS, *builtin.ASK) if self._config.builtin else ()
            both = [*((rule, False) for rule in self.rules), *((rule, True) for rule in more)]
            self._on[tool] = [(rule, built_in) for rule, built_in in both if rule.names(tool)]
        return self._on[tool]
