"""Rules between the parts of fleet.yaml: each is told where it is broken, and lets through what is right."""

from __future__ import annotations

import inspect

import pytest

from fleetctl.spec.checks import CHECKS
from fleetctl.spec.load import parse_fleet
from fleetctl.spec.problems import FleetFileError, dotted

FILE = """\
fleet: office
boxes:
  spark1: {address: 10.0.0.1, link: 10.1.0.1, memory: 100GiB, reserve: 20GiB}
  spark2: {address: 10.0.0.2, link: 10.1.0.2, memory: 100GiB, reserve: 20GiB}
models:
  qwen:
    weights: /models/qwen
    context: 8192
    launch: {venv: /opt/vllm}
  tiny:
    weights: org/tiny
    context: 8192
    launch: {image: vllm/vllm}
layouts:
  split:
    qwen: {split: [spark1, spark2]}
  replicas:
    qwen: {copies: [spark1, spark2]}
    tiny: {copies: [spark2]}
proxy:
  box: spark1
"""
ON_SPARK1 = "spark1: {address: 10.0.0.1, link: 10.1.0.1, memory: 100GiB, reserve: 20GiB"
QWEN_SPLIT, QWEN_COPIES = "qwen: {split: [spark1, spark2]", "qwen: {copies: [spark1, spark2]"
TINY, CONTEXT, PROXY = "tiny: {copies: [spark2]", "    context: 8192\n", "  box: spark1\n"
BOTH, FLOAT = "  boxes: [spark1, spark2]\n", "  floating: {address: 10.0.0.50}\n"


def found(old: str, new: str) -> list[tuple[str, str]]:
    """Path and message of every problem once ``old`` is ``new``."""
    assert old in FILE
    try:
        parse_fleet(FILE.replace(old, new, 1), "fleet.yaml")
    except FleetFileError as error:
        return [(dotted(problem.path), problem.message) for problem in error.problems]
    return []


def after(old: str, more: str) -> tuple[str, str]:
    return old, old + more


