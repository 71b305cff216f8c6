"""Mid-training from an open checkpoint: it reads a corpus of the user's files, and sessions if there are any.

Owns `make_continued` and `ContinuedConfig`, the schema of recipes whose `kind` is "continued". Each step leaves its
product in the work directory and is skipped where that is already there, so that a run that was killed goes on and
equals one that never stopped:

    recipe.json            what the run was asked for: another recipe is another run
    corpus/NAME/           what is read (`trainer.corpus.store`)
    midtraining.pt         the state of the training, log.jsonl its curves (`trainer.midtraining`)
    model/                 the trained checkpoint, in the published layout
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import structlog
from pydantic import Field

from etude.config import Config
from etude.errors import ConfigError
from etude.harness.sampler import Chat
from etude.made_by import claim
from etude.models.chat import open_chat
from etude.models.checkpoint import load_checkpoint, save_checkpoint
from etude.models.shipped import model_at
from etude.models.state import round_to_bf16
from etude.models.stretch import stretched
from etude.tasks.json_lines import read_objects
from etude.trainer.corpus.config import CorpusConfig
from etude.trainer.corpus.filtering import holds_secret
from etude.trainer.corpus.store import Corpus, Tokens, build_corpus
from etude.trainer.documents import Document, ShuffledSource, Source, script_document
from etude.trainer.midtraining import Midtraining, MidtrainingConfig, ScheduleConfig, pretrain

log = structlog.get_logger()
_ROLES = {"user": "user", "assistant": "assistant", "tool": "observation"}
_A_CONVERSATION = 'a line is {"messages": [{"role", "content"}]}'
_TOLD_EVERY = 1000


class ContinuedConfig(Config):
    """Which model reads what."""

    kind: Literal["continued"]
    model: Path
    """A checkpoint in the published layout: `etude models import` makes one."""
    seed: int = 0
    max_context: int | None = None
    """Stretch the model's context to so many tokens (YaRN); unset: it stays."""
    corpus: Annotated[dict[str, CorpusConfig], Field(min_length=1)]
    """Sources of files, by the names that mixtures call them."""
    sessions: dict[str, tuple[Path, ...]] = {}
    """Sources of conversations: JSON lines, each {"messages": [{"role": …, "content": …}, …]}. The assistant's messages
    are learnt, the others read."""
    held_out_tokens: int = Field(50_000, ge=1)
    """At most so many of each corpus are measured on."""
    midtraining: ScheduleConfig


def make_continued(config: ContinuedConfig, directory: Path) -> dict[str, Any]:
    """Every step in turn, each skipped if its product is there."""
    _check_names(config)
    directory.mkdir(parents=True, exist_ok=True)
    claim(config, directory)
    decoder, tokenizer = load_checkpoint(model_at(config.model))
    if config.max_context is not None:
        decoder = stretched(decoder, config.max_context)
    chat = open_chat(config.model, tokenizer)
    corpora = _corpora(config, Tokens(chat, decoder.config.max_context), directory)
    sources: dict[str, Source] = {
        name: ShuffledSource(each.documents("train"), config.seed) for name, each in corpora.items()
    }
    talks = {name: conversations(paths, chat) for name, paths in config.sessions.items()}
    for name, each in talks.items():
        if not each.documents:
            raise ConfigError(f"sessions.{name}: no conversation is left ({each.secret} hold a secret); name others")
        sources[name] = ShuffledSource(each.documents, config.seed)
    run = pretrain(
        MidtrainingConfig(model=decoder.config, seed=config.seed, **dict(config.midtraining)),
        sources,
        directory,
        resume=(directory / "midtraining.pt").exists(),
        decoder=decoder,
        held_out=_held_out(config, corpora),
    )
    round_to_bf16(run.decoder)
    save_checkpoint(run.decoder, directory / "model", tokenizer, like=config.model)
    return _told(run, corpora, talks, directory)


def _check_names(config: ContinuedConfig) -> None:
    if both := sorted(config.corpus.keys() & config.sessions.keys()):
        raise ConfigError(f"sessions.{both[0]}: a corpus has this name already; take another")
    drawn = {name for stage in config.midtraining.stages for name in stage.mixture}
    if unread := sorted((config.corpus.keys() | config.sessions.keys()) - drawn):
        raise ConfigError(f"midtraining.stages: no mixture draws from {unread[0]}; name it in one, or take it out")


