"""No secret in what a model reads, no secret lost from what it edits, and nothing hidden that is none."""

from __future__ import annotations

import random
import string
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from etude.environments.base import Sandbox
from etude.harness.schema import ToolCall
from etude.harness.secrets import Redactor, SecretGuard, known_secrets, without_secrets
from etude.harness.secrets.detect import find_secrets, looks_drawn
from etude.harness.secrets.redact import MARK, Stream, UnknownMark
from etude.harness.tools import TOOLS, TOOLSETS, Tool, ToolConfig, run_calls

DRAW = random.Random(7)
ALNUM = string.ascii_letters + string.digits


def drawn(length: int, letters: str = ALNUM) -> str:
    """Made here, so that no secret, real or seeming, stands in this repository."""
    return "".join(DRAW.choice(letters) for _ in range(length))


KEY_BODY = [drawn(64, ALNUM + "+/") for _ in range(5)] + [drawn(22) + "=="]
BEGIN, END = "-----BEGIN RSA PRIV" + "ATE KEY-----", "-----END RSA PRIV" + "ATE KEY-----"
FORMS = {
    "aws-key": "AKIA" + drawn(16, string.ascii_uppercase + "234567"),
    "github-token": "ghp_" + drawn(36),
    "gitlab-token": "glpat-" + drawn(20),
    "model-key": "sk-proj-" + drawn(48),
    "slack-token": "xoxb-" + drawn(12, string.digits) + "-" + drawn(24),
    "google-key": "AIza" + drawn(35),
    "package-token": "npm_" + drawn(36),
    "hub-token": "hf_" + drawn(34, string.ascii_letters),
    "payment-key": "sk_live_" + drawn(24),
    "mail-key": f"SG.{drawn(22)}.{drawn(43)}",
    "telegram-token": drawn(10, "123456789") + ":AA" + drawn(33),
    "vault-token": "hvs." + drawn(30),
    "cloud-key": "dop_v1_" + drawn(64, string.digits + "abcdef"),
    "service-token": "shpat_" + drawn(32, string.digits + "abcdef"),
    "webhook": f"https://hooks.slack.com/services/T{drawn(8, '123')}/B{drawn(8, string.digits)}/{drawn(24)}",
    "age-key": "AGE-SECRET-KEY-1" + drawn(58, string.ascii_uppercase + string.digits),
    "jwt": f"eyJ{drawn(30)}.eyJ{drawn(60)}.{drawn(43)}",
}
NAMED = drawn(8) + "1aB" + drawn(21)


@pytest.mark.parametrize(("kind", "secret"), FORMS.items())
@pytest.mark.parametrize(
    "line", ["{}", "export KEY={}\n", '  "key": "{}",', "a.py:12:x={};", "curl -H 'X-Key: {}' x", "({})"]
)
def test_what_has_a_form_is_found_by_it(kind: str, secret: str, line: str) -> None:
    redactor = Redactor()
    redacted = redactor.redact(line.format(secret))
    assert secret not in redacted and f"[secret {kind} " in redacted
    assert redactor.restore(redacted) == line.format(secret) and redactor.counts == {kind: 1}


@pytest.mark.parametrize(
    "secret",
    [
        "gsk_" + drawn(52), "xai-" + drawn(80), "r8_" + drawn(37), "dapi" + drawn(32, "0123456789abcdef"),
        f"AccountKey={drawn(86)}==", "pul-" + drawn(40, "0123456789abcdef"), f"{drawn(14)}.atlasv1.{drawn(64)}",
        "pscale_tkn_" + drawn(43), "dp.pt." + drawn(43), "sq0csp-" + drawn(43), "ATATT3" + drawn(186),
        "lin_api_" + drawn(40), f"glsa_{drawn(32)}_{drawn(8, '0123456789abcdef')}",
        "NRAK-" + drawn(27, string.ascii_uppercase), "figd_" + drawn(40), "rubygems_" + drawn(48, "0123456789abcdef"),
        f"https://discord.com/api/webhooks/{drawn(18, string.digits)}/{drawn(68)}",
    ],
)  # fmt: skip
def test_what_other_issuers_document_is_found_too(secret: str) -> None:
    assert Redactor().redact(f"client = Client('{secret}')").count("[secret ") == 1
    assert secret not in Redactor().redact(f"client = Client('{secret}')")