BROKEN = [
    # budgets
    (
        QWEN_COPIES,
        "qwen: {copies: {spark1: {kv_cache_memory: 4}}",
        "layouts.replicas.qwen.copies.spark1.kv_cache_memory",
        "did you mean 4GiB",
    ),
    (
        QWEN_COPIES,
        "qwen: {copies: {spark1: {kv_cache_memory: 81GiB}}",
        "layouts.replicas.qwen.copies.spark1.kv_cache_memory",
        "100.0 GiB - reserve 20.0 GiB = 80.0 GiB",
    ),
    # adapters
    (CONTEXT, f"{CONTEXT}    loras: {{}}\n    arguments: [--enable-lora]\n", "models.qwen.arguments[0]", "loras: of"),
    (
        CONTEXT,
        f"{CONTEXT}    loras: {{}}\n    arguments: [--max-lora-rank=32]\n",
        "models.qwen.arguments[0]",
        "max_lora_rank: in loras:",
    ),
    (
        CONTEXT,
        f"{CONTEXT}    loras: {{}}\n    arguments: [--lora-modules, a=/x]\n",
        "models.qwen.arguments[0]",
        "`fleetctl lora push`",
    ),
    (CONTEXT, f"{CONTEXT}    loras: {{max_lora_rank: 24}}\n", "models.qwen.loras.max_lora_rank", "16"),
    (CONTEXT, f"{CONTEXT}    loras: {{max_loras: 8, max_cpu_loras: 4}}\n", "models.qwen.loras", "which is 8"),
    # boxes
    ("link: 10.1.0.1", "link: 10.0.0.2", "boxes.spark2.address", "already the link of spark1"),
    ("address: 10.0.0.2", "address: 10.0.0.1", "boxes.spark2.address", "already the address of spark1"),
    ("address: 10.0.0.2", "address: http://b", "boxes.spark2.address", "without scheme, port or path"),
    ("address: 10.0.0.2", "address: '10.0.0.2:80'", "boxes.spark2.address", "without scheme, port or path"),
    ("address: 10.0.0.2", "address: 10.0.0.256", "boxes.spark2.address", "an IP address or a host name"),
    ("address: 10.0.0.2", "address: 0.0.0.0", "boxes.spark2.address", "cannot reach"),
    ("address: 10.0.0.2", "address: ''", "boxes.spark2.address", "an IP address or a host name"),
    ("link: 10.1.0.2", "link: 10.1.0.2, ssh: {host: 10.0.0.1}", "boxes.spark2.ssh.host", "already leads to spark1"),
    ("link: 10.1.0.2", "link: 10.1.0.2, ssh: {host: ops@b}", "boxes.spark2.ssh.host", "under user:"),
    ("link: 10.1.0.2", "link: 10.1.0.2, ssh: {host: -oProxyCommand=x}", "boxes.spark2.ssh.host", "not one word"),
    ("link: 10.1.0.2", "link: 10.1.0.2, interface: much-too-long-a-name", "boxes.spark2.interface", "ip -brief"),
    ("reserve: 20GiB", "reserve: 100GiB", "boxes.spark1.reserve", "leaves nothing for an engine"),
    ("reserve: 20GiB", "reserve: 20", "boxes.spark1.reserve", "20 is only 20 bytes; did you mean 20GiB?"),
    ("memory: 100GiB", "memory: 0", "boxes.spark1.memory", "only 0 bytes"),
    # models
    ("/models/qwen", "~/qwen", "models.qwen.weights", "a path begins with /"),
    ("/models/qwen", "''", "models.qwen.weights", "neither a path"),
    ("/models/qwen", "/models/qwen\n    revision: main", "models.qwen.revision", "only a hub id has a revision"),
    ("/opt/vllm", "opt/vllm", "models.qwen.launch.venv", "no absolute path"),
    ("vllm/vllm", "'vllm vllm'", "models.tiny.launch.image", "no image reference"),
    ("vllm/vllm", "x, options: [--restart=always]", "models.tiny.launch.options[0]", "second supervisor"),
    (*after(CONTEXT, "    served_as: [a, a]\n"), "models.qwen.served_as[1]", "already in this list"),
    (*after(CONTEXT, "    served_as: ['a b']\n"), "models.qwen.served_as[0]", "no name for clients"),
    (*after(CONTEXT, "    served_as: [tiny]\n"), "layouts.replicas.tiny", "clients get qwen under the name"),
    (*after(CONTEXT, "    load_limit: 0\n"), "models.qwen.load_limit", "no time"),
    (*after(CONTEXT, "    weights_size: 71\n"), "models.qwen.weights_size", "did you mean 71GiB?"),
    (*after(CONTEXT, "    environment: {A-B: c}\n"), "models.qwen.environment.A-B", "letters, digits and _"),
    (*after(CONTEXT, "    environment: {HF_TOKEN: abc}\n"), "models.qwen.environment.HF_TOKEN", "does not belong"),
    (*after(CONTEXT, "    arguments: [--max-model-len, '8']\n"), "models.qwen.arguments[0]", "as context:"),
    (*after(CONTEXT, "    arguments: [--max_model_len=8]\n"), "models.qwen.arguments[0]", "as context:"),
    (*after(CONTEXT, "    arguments: [-tp, '2']\n"), "models.qwen.arguments[0]", "split: and parallel:"),
    (*after(CONTEXT, "    arguments: ['--dtype half']\n"), "models.qwen.arguments[0]", "two items"),
    # layouts
    ("  split:\n", "  before:\n", "layouts.before", "the state before fleetctl"),
    (QWEN_SPLIT, "qewn: {split: [spark1, spark2]", "layouts.split.qewn", "did you mean qwen?"),
    (QWEN_SPLIT, "qwen: {split: [spark1, spark3]", "layouts.split.qwen.split[1]", "did you mean spark1 or spark2?"),
    (QWEN_COPIES, "qwen: {copies: {sprak1: , spark2: }", "layouts.replicas.qwen.copies.sprak1", "did you mean spark1?"),
    (*after(QWEN_SPLIT, ", copies: [spark1]"), "layouts.split.qwen", "exactly one of copies:, split: and pool:"),
    (QWEN_SPLIT, "qwen: {split: {spark1: {concurrency: 3}, spark2: }", "layouts.split.qwen.split.spark1.concurrency",
     "the same on every box"),
    (QWEN_SPLIT, "qwen: {split: {spark1: {arguments: [-q]}, spark2: }", "layouts.split.qwen.split.spark1.arguments",
     "the same on every box"),
    (*after(QWEN_SPLIT, ", arguments: [--nnodes=2]"), "layouts.split.qwen.arguments[0]", "with the list of boxes"),
    (*after(QWEN_SPLIT, ", arguments: [--headless]"), "layouts.split.qwen.arguments[0]", "as split: of the placement"),
    (*after(QWEN_SPLIT, ", parallel: pipeline, arguments: [-pp, '2']"), "layouts.split.qwen.arguments[0]",
     "parallel:"),
    (*after(QWEN_SPLIT, ", port: 29500"), "layouts.split.qwen", "already that of the engine of qwen"),
    (*after(QWEN_SPLIT, ", port: 8080"), "layouts.split.qwen.port", "is that of the proxy"),
    (*after(QWEN_SPLIT, ", master_port: 8080"), "layouts.split.qwen.master_port", "is that of the proxy"),
    (*after(QWEN_SPLIT, ", port: 29501"), "layouts.split.qwen", "already that of the engine of qwen"),
    (TINY, "tiny: {copies: [spark2], port: 8000", "layouts.replicas.tiny.port", "already that of the engine of qwen"),
    (PROXY, "  box: spark1\n  port: 29501\n", "layouts.split.qwen", "is that of the proxy"),
    (f"{QWEN_COPIES}}}\n    {TINY}", f"{QWEN_COPIES}, port: 9000}}\n    {TINY}, port: 9000",
     "layouts.replicas.tiny.port", "port 9000 on spark2 is already that of the engine of qwen"),
    (TINY, "tiny: {copies: {spark2: {gpu_memory_utilization: 0.9}}", "layouts.replicas.tiny.copies.spark2."
     "gpu_memory_utilization", "0.9 of 100.0 GiB is 90.0 GiB, but 100.0 GiB - reserve 20.0 GiB = "
     "80.0 GiB; write at most 0.8"),
    (*after(TINY, ", arguments: [--max-num-seqs, '4']"), "layouts.replicas.tiny.concurrency", "write concurrency: 4"),
    # proxy, superseded, gates
    (PROXY, "  box: sparx1\n", "proxy.box", "did you mean spark1?"),
    (PROXY, "  port: 80\n", "proxy", "either box: or boxes:"),
    (PROXY, f"{PROXY}{BOTH}", "proxy", "either box: or boxes:"),
    (PROXY, BOTH, "proxy", "several boxes need one address for clients"),
    (PROXY, f"{PROXY}{FLOAT}", "proxy", "a floating address is for a proxy on several boxes"),
    (PROXY, f"  boxes: [spark1]\n{FLOAT}", "proxy", "two boxes or more"),
    (PROXY, f"  boxes: [spark1, spark1]\n{FLOAT}", "proxy.boxes[1]", "already in this list"),
    (PROXY, f"  boxes: [spark1, spark3]\n{FLOAT}", "proxy.boxes[1]", "there is no box"),
    (PROXY, f"{BOTH}  floating: {{address: 10.0.0.2}}\n", "proxy.floating.address", "is the address of spark2"),
    (PROXY, f"{BOTH}  floating: {{address: 10.0.0.50/24}}\n", "proxy.floating.address", "without the prefix length"),
    (PROXY, f"{BOTH}  floating: {{address: proxy.example}}\n", "proxy.floating.address", "is not an IP address"),
    (PROXY, f"{BOTH}  floating: {{address: 10.0.0.50, router_id: 0}}\n", "proxy.floating.router_id", "from 1 to 255"),
    (PROXY, f"{BOTH}{FLOAT}  address: 10.0.0.51\n", "proxy.address", "take this key out"),
    (PROXY, f"{BOTH}{FLOAT}  port: 29501\n", "layouts.split.qwen", "is that of the proxy"),
    (*after(PROXY, "  address: 'x:80'\n"), "proxy.address", "without scheme, port or path"),
    (*after(PROXY, "  hold: 60s\n  drain: 2m\n"), "proxy.drain", "longer than hold"),
    (*after(PROXY, "  check_interval: 0\n"), "proxy.check_interval", "too short"),
    (*after(PROXY, "  check_interval: 5m\n"), "proxy.check_interval", "more than a minute"),
    (*after(PROXY, "  check_interval: 90ms\n  fall: 1\n"), "proxy.fall", "a busy box misses one; write 2"),
    (*after(PROXY, "  check_interval: 10s\n  fall: 7\n"), "proxy.fall", "would get requests for 70 s"),
    (*after(PROXY, "  fall: 0\n"), "proxy.fall", "out of range; write a whole number from 1 to 10"),
    (*after(PROXY, "  rise: '1'\n"), "proxy.rise", "write 1 without quotes"),
    (*after(PROXY, "  retries: -1\n"), "proxy.retries", "from 0 to 10"),
    (*after(PROXY, "  timeout_connect: 50ms\n"), "proxy.timeout_connect", "a busy box needs longer"),
    (*after(PROXY, "  timeout_connect: 1m\n"), "proxy.timeout_connect", "would wait 60 s"),
    (*after(PROXY, "  timeout_http_keep_alive: 0\n"), "proxy.timeout_http_keep_alive", "connect anew"),
    (*after(PROXY, "  timeout_http_keep_alive: 2h\n"), "proxy.timeout_http_keep_alive", "nobody uses"),
    (*after(PROXY, "superseded: [fleetctl-x.service]\n"), "superseded[0]", "a unit of fleetctl itself"),
    (*after(PROXY, "superseded: [a.service, a.service]\n"), "superseded[1]", "already in superseded[0]"),
    (*after(PROXY, "superseded: [{unit: a.service, boxes: [spark9]}]\n"), "superseded[0].boxes[0]", "there is no box"),
    (*after(PROXY, f"superseded: [{'a' * 300}.service]\n"), "superseded[0]", "at most 255"),
    (*after(PROXY, "gates: {completion: {within: 0}}\n"), "gates.completion.within", "no time to answer"),
    (*after(PROXY, "gates: {completion: {prompt: ' '}}\n"), "gates.completion.prompt", "asks nothing"),
    (*after(PROXY, "gates: {tools: {models: [qwenn]}}\n"), "gates.tools.models[0]", "did you mean qwen?"),
    (*after(PROXY, "gates: {tools: {suite: tool-eval}}\n"), "gates.tools.suite", "did you mean tool-eval-bench?"),
    (*after(PROXY, "gates: {evaluations: [{at_least: 5}]}\n"), "gates.evaluations[0]", "file"),
    (*after(PROXY, "gates: {evaluations: {file: t.jsonl}}\n"), "gates.evaluations", "a list"),
    (*after(PROXY, "gates: {evaluations: [{file: t.jsonl, within: 0}]}\n"), "gates.evaluations[0].within", "no time"),
    (*after(PROXY, "gates: {evaluations: [{file: t.jsonl, models: [x]}]}\n"), "gates.evaluations[0].models[0]",
     "there is no model"),
    (*after(PROXY, "gates: {evaluations: [{file: t.jsonl, models: [qwen]}, {file: t.jsonl}]}\n"),
     "gates.evaluations[1].file", "twice for the same model"),
    # guard and keys
    (*after(PROXY, "guard:\n"), "guard", "write guard: {} for a guard"),
    (PROXY, PROXY + "  api_keys: {}\n", "proxy.api_keys", "would let everybody call"),
    # firewall
    (*after(PROXY, "firewall:\n"), "firewall", "write firewall: {} to close"),
    (*after(PROXY, "firewall: []\n"), "firewall", "this is a list; write {allow: …}"),
    (*after(PROXY, "firewall: {alow: []}\n"), "firewall.alow", "did you mean allow?"),
    (*after(PROXY, "firewall: {allow: 192.0.2.10}\n"), "firewall.allow", "write [192.0.2.10]"),
    (*after(PROXY, "firewall: {allow: [prom.office.example]}\n"), "firewall.allow[0]", "write its IP address"),
    (*after(PROXY, "firewall: {allow: [192.0.2.10, '10.0.0.1:80']}\n"), "firewall.allow[1]", "write an address, like"),
    (*after(PROXY, "firewall: {allow: [10.0.0.256]}\n"), "firewall.allow[0]", "write an address, like"),
    (*after(PROXY, "firewall: {allow: [10.0.5.7/24]}\n"), "firewall.allow[0]", "write 10.0.5.0/24 for all"),
    (*after(PROXY, "firewall: {allow: [10.0.5.0/33]}\n"), "firewall.allow[0]", "write an address, like"),
    (*after(PROXY, "firewall: {allow: [0.0.0.0/0]}\n"), "firewall.allow[0]", "that is everybody"),
    (*after(PROXY, "firewall: {allow: ['::/0']}\n"), "firewall.allow[0]", "that is everybody"),
    (*after(PROXY, "firewall: {allow: ['fe80::1%eth0']}\n"), "firewall.allow[0]", "nftables knows no eth0"),
    (*after(PROXY, "firewall: {allow: ['::ffff:10.1.1.1']}\n"), "firewall.allow[0]", "write 10.1.1.1"),
    (*after(PROXY, "firewall: {allow: [10.1.1.1, 10.1.1.1/32]}\n"), "firewall.allow[1]", "already in firewall"),
    ("boxes:\n  spark1: {address: 10.0.0.1", "firewall: {}\nboxes:\n  spark1: {address: spark1.lan",
     "boxes.spark1.address", "write the IP address of spark1"),
    ("boxes:\n  spark1: {", "firewall: {}\nboxes:\n  spark1: {ssh: {port: 29501}, ", "layouts.split.qwen",
     "port 29501 on spark1 is that of SSH"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "path", "part"), BROKEN, ids=[row[2] + ":" + row[3][:20] for row in BROKEN])
