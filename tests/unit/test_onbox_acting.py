"""Which lines of units, scripts and cron tables act on our units, and which only look at them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetctl.onbox.acting import LARGEST, Target, acts, found_in, starts_engine
from fleetctl.onbox.examine_engines import Log
from fleetctl.onbox.redacted import all_redacted, redacted
from fleetctl.watch.logs.clean import lines_of

COPY, SPLIT = "fleetctl-replicas-qwen.service", "fleetctl-split-qwen.service"
TARGET = Target([COPY, SPLIT, "old-vllm.service"], ["fleetctl-replicas-qwen", "fleetctl-split-qwen"], [8000])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"systemctl restart {COPY}", [(COPY, "restart")]),
        ("/usr/bin/systemctl --no-block stop fleetctl-replicas-qwen", [(COPY, "stop")]),
        ("sudo systemctl -q start old-vllm", [("old-vllm.service", "start")]),
        ("systemctl restart 'fleetctl-*'", [(COPY, "restart"), (SPLIT, "restart")]),
        (f"curl -sf localhost:8000/health || systemctl restart {COPY}", [(COPY, "restart")]),
        (f'subprocess.run(["systemctl", "kill", "{COPY}"], check=True)', [(COPY, "kill")]),
        (f"UNIT={COPY}\nif ! probe; then\n  systemctl restart $UNIT\nfi", [(COPY, "restart")]),
        (f'for u in {COPY} {SPLIT}; do systemctl stop "$u"; done', [(COPY, "stop"), (SPLIT, "stop")]),
        ("service old-vllm restart", [("old-vllm.service", "restart")]),
        (f"systemctl \\\n   disable --now {SPLIT}", [(SPLIT, "disable")]),
        ("docker restart fleetctl-replicas-qwen", [("fleetctl-replicas-qwen", "restart")]),
        ("podman rm -f fleetctl-split-qwen", [("fleetctl-split-qwen", "rm")]),
        ("pkill -9 -f VLLM::EngineCore", [("engines", "pkill")]),
        ("killall python3", [("engines", "killall")]),
        ("fuser -k 8000/tcp", [("port 8000", "kill")]),
        ("kill $(lsof -t -i:8000)", [("port 8000", "kill")]),
        # What only looks, speaks of others, or is a comment.
        (f"systemctl is-active {COPY}", []),
        (f"systemctl show -p MainPID {COPY} && journalctl -u {COPY}", []),
        (f"# systemctl restart {COPY}", []),
        (f"echo '{COPY} is down'; systemctl restart nginx", []),
        ("systemctl restart fleetctl-replicas-qwen2", []),
        ("docker ps --filter name=fleetctl-replicas-qwen", []),
        ("docker restart postgres", []),
        ("pkill -HUP rsyslogd", []),
        ("fuser 8000/tcp", []),
        ("fuser -k 18000/tcp", []),
        ("systemctl --user restart old-vllm", []),
    ],
)
def test_a_line_acts_when_a_tool_that_starts_or_stops_is_told_the_name(text: str, told: list[tuple[str, str]]) -> None:
    assert [(act.on, act.verb) for act in acts(text, TARGET)] == told


def test_a_script_that_a_command_names_is_looked_into(tmp_path: Path) -> None:
    script = tmp_path / "watch dog.sh"
    script.write_text(f"#!/bin/sh\nsystemctl restart {COPY}\n")
    (tmp_path / "program").write_bytes(b"\x7fELF\0\0" + f"systemctl restart {COPY}".encode())
    command = f'/bin/sh "{script}" --every 5; {tmp_path}/program'
    found = found_in("", "/etc/cron.d/x", [command], TARGET)
    assert [(one["on"], one["where"]) for one in found] == [(COPY, str(script))]


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("/opt/vllm/bin/vllm serve /models/qwen --port 8000", True),
        ("/usr/bin/python3 -m vllm.entrypoints.openai.api_server --model qwen", True),
        ("python3 -m sglang.launch_server", True),
        ("/usr/local/bin/llama-server -m x.gguf", True),
        ("/usr/bin/docker run --rm --name v vllm/vllm-openai:latest", True),
        ("tail -f /var/log/vllm.log", False),
        ("pip install vllm", False),
        ("tar czf /backup/x.tgz /opt/llama-server/models", False),
        ("systemctl is-active llama-server", False),
        ("/usr/bin/prometheus --config=vllm.yaml", False),
    ],
)
def test_a_line_that_starts_an_engine_is_told_from_one_that_names_it(line: str, is_one: bool) -> None:
    assert (starts_engine(line) is not None) == is_one


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("+Environment=HF_TOKEN=hf_abcdefgh1234", "+Environment=HF_TOKEN=***"),
        ("vllm serve x --api-key s3cret --port 8000", "vllm serve x --api-key *** --port 8000"),
        ('curl -H "Authorization: Bearer abc.def" http://x', 'curl -H "Authorization: Bearer ***" http://x'),
        ("curl http://me:pw@host/x", "curl http://me:***@host/x"),
        ("PASSWORD='a b' x", "PASSWORD=*** x"),
        ('{"password": "a b", "x": 1}', '{"password": ***, "x": 1}'),
        ("echo sk-abcdefgh", "echo ***"),
        ("ExecStart=x '--api-key', 'abc', '--port'", "ExecStart=x '--api-key', ***, '--port'"),
        ("args: {'api_key': ['abc', 'def'], 'port': 1}", "args: {'api_key': ***, 'port': 1}"),
        ('-d {\\"api_key\\": \\"abc\\"}', '-d {\\"api_key\\": ***}'),
        ("curl -H 'Authorization: abc def' x", "curl -H 'Authorization: ***' x"),
        ("curl -u admin:abc http://x", "curl -u admin:*** http://x"),
        ("curl --user=admin:abc http://x", "curl --user=admin:*** http://x"),
        ("sshpass -p abc ssh x", "sshpass -p *** ssh x"),
        ("redis://:abc@host/0 http://me:p@ss@host", "redis://:***@host/0 http://me:***@host"),
        ("MYSQL_PWD=abc DB_PASS=def PWD=/root", "MYSQL_PWD=*** DB_PASS=*** PWD=/root"),
        ("docker run -u 1000:1000 x", "docker run -u 1000:1000 x"),
        ("--max-num-batched-tokens 8192", "--max-num-batched-tokens 8192"),
        ("tokenizer: /models/qwen", "tokenizer: /models/qwen"),
        ("LimitNOFILE=1048576", "LimitNOFILE=1048576"),
    ],
)
def test_what_looks_like_a_secret_does_not_leave_the_box(line: str, shown: str) -> None:
    assert redacted(line) == shown


def test_long_texts_are_cut_and_say_so() -> None:
    assert all_redacted(["x" * 1000], 3) == ["x" * 300 + "…"]
    assert all_redacted([str(n) for n in range(9)], 2) == ["0", "1", "… and 7 more lines"]


HIDE = "s3cret-value"


@pytest.mark.parametrize(
    "line",
    [
        f"vllm serve m --api-key {HIDE} --port 8000",
        f"vllm serve m --api-key={HIDE}",
        f"args: ['serve', '--api-key', 'very {HIDE}', '-x']",
        f"non-default args: {{'api_key': ['one {HIDE}', '{HIDE}'], 'port': 1}}",
        f"Namespace(api_key=['{HIDE}'], hf_token='{HIDE}', seed=0)",
        f"HF_TOKEN={HIDE} VLLM_API_KEY='a {HIDE}' X=1",
        f"AWS_SECRET_ACCESS_KEY: {HIDE}",
        f'{{"password": "it\\"{HIDE}", "user": "me"}}',
        f"Authorization: Bearer {HIDE}",
        f"x-api-key: {HIDE}",
        f"fetching https://me:{HIDE}@hub.example/x",
        f"redis://:{HIDE}@cache.example/0",
        f"token hf_abcdefghijklmnopqrstuv{HIDE.replace('-', '')} is bad",
    ],
)
def test_both_rules_for_secrets_hide_what_engines_and_files_are_known_to_say(line: str) -> None:
    assert HIDE not in redacted(line) and HIDE.replace("-", "") not in redacted(line)
    assert HIDE not in lines_of(line)[0] and HIDE.replace("-", "") not in lines_of(line)[0]


def test_the_arguments_that_an_engine_logs_are_told_without_its_keys() -> None:
    log = Log("activating", None, 0)
    said = f"non-default args: {{'api_key': ['{HIDE}'], 'model': 'm'}}: Address already in use"
    for number, text in enumerate(["nothing", said]):
        log.take(b"%d.5 box vllm[7]: %s" % (1000 - number, text.encode()))
    assert HIDE not in str(log.told()) and "'model': 'm'" in str(log.told()["found"]["port"])


def test_a_line_of_nothing_but_names_of_secrets_takes_no_longer_than_many_others() -> None:
    def took(clean: Callable[[str], object], line: str) -> float:
        began = time.process_time()
        clean(line)
        return time.process_time() - began

    usual = "vllm serve m --api-key x --port 8000 " * 400
    for clean in (redacted, lines_of):
        for one in ("token", "a", "secret=", "api_key=['", "a://", "a-", "a_", "-a", "A_TOKEN"):
            assert took(clean, (one * 16384)[:16384]) < max(2.0, 100 * took(clean, usual)), (clean, one)


@pytest.mark.parametrize(
    "words", ["systemctl restart $X ", "systemctl ", "docker run ", "lsof ", "pkill -x ", "systemctl stop [a* ", "a "]
)
def test_a_file_of_one_long_line_is_looked_at_in_no_time(words: str) -> None:
    """One unit file like that kept doctor busy for minutes."""
    target = Target([f"fleetctl-{n}.service" for n in range(20)], ["fleetctl-1"], [8000])
    began = time.process_time()
    acts(words * (LARGEST // len(words)) + "fleetctl-1", target)
    assert time.process_time() - began < 5
    assert acts("x " * 50 + "; systemctl restart fleetctl-1; " + "x " * 20_000, target)