@pytest.mark.parametrize(
    "line",
    [
        "DB_PASSWORD={}",
        "db_password: {}",
        '"clientSecret": "{}"',
        "api-key := '{}'",
        "auth_token = `{}`",
        "SECRET_KEY_BASE => {}",
        "Authorization: Bearer {}",
        '"authorization": "Basic {}"',
        "postgres://app:{}@db.internal/app",
        "redis://:{}@cache:6379",
    ],
)
def test_what_is_named_a_secret_and_looks_drawn_is_one(line: str) -> None:
    assert NAMED not in Redactor().redact(line.format(NAMED))


@pytest.mark.parametrize(
    "line",
    [
        "token = tokenizer.encode(text)",
        "password = getpass.getpass()",
        'api_key = os.environ["KEY"]',
        "secret_key=settings.SECRET_KEY",
        '"tokenizer_class": "Qwen2TokenizerFast"',
        "max_tokens: 123456789012",
        "password: correct-horse-battery",
        "TOKEN=${TOKEN}",
        "secretKey = generateSecretKeyFromSeed2",
        "token_file: /home/ada/.config/app/token.json",
        "password=changeme-please-now-1",
        "api_key = your_api_key_goes_here1",
        "commit 3f786850e387550fdab836ed7e6dc881de23001b",
        "sha512-" + drawn(86) + "==",
        "id: 123e4567-e89b-42d3-a456-426614174000",
        "digest=" + drawn(64, "0123456789abcdef"),
        "x" * 200,
        "postgres://postgres:postgres@localhost/x",
        "postgres://app:${PASSWORD}@db",
        "data:image/png;base64," + drawn(120),
        "def test_password_token_secret(self):",
        "a-b" * 40,
    ],
)
def test_what_is_none_stays(line: str) -> None:
    assert Redactor().redact(line) == line


def test_a_private_key_is_hidden_line_by_line_and_can_be_put_in_again() -> None:
    key = "\n".join([BEGIN, *KEY_BODY, END])
    for text in (
        f"before\n{key}\nafter\n",
        key,
        f"k: |\n  {key}".replace("\n", "\n  "),
        key.replace("\n", "\r\n"),
        key.replace("\n", "\\n"),
    ):
        redactor = Redactor()
        redacted = redactor.redact(text)
        assert not any(line in redacted for line in KEY_BODY) and redactor.restore(redacted) == text
    assert (
        Redactor().redact("\n".join(KEY_BODY[1:3])).count("private-key") == 2
    )  # a part of one, without its first line


def test_a_text_that_only_speaks_of_keys_is_left_alone() -> None:
    text = f'BEGIN = "{BEGIN}"\n\n\ndef load(path):\n    """Reads it."""\n    return open(path).read()\n'
    assert Redactor().redact(text) == text


def test_the_same_secret_has_the_same_mark_and_another_session_another() -> None:
    secret, key = FORMS["aws-key"], b"k" * 16
    one, again = Redactor(key=key), Redactor(key=key)
    assert one.redact(secret) == one.redact(f"{secret}") == again.redact(secret) != Redactor().redact(secret)
    assert MARK.fullmatch(one.redact(secret))


def test_what_was_found_once_is_found_without_its_name() -> None:
    redactor = Redactor()
    redactor.redact(f"password = {NAMED}")
    assert NAMED not in redactor.redact(f"it is {NAMED}, I think")


def test_known_values_are_found_in_every_form() -> None:
    env = {
        "DEPLOY_TOKEN": "p@ss/w0rd+long",
        "HOME": "/home/ada",
        "MAX_TOKENS": "12345678",
        "DB_PASSWORD": "postgres",
        "U": "a://b:s3cr3t-w0rd@c",
    }
    redactor = Redactor(known_secrets(env))
    for text in ("x p@ss/w0rd+long y", "p%40ss%2Fw0rd%2Blong", "cEBzcy93MHJkK2xvbmc=", "s3cr3t-w0rd"):
        assert "[secret known " in redactor.redact(text), text
    for text in ("/home/ada", "12345678", "postgres"):
        assert redactor.redact(text) == text


