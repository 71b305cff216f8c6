"""`etude serve`, as a user runs it: it says where it is, answers, and at SIGTERM ends what is under way."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from small_models import SHIPPED

from etude.cli.main import main


def etude(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "etude.cli.main", "serve", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


async def terminated_in_the_middle(server, said):
    token = Path(said["token_file"]).read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    body = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 300, "ignore_eos": True}, "stream": True}
    async with httpx2.AsyncClient(base_url=said["url"], headers=headers, timeout=60, trust_env=False) as http:
        assert (await http.get("/v1/models")).json()["data"][0]["id"] == "etude-tiny"
        tokens, last = 0, ""
        async with http.stream("POST", "/generate", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    tokens += len(json.loads(line[6:])["choices"][0]["token_ids"])
                if tokens == 3:
                    server.send_signal(signal.SIGTERM)
                last = line or last
        assert (tokens, last) == (300, "data: [DONE]")


def test_a_server_is_started_used_and_stopped_while_it_answers(tmp_path):
    server = etude(str(SHIPPED), "--set", "port=0", "--set", f"token_file={tmp_path}/token", "--json",
                   "--set", "drain_s=60", "--set", "threads=1")  # fmt: skip
    try:
        said = json.loads(server.stdout.readline())
        assert said["remarks"] == ["its cache holds 98,304 positions, 0.19 GiB (engine.cache_tokens)"]
        asyncio.run(terminated_in_the_middle(server, said))
        _, errors = server.communicate(timeout=60)
        assert (server.returncode, errors) == (0, "")
    finally:
        server.kill()
        server.wait()


def sampled(url, token):
    """Until the engine has sampled all that was asked of it."""
    headers = {"Authorization": f"Bearer {token}"}
    with httpx2.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as http:
        while not {"etude_engine_running 0.0", "etude_engine_waiting 0.0"} <= set(
            http.get("/metrics").text.split("\n")
        ):
            time.sleep(0.05)


def test_clients_that_never_read_are_hung_up_on_without_a_word(tmp_path):
    """What they were sent fills both sides' buffers, so that their answers never end."""
    server = etude(str(SHIPPED), "--set", "port=0", "--set", f"token_file={tmp_path}/token", "--json",
                   "--set", "drain_s=0.5", "--set", "threads=1")  # fmt: skip
    clients = []
    try:
        url = urlsplit(json.loads(server.stdout.readline())["url"])
        token = (tmp_path / "token").read_text().strip()
        asked = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 900, "stream": True, "n": 2}
        body = json.dumps({**asked, "logprobs": True, "top_logprobs": 20, "ignore_eos": True})
        for _ in range(3):
            client = socket.socket()
            clients.append(client)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            client.connect((url.hostname, url.port))
            head = f"Host: {url.netloc}\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n"
            client.send(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n{body}".encode())
            assert client.recv(15) == b"HTTP/1.1 200 OK"
        sampled(url.geturl(), token)
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=60)
        assert (server.returncode, errors) == (0, "")
    finally:
        for client in clients:
            client.close()
        server.kill()
        server.wait()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([str(SHIPPED), "--set", "bogus=1"], 42, "bogus: unknown key; known here: deadlines"),
        ([str(SHIPPED), "--set", "host=0.0.0.0"], 42, "hosts: name what this machine is called"),
        (["/nonexistent", "--set", "port=0"], 42, "config.json"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(capsys, arguments, code, said):
    found = main(["serve", *arguments])
    errors = capsys.readouterr().err
    assert found == code and said in errors and errors.count("\n") == 1