def _corpora(config: ContinuedConfig, tokens: Tokens, directory: Path) -> dict[str, Corpus]:
    def told(count: int) -> None:
        if count % _TOLD_EVERY == 0:
            log.info("reading files", looked_at=count)

    return {name: build_corpus(each, tokens, directory / "corpus" / name, told) for name, each in config.corpus.items()}


def _held_out(config: ContinuedConfig, corpora: Mapping[str, Corpus]) -> dict[str, list[Document]]:
    """The documents that are measured on, drawn by the seed; a corpus that sets nothing apart has none."""
    found = {}
    for name, corpus in corpora.items():
        documents = corpus.documents("held_out")
        order = np.random.default_rng(config.seed).permutation(len(documents))
        ends = np.cumsum([len(documents[at].token_ids) for at in order])
        if some := [documents[at] for at, end in zip(order, ends, strict=True) if end <= config.held_out_tokens]:
            found[name] = some
        elif documents:
            found[name] = [documents[order[0]]]
    return found


class Conversations(NamedTuple):
    documents: list[Document]
    secret: int
    """How many hold a key, a token or a password, and are left out."""


def conversations(paths: tuple[Path, ...], chat: Chat) -> Conversations:
    """Of files with one a line, in their order. Raises ConfigError naming the file and line that is none."""
    found: list[Document] = []
    secret = 0
    for path in paths:
        read = [_conversation(said, chat, where) for where, said in read_objects(path.expanduser(), _A_CONVERSATION)]
        kept = [each for each in read if each is not None]
        secret += len(read) - len(kept)
        found += kept
    return Conversations(found, secret)


def _conversation(said: Mapping[str, Any], chat: Chat, where: str) -> Document | None:
    """None where one of its messages holds a secret, which a model would learn to say."""
    try:
        messages = [(str(each["role"]), each["content"]) for each in said["messages"]]
    except (TypeError, KeyError) as error:
        raise ConfigError(f"{where}: no conversation ({error!r}); {_A_CONVERSATION}") from None
    system = str(messages.pop(0)[1]) if messages and messages[0][0] == "system" else ""
    roles = [role for role, _ in messages]
    strange = [role for role in roles if role not in _ROLES]
    if strange or roles[:1] != ["user"] or roles[1:2] != ["assistant"] or roles[-1] != "assistant":
        raise ConfigError(
            f"{where}: a conversation is a user's message, then the assistant's and what answers it in turn, up to the "
            "assistant's last; a system message may stand first"
        )
    if not all(isinstance(content, str) for _, content in messages):
        raise ConfigError(f"{where}: a message's content is text; write calls of tools out in it")
    if any(holds_secret(content) for content in (system, *(content for _, content in messages))):
        return None
    # a user's later message is read as an observation is: the frame of both is the chat template's for a user
    script = [
        (_ROLES[role] if at == 0 or role != "user" else "observation", text) for at, (role, text) in enumerate(messages)
    ]
    return script_document(script, chat, system)  # ty: ignore[invalid-argument-type]


def _told(
    run: Midtraining, corpora: Mapping[str, Corpus], talks: Mapping[str, Conversations], directory: Path
) -> dict[str, Any]:
    """The result: what was read and what came of it."""
    lines = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
    measured = [line["held_out"] for line in lines if "held_out" in line]
    counts = {
        name: {
            "found": each.manifest.found,
            "files": each.manifest.train["files"],
            "tokens": each.manifest.train["tokens"],
            "held_out_tokens": each.manifest.held_out["tokens"],
            "dropped": each.manifest.dropped,
        }
        for name, each in corpora.items()
    }
    return {
        "steps": run.step_count,
        "tokens": run.tokens,
        "drawn": run.mixture.drawn,
        "max_context": run.config.model.max_context,
        "corpus": counts,
        "sessions": {
            name: {"conversations": len(each.documents), "dropped": {"secret": each.secret}}
            for name, each in talks.items()
        },
        "held_out_before": measured[0] if measured else {},
        "held_out": measured[-1] if measured else {},
        "model": str(directory / "model"),
    }
