"""What commands of the product's agent may see, write and reach on the user's machine.

Owns `WorkspaceConfig`, and the lists that matter most: what of a machine and of a home no command is shown, and what in
a workspace no command may change although it may change all the rest. All hold whatever a permission rule says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from etude.config import Config
from etude.environments.egress.policy import EgressConfig

HIDDEN = (
    "~/.local/share/uv/credentials", "~/.rye/credentials", "~/.mamba/auth", "~/.luarocks/upload_config.lua",
    "~/.npm-global/etc", "~/.dotnet/corefx", "~/.poetry/auth.toml", "~/.pixi/credentials", "~/.julia/servers",
    "~/.ssh", "~/.gnupg", "~/.aws", "~/.azure", "~/.kube", "~/.docker", "~/.netrc", "~/.git-credentials", "~/.pypirc",
    "~/.npmrc", "~/.yarnrc.yml", "~/.cargo/credentials", "~/.cargo/credentials.toml", "~/.gem/credentials", "~/.pgpass",
    "~/.my.cnf", "~/.config/gcloud", "~/.config/gh", "~/.config/git/credentials", "~/.config/op", "~/.config/rclone",
    "~/.config/containers", "~/.local/share/keyrings", "~/.password-store", "~/.vault-token", "~/.terraform.d",
    "~/.mozilla", "~/.config/google-chrome", "~/.config/chromium", "~/.bash_history", "~/.zsh_history",
    "~/.python_history", "~/.colima", "~/.orbstack", "~/.local/share/containers", "~/.codex", "~/.claude",
    "~/.claude.json", "~/.gemini", "~/.cursor", "~/.wandb", "~/.config/wandb", "~/.huggingface", "~/.kaggle",
    "~/.anthropic", "~/.openai", "~/.config/openai", "~/.config/anthropic", "~/.config/github-copilot", "~/.config/hub",
    "~/.config/glab-cli", "~/.config/etude", "~/.local/share/etude", "~/.config/sops", "~/.config/doctl",
    "~/.config/heroku", "~/.config/fly", "~/.fly", "~/.vercel", "~/.config/netlify", "~/.sentryclirc", "~/.s3cfg",
    "~/.boto", "~/.databrickscfg", "~/.snowsql", "~/.snowflake", "~/.modal.toml", "~/.oci", "~/.bluemix", "~/.aliyun",
    "~/.ngrok2", "~/.config/ngrok", "~/.config/1Password", "~/.config/Bitwarden CLI", "~/.composer/auth.json",
    "~/.config/composer", "~/.m2/settings.xml", "~/.gradle/gradle.properties", "~/.nuget/NuGet/NuGet.Config",
    "~/.conan", "~/.conan2", "~/.config/pip", "~/.pip", "~/.condarc", "~/.authinfo", "~/.authinfo.gpg", "~/.mutt",
    "~/.msmtprc", "~/.netrc.gpg", "~/.sqlite_history", "~/.psql_history", "~/.mysql_history", "~/.node_repl_history",
    "~/.local/share/fish", "~/.config/BraveSoftware", "~/.config/microsoft-edge", "~/.config/Code", "~/.config/Cursor",
    "~/.thunderbird", "~/.gnome2", "~/.kde", "~/.local/share/kwalletd", "~/.config/keybase", "~/.electrum",
    "~/.bitcoin", "~/.ethereum", "~/.cache/huggingface/token",
    "~/.cache/huggingface/stored_tokens", "~/.pub-cache/credentials.json", "~/snap", "~/Library", "/root/.ssh",
    "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/sudoers.d",
    "/etc/ssl/private", "/etc/ssh/ssh_host_rsa_key", "/etc/ssh/ssh_host_ecdsa_key", "/etc/ssh/ssh_host_ed25519_key",
    "/etc/krb5.keytab", "/etc/wireguard", "/etc/NetworkManager/system-connections", "/etc/kubernetes", "/etc/rancher",
    "/etc/letsencrypt", "/etc/docker", "/etc/openvpn", "/var/lib/docker", "/var/lib/containerd", "/var/lib/kubelet",
    "/var/lib/rancher", "/var/lib/NetworkManager", "/var/lib/cloud", "/var/spool/cron", "/var/spool/mail", "/var/mail",
    "/var/run",
)  # fmt: skip
"""Keys and tokens outside the home's dot files, or in such as are shown, and sockets that lead out of any sandbox."""
SHOWN = (
    "~/.gitconfig", "~/.config/git/config", "~/.config/git/ignore", "~/.config/git/attributes", "~/.gitignore",
    "~/.gitignore_global", "~/.gitattributes", "~/.editorconfig",
    "~/.local/bin", "~/.local/lib", "~/.local/pipx/venvs", "~/.local/share/uv", "~/.local/share/mise/installs",
    "~/.local/share/mise/shims", "~/.local/share/pnpm", "~/.local/share/fnm", "~/.local/share/nvm",
    "~/.local/share/virtualenvs", "~/.local/share/pipx", "~/.local/share/rtx", "~/.local/share/man", "~/.pyenv",
    "~/.virtualenvs", "~/.conda/envs", "~/.conda/pkgs", "~/.mamba", "~/.pixi", "~/.poetry", "~/.rye", "~/.nvm",
    "~/.fnm", "~/.volta", "~/.bun", "~/.deno", "~/.yarn", "~/.pnpm-store", "~/.npm/_cacache", "~/.npm-global",
    "~/.cargo/bin", "~/.cargo/env", "~/.cargo/registry", "~/.cargo/git", "~/.rustup", "~/.rbenv", "~/.rvm",
    "~/.gem/ruby", "~/.asdf", "~/.tool-versions", "~/.python-version", "~/.node-version", "~/.nvmrc", "~/.ruby-version",
    "~/.goenv", "~/.gvm", "~/.sdkman", "~/.jenv", "~/.jdks", "~/.m2/repository", "~/.m2/wrapper", "~/.gradle/caches",
    "~/.gradle/wrapper", "~/.gradle/jdks", "~/.ivy2/cache", "~/.sbt/boot", "~/.coursier", "~/.dotnet",
    "~/.nuget/packages", "~/.ghcup", "~/.cabal/bin", "~/.cabal/packages", "~/.cabal/store", "~/.stack/programs",
    "~/.stack/snapshots", "~/.opam", "~/.elan", "~/.juliaup", "~/.julia/packages", "~/.julia/artifacts",
    "~/.julia/compiled", "~/.hex/packages", "~/.mix/archives", "~/.mix/elixir", "~/.pub-cache", "~/.luarocks",
    "~/.platformio/packages", "~/.swiftpm/cache", "~/.nix-profile", "~/.guix-profile", "~/.linuxbrew", "~/.terminfo",
    "~/.fonts",
    *(f"~/.cache/{name}" for name in (
        "uv", "pip", "pypoetry", "pre-commit", "pipenv", "pdm", "go-build", "ccache", "bazel", "bazelisk", "node",
        "yarn", "pnpm", "deno", "ms-playwright", "puppeteer", "Cypress", "electron", "torch", "huggingface", "coursier",
        "zig", "JNA", "fontconfig", "matplotlib", "mypy", "ruff", "etude",
    )),
)  # fmt: skip
"""Of the home's dot files: toolchains, what they have fetched, and what git is told."""
PROTECTED = (".git/hooks", ".git/config", ".git/info", ".git/modules", ".etude", ".vscode", ".idea", ".envrc")
"""What the user's own programs run, or obey, when nobody looks: a hook written here would run outside the sandbox.
Read-only mounts, behind the guard that also holds for what is absent (`planted.py`)."""