def test_a_broken_rule_is_told_once_at_its_place(old: str, new: str, path: str, part: str) -> None:
    ((told_path, message),) = found(old, new)
    assert told_path == path
    assert part in message


ALLOWED = [
    (CONTEXT, f"{CONTEXT}    loras: {{}}\n    arguments: [--seed, '1']\n"),
    (CONTEXT, f"{CONTEXT}    arguments: [--enable-lora, --lora-modules, a=/x]\n"),
    after(QWEN_SPLIT, ", parallel: pipeline, arguments: [-tp, '8']"),
    (PROXY, "  box: spark1\n  address: 10.9.9.9\n"),
    (PROXY, f"{BOTH}{FLOAT}"),
    (PROXY, f"{BOTH}{FLOAT}  address: 10.0.0.50\n"),
    (PROXY, f"{PROXY}  boxes:\n  floating:\n"),
    (PROXY, "  box: spark1\n  address: 0.0.0.0\n"),
    (PROXY, "  box: spark1\n  hold: 0\n  drain: 2m\n"),
    (PROXY, "  box: spark1\n  hold: 20s\n"),
    (PROXY, "  box: spark1\n  check_interval: 1s\n  fall: 1\n  rise: 10\n  retries: 0\n"),
    (PROXY, "  box: spark1\n  timeout_queue: 0\n  timeout_connect: 30s\n  timeout_http_keep_alive: 1h\n"),
    (PROXY, "  box: spark1\nsuperseded: [{unit: a.service, boxes: [spark1]}, {unit: a.service, boxes: [spark2]}]\n"),
    ("link: 10.1.0.1, ", ""),
    ("address: 10.0.0.2", "address: box-2.example.org"),
    ("address: 10.0.0.2", "address: 'fd00::2'"),
    ("link: 10.1.0.1", "link: 10.0.0.1"),
    ("reserve: 20GiB", "reserve: 0"),
    after(CONTEXT, "    environment: {HF_TOKEN: {env: T}, TOKENIZERS_PARALLELISM: 'false', TOKEN_FILE: /x}\n"),
    after(CONTEXT, "    arguments: [--enable-auto-tool-choice, '{\"a\": 1}', '--x={\"a\": 1}']\n"),
    after(CONTEXT, "    served_as: [org/qwen:4bit]\n"),
    (TINY, "tiny: {copies: {spark2: {gpu_memory_utilization: 0.8, arguments: [--max-num-seqs, '12']}}"),
    (TINY, "tiny: {copies: [spark2], port: 8080"),
    after(PROXY, "firewall: {}\n"),
    after(PROXY, "firewall: {allow: [192.0.2.10, 10.0.0.0/8, 10.0.5.0/24, 'fd00:5::/64', 10.9.0.0/255.255.0.0]}\n"),
]


