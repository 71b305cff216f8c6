"""Who comes into the studio, and what a browser is told to keep to: a real server, and requests as hostile pages send
them."""

from __future__ import annotations

import asyncio
import datetime
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from made_run import Studio, make_run, studio
from schema_fuzz import MODES, fuzz, name_of

from etude.errors import ConfigError
from etude.studio.app import OPERATIONS, openapi
from etude.studio.config import StudioConfig
from etude.studio.pages import STATIC

OPEN = {("post", "/api/enter")}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    from made_run import archive

    root = tmp_path_factory.mktemp("entry")
    archive(make_run(root / "runs" / "first"))
    agent = ['endpoint.url="http://127.0.0.1:9/v1"', 'endpoint.model="none"']
    more = ["--work", *(part for each in agent for part in ("--agent-set", each))]
    with studio(root / "home", root / "runs", more=more) as server:
        yield server


def enter(served: Studio, code: str, **headers: str) -> httpx2.Response:
    return httpx2.post(f"{served.url}/api/enter", json={"code": code}, headers=headers, trust_env=False)


def test_a_code_works_once_and_a_new_one_is_printed(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "first")
    with studio(tmp_path / "home", tmp_path / "runs") as served:
        assert enter(served, "wrong").status_code == 403
        answer = enter(served, served.code, Origin=served.url)
        assert answer.status_code == 200 and answer.json()["token"] == served.token and answer.json()["work"] is False
        again = enter(served, served.code)
        assert again.status_code == 403 and "was used before" in again.json()["error"]["message"]
        assert served.process.stderr is not None
        printed = served.process.stderr.readline().partition("#code=")[2].strip()
        assert enter(served, printed).status_code == 200, "another tab"
        more = served.http.post("/api/codes").json()["code"]
        assert enter(served, more).status_code == 200 and enter(served, more).status_code == 403
        odd = httpx2.post(f"{served.url}/api/enter", content=b'{"code": "\\ud800"}', trust_env=False)
        assert odd.status_code in (400, 403), odd.text
        token_file = Path(served.told["token_file"])
        assert token_file.stat().st_mode & 0o77 == 0


def test_nothing_but_pages_and_entering_is_open(served: Studio) -> None:
    for operation in OPERATIONS:
        path = operation.path.replace("{", "").replace("}", "")
        answer = httpx2.request(operation.method, served.url + path, trust_env=False)
        if (operation.method, operation.path) in OPEN:
            assert answer.status_code == 400, answer.text
        elif operation.path == "/health":
            assert answer.json() == {"status": "ok"}, "a probe is told no more"
        else:
            assert answer.status_code == 401, operation.path
    assert httpx2.get(f"{served.url}/openapi.json", trust_env=False).status_code == 401
    for path in ("/api", "/api/", "/api/nothing", "//api/runs", "/api//runs"):
        assert httpx2.get(served.url + path, trust_env=False).status_code in (401, 404), path


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "null"}, 403),
        ({"Authorization": "Bearer wrong-wrong-wrong"}, 401),
        ({"Cookie": "token=x"}, 200),
        ({}, 200),
    ],
)
def test_foreign_names_and_pages_are_refused(served: Studio, headers: dict[str, str], status: int) -> None:
    own = {"Authorization": f"Bearer {served.token}", "Origin": served.url} | headers
    answer = httpx2.get(f"{served.url}/api/runs", headers=own, trust_env=False)
    assert answer.status_code == status, answer.text
    for path in ("/", "/assets/x.js"):
        assert (httpx2.get(served.url + path, headers=headers, trust_env=False).status_code == 403) is (status == 403)
    assert "set-cookie" not in answer.headers


