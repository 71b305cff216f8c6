"""Keeps secrets out of what a model reads, and so out of everything that is made of it.

Where can a secret be taken out? A session has one truth, the token ids that a model saw and sampled; its log, its
trajectory and the data it may be trained on later are told from that. To take a secret out of one of these and not of
the others would make them disagree: ids without it would claim that the model wrote its next words after a text it
never saw, and ids with it would teach it the secret. So there is one place, before a tool's result becomes an
observation, or none. What the model itself writes is never changed; it cannot hold a secret that it was never shown.

What stands for a secret is a mark, the same for the same secret through a session. A model that edits the file around
it writes the mark back, and the tool that writes files puts the secret in again: so a file with a key in it can be
edited, and is not destroyed by being read. Commands are given no secrets for marks; those that need one read it from
where it is.

`detect` finds secrets in a line, `redact` replaces them in text that comes whole or in pieces, `guard` puts that around
the tools, and `environment` keeps them from commands. Rollouts with the agent's tools have the guard too
(`harness.safeguards`): what they hold is no real secret, but their model is to know the marks.
"""

from __future__ import annotations

from etude.harness.secrets.environment import known_secrets, without_secrets
from etude.harness.secrets.guard import SecretGuard
from etude.harness.secrets.redact import Redactor

__all__ = ["Redactor", "SecretGuard", "known_secrets", "without_secrets"]