@pytest.mark.parametrize(("old", "new"), ALLOWED, ids=lambda text: text[:50])
def test_what_is_right_is_let_through(old: str, new: str) -> None:
    assert found(old, new) == []


def test_two_engines_on_a_box_are_told_when_their_shares_together_are_too_much() -> None:
    share = "{gpu_memory_utilization: 0.5}"
    old = f"{QWEN_COPIES}}}\n    {TINY}"
    new = f"qwen: {{copies: {{spark1: , spark2: {share}}}}}\n    tiny: {{copies: {{spark2: {share}}}"
    ((_, message),) = found(old, new)
    assert message.startswith("0.5 + 0.5 = 1 of 100.0 GiB is 100.0 GiB")


def test_one_name_for_two_models_is_right_when_they_are_in_different_layouts() -> None:
    text = FILE.replace("    tiny: {copies: [spark2]}\n", "  small:\n    tiny: {copies: [spark2]}\n")
    text = text.replace("    launch: {image", "    served_as: [qwen]\n    launch: {image")
    assert parse_fleet(text, "fleet.yaml").models["tiny"].served_as == ("qwen",)


def test_boxes_that_share_an_address_have_ip_addresses_of_its_kind() -> None:
    named = FILE.replace("address: 10.0.0.2", "address: b.example").replace(PROXY, BOTH + FLOAT)
    with pytest.raises(FleetFileError) as caught:
        parse_fleet(named, "fleet.yaml")
    assert "VRRP between the proxy's boxes needs their IP addresses" in str(caught.value)


def test_a_gate_asks_no_model_that_answers_no_question() -> None:
    gates = "gates: {evaluations: [{file: t.jsonl, models: [qwen]}]}\nfleet: office\n"
    broken = FILE.replace("fleet: office\n", gates).replace(
        "    context: 8192\n", "    context: 8192\n    task: embed\n", 1
    )
    with pytest.raises(FleetFileError, match=r"evaluations\[0\]\.models\[0\]: qwen has task: embed and answers no"):
        parse_fleet(broken, "fleet.yaml")


def test_every_check_says_its_rule_in_its_docstring() -> None:
    for check in CHECKS:
        assert (inspect.getdoc(check) or "").splitlines()[0].endswith(".")
