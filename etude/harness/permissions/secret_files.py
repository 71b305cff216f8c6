"""Which files of a workspace hold secrets, as far as a name tells.

Owns `SECRETS`, the built-in rules on reading, and what they do not mean; `PACKAGES`, and `could_be_secret`. The names
are those that docs/safety.md lists, in the same words. They are what peers keep from their models and what scanners of
repositories look for, without the names that source code has as often (`config.json`, `*.crt`, `auth.json`). Letters
count in any size, and what editors and people leave beside a file (`server.key.bak`, `.env~`, `.id_rsa.swp`) counts as
the file. Opens nothing.
"""

from __future__ import annotations

import re

from etude.harness.permissions.rules import Rule

FILES = (
    # variables of an environment
    ".env*", "*.env", ".flaskenv",
    # keys, and what holds them
    "*.pem", "*.key", "*.ppk", "*.p8", "*.p12", "*.pfx", "*.pkcs12", "*.jks", "*.jceks", "*.bks", "*.keystore",
    "*.keytab", "*.agekey", "*.ovpn", "*.kdb", "*.kdbx", "*.psafe3", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*",
    "*_rsa", "*_dsa", "*_ecdsa", "*_ed25519", "ssh_host_*_key",
    # passwords and tokens of programs
    ".netrc", "_netrc", ".git-credentials", ".npmrc", ".pypirc", ".pgpass", "pgpass.conf", ".my.cnf", ".mylogin.cnf",
    ".htpasswd", ".dockercfg", ".dockerconfigjson", ".s3cfg", ".boto", "rclone.conf", "kubeconfig", "*.kubeconfig",
    ".vault-token", ".vault_pass", "vault_pass.txt", ".terraformrc", "terraform.rc", "credentials.tfrc.json",
    "*.tfstate", "*.tfstate.*", "*.tfvars", "*.tfvars.json",
    # what says so
    "*.secret", "*.secrets", "secret.json", "secret.yaml", "secret.yml", "secrets.ini", "secrets.json",
    "secrets.properties", "secrets.toml", "secrets.xml", "secrets.yaml", "secrets.yml", "credentials.csv",
    "credentials.ini", "credentials.json", "credentials.properties", "credentials.toml", "credentials.xml",
    "credentials.yaml", "credentials.yml", "client_secret*.json", "*service-account*.json", "*service_account*.json",
    "*serviceaccount*.json", "*firebase-adminsdk*.json", "application_default_credentials.json",
)  # fmt: skip
"""Wherever they lie."""
PLACES = (
    "**/.ssh/**", "**/.aws/**", "**/.gnupg/**", "**/.envs/**", "**/.kube/config", "**/.docker/config.json",
    "**/.cargo/credentials", "**/.gem/credentials",
)  # fmt: skip
"""Whatever it is called there."""
HOME = (
    "~/.ssh/**", "~/.aws/**", "~/.gnupg/**", "~/.config/gh/**", "~/.config/gcloud/**", "~/.kube/**", "~/.docker/**",
)  # fmt: skip
NOT_SECRET = (
    "*.pub", "*.example", "*.sample", "*.template", "*.tmpl", "*.tpl", "*.dist", "*.defaults", "example.env",
    "sample.env", "template.env", ".env-example", ".env-sample", ".env-template", ".env_example", ".env_sample",
    ".env_template",
)  # fmt: skip
"""It is written to be shown, or to be copied and committed."""

PACKAGES = {"node_modules", "site-packages", ".git"}
"""Where a walk does not look for them: what comes with packages is nobody's secret, and git's own files hold none."""

SECRETS = (
    *(Rule(f"read(**/{name})", "ask", leftovers=True) for name in FILES),
    *(Rule(f"read({place})", "ask") for place in (*PLACES, *HOME)),
)
NO_SECRETS = tuple(Rule(f"read(**/{name})", "allow", leftovers=True) for name in NOT_SECRET)

SECRET_NAMES = re.compile("|".join(rule.last_part.pattern for rule in SECRETS), re.DOTALL | re.IGNORECASE)
"""What a file could be called that a rule on reading speaks of, for a walk to stop at."""
SECRET_DIRECTORIES = re.compile(
    "|".join(rule.last_part.pattern for rule in SECRETS if rule.text.endswith("/**)")), re.DOTALL | re.IGNORECASE
)
"""The same of a directory: one called `.env` holds what it holds."""


def could_be_secret(path: str) -> bool:
    """Whether a rule on reading may speak of a file, as far as its name and its directories' tell."""
    *above, name = path.split("/")
    return SECRET_NAMES.fullmatch(name) is not None or any(map(SECRET_DIRECTORIES.fullmatch, above))