class WorkspaceConfig(Config):
    """How the user's directory is opened for an agent. No value means "isolated, if it works out"."""

    sandbox: Literal["on", "off"] = "on"
    """`on`: commands run below bubblewrap, or the workspace is not opened. `off`: they run as the user runs them, for a
    machine that is a sandbox itself; opening it warns."""
    network: Literal["none", "hosts", "full"] = "none"
    """What commands reach: nothing but each other; the hosts of `egress`, by a proxy; or what this machine reaches,
    its local services included."""
    egress: EgressConfig = EgressConfig()
    writable: tuple[Path, ...] = ()
    """Directories beside the workspace that commands may write: a package cache, say."""
    hidden: tuple[str, ...] = HIDDEN
    """Files and directories that are not there for commands; `~` is the user's home."""
    shown: tuple[str, ...] = SHOWN
    """Of the dot files in the user's home, those that are there for commands (`local.outside`), "~/.foo" say; "~" is
    all of them. A directory of PATH is there anyway."""
    protected: tuple[str, ...] = PROTECTED
    """Below the workspace; those that exist when it is opened can be read and not written; no others are made."""
    guard: Literal["on", "existing"] = "on"
    """`on`: nothing that the user's programs would obey is planted anywhere in the workspace (`local.planted`), or it
    is not opened. `existing`: only what of `protected` exists when it is opened is held; for kernels before 5.14."""
    unguarded: tuple[str, ...] = ()
    """Of the list in `local.planted`, what commands may write after all: ".vscode", say."""
    masked: tuple[str, ...] = ()
    """Below the workspace; what of it exists when it is opened is empty for commands and tools."""
    history: Literal["shared", "own"] = "shared"
    """Of a worktree only: whether commands may write the branches and objects of the repository it belongs to, or have
    an index, a HEAD and commits that are nobody else's."""
    env: dict[str, str] = {}
    """Every environment variable of a command but the few that say where it is; the caller leaves secrets out."""
    tmp_mb: int = Field(2048, ge=1)
    """What /tmp, which is the session's own, may hold; it is memory."""
    start_timeout_s: float = Field(30.0, gt=0)
    """How long the agent's sandbox may take to start."""
    file_timeout_s: float = Field(30.0, gt=0)
    """How long one read or write of a file may take."""
    stop_timeout_s: float = Field(15.0, gt=0)
    """How long the sandbox may take to end before it is killed."""

    @field_validator("shown")
    @classmethod
    def _dots(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if path != "~" and (not path.startswith("~/.") or ".." in path.split("/")):
                raise ValueError(f"{path!r} must be a dot file of the home, like ~/.foo, or ~ for all of them")
        return paths

    @field_validator("protected", "masked")
    @classmethod
    def _below(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if path.startswith("/") or not path or ".." in path.split("/"):
                raise ValueError(f"{path!r} must be relative to the workspace, and below it")
        return paths

    @model_validator(mode="after")
    def _consistent(self) -> WorkspaceConfig:
        if (self.network == "hosts") != bool(self.egress.hosts):
            raise ValueError('network = "hosts" and egress.hosts go together: set both or neither')
        if self.sandbox == "off" and self.network != "full":
            raise ValueError('sandbox = "off" isolates no network: set network = "full" with it')
        if self.unguarded and (self.sandbox == "off" or self.guard != "on"):
            raise ValueError('unguarded: nothing is guarded here; remove it, or set sandbox = "on" and guard = "on"')
        if self.sandbox == "off" and self.masked:
            raise ValueError('masked: only a sandbox can hide files; remove it, or set sandbox = "on"')
        return self