def test_every_answer_has_the_headers(served: Studio) -> None:
    asked = [
        ("GET", "/"),
        ("GET", "/nothing.js"),
        ("GET", "/api/runs"),
        ("POST", "/api/runs"),
        ("GET", "/api/runs/none"),
    ]
    told = [served.http.request(method, path) for method, path in asked]
    told += [httpx2.get(f"{served.url}/api/runs", trust_env=False), enter(served, "x", Host="evil.example")]
    assert {answer.status_code for answer in told} >= {200, 401, 403, 404, 405} - (
        {200} if told[0].status_code else set()
    )
    for answer in told:
        policy = dict(each.split(" ", 1) for each in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'" and policy["script-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert policy["require-trusted-types-for"] == "'script'" and policy["trusted-types"] == "'none'"
        assert not [value for value in policy.values() if "unsafe" in value or "*" in value]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in answer.headers
    assert told[2].headers["cache-control"] == "no-store", "what a run says stays in no browser's cache"


def test_pages_are_files_of_the_package_alone(served: Studio) -> None:
    for path in ("/../config.py", "/..%2fconfig.py", "/%2e%2e/config.py", "/assets/../../config.py", "/etc/passwd"):
        answer = httpx2.get(served.url + path, trust_env=False)
        assert answer.status_code in (404, 503) and "StudioConfig" not in answer.text
    first = httpx2.get(f"{served.url}/", trust_env=False)
    if not (STATIC / "index.html").exists():
        assert first.status_code == 503 and "not built" in first.text
        return
    assert first.status_code == 200 and first.headers["content-type"].startswith("text/html")
    asset = max((STATIC / "assets").glob("*.js"), key=lambda path: path.stat().st_size)
    answer = httpx2.get(f"{served.url}/assets/{asset.name}", trust_env=False)
    assert answer.headers["content-type"].startswith("text/javascript") and answer.content == asset.read_bytes()
    kept = httpx2.get(answer.url, headers={"If-None-Match": answer.headers["etag"]}, trust_env=False)
    assert kept.status_code == 304 and not kept.content
    plain = httpx2.get(answer.url, headers={"Accept-Encoding": "identity"}, trust_env=False)
    assert plain.content == answer.content and plain.headers["etag"] != answer.headers["etag"]
    assert answer.headers["content-encoding"] == "gzip" and "content-encoding" not in plain.headers
    assert int(answer.headers["content-length"]) < len(plain.content) / 2
    assert "Accept-Encoding" in plain.headers["vary"]


def test_another_address_needs_tls(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tls_certificate"):
        StudioConfig(host="0.0.0.0", hosts=("studio.example",))
    with pytest.raises(ValueError, match="give both"):
        StudioConfig(tls_key=tmp_path)
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]),
    )
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    made = made.not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(1))
    (tmp_path / "cert.pem").write_bytes(
        made.add_extension(names, False).sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (tmp_path / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    sets = [f'tls_certificate="{tmp_path}/cert.pem"', f'tls_key="{tmp_path}/key.pem"', 'host="0.0.0.0"',
            'hosts=["localhost"]']  # fmt: skip
    make_run(tmp_path / "runs" / "first")
    with studio(
        tmp_path / "home", tmp_path / "runs", more=[part for each in sets for part in ("--set", each)]
    ) as served:
        own = f"https://localhost:{served.port}"
        assert served.url == own, "a browser that gave 0.0.0.0 as Host would be refused"
        trusted = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        with httpx2.Client(verify=trusted, trust_env=False) as client:
            answer = client.post(f"{own}/api/enter", json={"code": served.code}, headers={"Origin": own})
            assert answer.status_code == 200, answer.text
            answer = client.post(f"{own}/api/codes", headers={"Origin": own.replace("https", "http")})
            assert answer.status_code == 403


def refused(place: Path, **keys: object) -> str:
    """What is said instead of serving."""
    from etude.studio.app import serve

    with pytest.raises(ConfigError) as said:
        asyncio.run(serve(StudioConfig(**{"port": 0} | keys), [str(place)], None, lambda *_: None))
    return str(said.value)


def test_a_place_that_is_not_there_is_said(tmp_path: Path) -> None:
    assert "nothing: no such directory" in refused(tmp_path / "nothing")


def test_what_cannot_be_listened_with_is_said(tmp_path: Path) -> None:
    key, text = tmp_path / "key.pem", tmp_path / "text.pem"
    text.write_text("no certificate")
    files = {"tls_certificate": text, "tls_key": key, "token_file": tmp_path / "token"}
    assert refused(tmp_path, **files) == f"tls_key: {key}: no such file"
    key.write_text("no key")
    assert f"{text} and {key} are not a certificate and its private key" in refused(tmp_path, **files)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = refused(tmp_path, port=taken.getsockname()[1], token_file=tmp_path / "token")
        assert said.endswith("give another port, or 0 for a free one")


# --- the document -----------------------------------------------------------------------------------------------------


def test_the_document_says_what_there_is(served: Studio) -> None:
    told = served.http.get("/openapi.json").json()
    assert told == json.loads(json.dumps(openapi()))
    assert [path for path, each in told["paths"].items() if any("security" in one for one in each.values())] == [
        "/api/enter"
    ]
    assert {"StepsEvent", "LiveEvent", "RunsEvent", "TrajectoriesEvent", "TrajectoryRow"} <= told["components"][
        "schemas"
    ].keys()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("operation", OPERATIONS, ids=name_of)
def test_every_answer_is_one_the_document_describes(served: Studio, operation, mode) -> None:
    known = {"run": served.id("first"), "trajectory": "g1~0", "group": "g1", "step": 1}

    def before(case) -> None:
        """Most are about a run, and a trajectory, that are there; a stream does not end, and is left out."""
        for name in known.keys() & (case.path_parameters or {}).keys():
            if len(str(case.path_parameters)) % 4:
                case.path_parameters[name] = known[name]
        if isinstance(case.body, dict) and "topics" in case.body:
            case.body["topics"] = {"run/none/steps": None}

    fuzz(openapi(), operation, mode, served.url, served.token, before)