def test_commands_are_given_no_secrets() -> None:
    env = {
        "PATH": "/bin",
        "GITHUB_TOKEN": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "SSH_AUTH_SOCK": "/s",
        "DB": "a://b:c@d",
        "TOKEN_FILE": "/f",
        "STRIPE_KEY": "x",
        "KEYBOARD": "de",
    }
    assert without_secrets(env) == {"PATH": "/bin", "TOKEN_FILE": "/f", "KEYBOARD": "de"}
    assert without_secrets(env, keep=["GITHUB_TOKEN"])["GITHUB_TOKEN"] == "x"


def test_what_is_said_to_be_a_secret_is_one_whatever_its_variable_is_called() -> None:
    env = {"LLM": "abcdefghijklmnop123", "HEADER": "Bearer abcdefghijklmnop123", "PATH": "/bin", "MODE": "test"}
    said = ["abcdefghijklmnop123", "test"]
    assert without_secrets(env, said=said) == {"PATH": "/bin", "MODE": "test"}, "but no ordinary word is"
    assert "abcdefghijklmnop123" not in Redactor(known_secrets(env, said)).redact("it is abcdefghijklmnop123.")


def pieces(text: str, draw: random.Random) -> list[str]:
    cuts = sorted(draw.randrange(len(text) + 1) for _ in range(draw.randrange(12)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def test_a_stream_says_what_the_whole_says_however_it_is_cut() -> None:
    parts = [
        *FORMS.values(),
        f"password={NAMED}",
        BEGIN,
        *KEY_BODY,
        END,
        "plain words",
        "\r",
        "\n",
        "\r\n",
        " ",
        '"',
        "é…",
        "",
    ]
    draw = random.Random(3)
    for _ in range(400):
        text = "".join(draw.choice(parts) + draw.choice(["\n", "", " ", "\r\n"]) for _ in range(draw.randrange(1, 25)))
        whole = Redactor(key=b"k").redact(text)
        redactor = Redactor(key=b"k")
        stream = Stream(redactor)
        told = [stream.feed(piece) for piece in pieces(text, draw)]
        assert "".join([*told, stream.finish()]) == whole
        assert redactor.restore(whole) == text


def test_a_line_is_out_as_soon_as_it_is_whole() -> None:
    stream = Stream(Redactor())
    assert [stream.feed(piece) for piece in ("50%\r60", "%\rdone", "\nnext")] == ["50%\r", "60%\r", "done\n"]
    assert stream.finish() == "next"


@pytest.mark.parametrize(
    "unit", ["a", "eyJ-", "sk-", "://a:", "token", "password=", "-----BEGIN", "A1b", "/x", "=", " "]
)
def test_time_is_linear_in_the_length_of_a_line(unit: str) -> None:
    started = time.process_time()
    Redactor(known=[drawn(20)]).redact(unit * (400_000 // len(unit)))
    assert time.process_time() - started < 8


def test_entropy_tells_drawn_from_written() -> None:
    assert looks_drawn(drawn(32)) and looks_drawn(drawn(40, "0123456789abcdef"))
    assert not any(
        looks_drawn(word)
        for word in ("short1", "a" * 40, "some_long_variable_name", "SOME_CONSTANT_NAME", "my.module.path")
    )
    assert find_secrets("") == []


def play(
    in_sandbox: Callable[..., Any],
    files: dict[str, bytes],
    calls: list[tuple[str, dict[str, Any]]],
    tools: Sequence[Tool] = TOOLS,
    seen: list[bytes] | None = None,
) -> tuple[list[str], dict[str, bytes]]:
    guarded = SecretGuard(Redactor(known=["known-value-1"])).guard({tool.name: tool for tool in tools})
    left: dict[str, bytes] = {}
    watch = None if seen is None else lambda _, piece: seen.append(piece)

    async def scenario(sandbox: Sandbox) -> list[str]:
        texts: list[str] = []
        for name, arguments in calls:
            filled = {key: value(texts) if callable(value) else value for key, value in arguments.items()}
            call = ToolCall(name, filled, "")
            [result] = await run_calls([call], guarded, sandbox, ToolConfig(), lambda *_: None, on_output=watch)
            texts.append(result.text)
        for path in files:
            left[path] = await sandbox.read_file(f"/workspace/{path}")
        return texts

    return in_sandbox(scenario, files), left


@pytest.mark.parametrize("toolset", TOOLSETS)
def test_a_file_with_a_secret_is_edited_without_being_shown_or_destroyed(
    toolset: str, in_sandbox: Callable[..., Any]
) -> None:
    secret = FORMS["github-token"]
    env = f"TOKEN={secret}\nDEBUG=1\n".encode()
    texts, left = play(
        in_sandbox,
        {".env": env, "copy": env},
        [
            ("read_file", {"path": ".env"}),
            (
                "edit_file",
                {
                    "path": ".env",
                    "old": lambda texts: texts[0],
                    "new": lambda texts: texts[0].replace("DEBUG=1", "DEBUG=0"),
                },
            ),
            ("write_file", {"path": "copy", "content": lambda texts: texts[0].rstrip("\n") + "\nMORE=1\n"}),
            ("run_terminal_cmd", {"command": "cat .env; echo known-value-1 >&2; exit 3"}),
            ("grep", {"pattern": "TOKEN"}),
            ("edit_file", {"path": ".env", "old": "TOKEN=x", "new": "y"}),
        ],
        TOOLSETS[toolset],
    )
    assert left == {".env": env.replace(b"DEBUG=1", b"DEBUG=0"), "copy": env + b"MORE=1\n"}
    assert not any(secret in text or "known-value-1" in text for text in texts)
    assert (
        all(text.startswith("ok") for text in texts[1:3])
        and texts[3].endswith("[exit 3]")
        and texts[5].startswith("error: ")
    )


def test_a_mark_of_another_session_is_not_written(in_sandbox: Callable[..., Any]) -> None:
    mark = Redactor().mark("something", "aws-key")
    texts, left = play(in_sandbox, {"a": b"x\n"}, [("write_file", {"path": "a", "content": mark})])
    assert texts[0].startswith("error: [secret aws-key ") and "read it again" in texts[0] and left == {"a": b"x\n"}
    with pytest.raises(UnknownMark):
        Redactor().restore(mark)


def test_hunks_hold_marks_and_who_watches_sees_them_too(in_sandbox: Callable[..., Any]) -> None:
    secret = FORMS["github-token"]

    def hunks(texts: list[str]) -> str:
        line = texts[0].splitlines()[0]
        return f"<<<<<<< SEARCH\n{line}\n=======\nOTHER=1\n{line}\n>>>>>>> REPLACE"

    seen: list[bytes] = []
    show = "head -c 30 .env; sleep 0.3; tail -c +31 .env; echo end"  # the secret in two pieces
    calls = [
        ("read_file", {"path": ".env"}),
        ("edit_file", {"path": ".env", "hunks": hunks}),
        ("run_terminal_cmd", {"command": show}),
    ]
    texts, left = play(in_sandbox, {".env": f"TOKEN={secret}\n".encode()}, calls, TOOLSETS["agent"], seen)
    assert left == {".env": f"OTHER=1\nTOKEN={secret}\n".encode()} and texts[1].startswith("ok")
    live = b"".join(seen).decode()
    assert secret not in live and live.endswith("end\n") and "[secret github-token " in live
    assert live.strip() == texts[2]


def test_commands_get_marks_as_they_are(in_sandbox: Callable[..., Any]) -> None:
    secret = FORMS["aws-key"]
    calls = [
        ("read_file", {"path": "a"}),
        ("run_terminal_cmd", {"command": lambda texts: f"echo '{texts[0].strip()}' | wc -c"}),
    ]
    texts, _ = play(in_sandbox, {"a": secret.encode()}, calls)
    assert texts[1] == str(len(texts[0].strip()) + 1)


def test_the_tools_look_as_they_did() -> None:
    guarded = SecretGuard(Redactor()).guard({tool.name: tool for tool in TOOLS})
    assert [tool.json_schema() for tool in guarded.values()] == [tool.json_schema() for tool in TOOLS]
