"""Which environment variables are secrets: their values are looked for, and commands do without them.

Owns `known_secrets` and `without_secrets`. A variable is a secret by its name, or because it holds what somebody says
is one, such as the key of the endpoint; a value is looked for in text only if it is long enough not to be an ordinary
word.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping
from urllib.parse import quote, urlsplit

from etude.harness.secrets.detect import is_ordinary

_SECRET_NAME = re.compile(
    r"(?i).*(SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|APIKEY|API_KEY|ACCESS_KEY|PRIVATE_KEY|AUTH_KEY|"
    r"SIGNING_KEY|ENCRYPTION_KEY|_PAT$|_DSN$|COOKIE|SESSION_KEY|^PGPASS|^MYSQL_PWD$|_KEY$)"
)
_NO_SECRET = re.compile(r"(?i).*(_FILE|_PATH|_DIR|_LENGTH|_COUNT|_LIMIT|TOKENS|TOKENIZERS_PARALLELISM|_ENABLED)$")
_HANDLE = re.compile(r"(?i)SSH_AUTH_SOCK|SSH_AGENT_PID|GPG_AGENT_INFO|DBUS_SESSION_BUS_ADDRESS|XAUTHORITY|DOCKER_HOST")
"""No secrets themselves, but ways to use some."""
_MIN_CHARS = 8


def is_secret(name: str) -> bool:
    """Whether a variable's name says that its value is a secret."""
    return _SECRET_NAME.match(name) is not None and _NO_SECRET.match(name) is None


def known_secrets(env: Mapping[str, str], said: Collection[str] = ()) -> list[str]:
    """The values to look for, those `said` to be secrets too: as they are, and as they are written in URLs and in
    headers."""
    values = [*said, *(value for name, value in env.items() if is_secret(name))]
    values += [password for value in env.values() if "://" in value and (password := _password(value))]
    plain = [value for value in values if _is_one(value)]
    return list(dict.fromkeys(form for value in plain for form in _forms(value)))


def without_secrets(env: Mapping[str, str], keep: Collection[str] = (), said: Collection[str] = ()) -> dict[str, str]:
    """The variables a command may have: no secrets, none that holds what is `said` to be one, no ways to use them, but
    those the user chose to `keep`."""
    certain = [value for value in said if _is_one(value)]
    return {
        name: value
        for name, value in env.items()
        if name in keep
        or not (
            is_secret(name) or _HANDLE.fullmatch(name) or _password(value) or any(secret in value for secret in certain)
        )
    }


def _is_one(value: str) -> bool:
    """Whether a value is so certainly a secret that it may be looked for."""
    return len(value) >= _MIN_CHARS and not is_ordinary(value)


def _password(value: str) -> str | None:
    try:
        return urlsplit(value).password
    except ValueError:
        return None


def _forms(value: str) -> list[str]:
    return [value, quote(value, safe=""), base64.b64encode(value.encode("utf-8", "surrogateescape")).decode()]
