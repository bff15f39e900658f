"""The name of the model in a request for the bridge is replaced by Lua inside HAProxy, and nothing else is."""

from __future__ import annotations

import json
import os
import random
import shutil
import string
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")

RENAME = Path(__file__).parents[2] / "haproxy" / "rename.lua"
NAME = '"org/a \\"small\\" one"'
# HAProxy runs what it loads when it checks a configuration: its own Lua, without a proxy.
SCRIPT = """
local folder = os.getenv("CASES")
for number = 1, tonumber(os.getenv("COUNT")) do
    local source = io.open(folder .. "/" .. number .. ".body", "rb")
    local result = renamed(source:read("a"), os.getenv("NAME"))
    source:close()
    if result ~= nil then
        local target = io.open(folder .. "/" .. number .. ".out", "wb")
        target:write(result)
        target:close()
    end
end
"""


def renamed(bodies: list[bytes], folder: Path) -> list[bytes | None]:
    """What becomes of each body; None where it is no JSON object."""
    for number, body in enumerate(bodies, 1):
        (folder / f"{number}.body").write_bytes(body)
    (folder / "cases.lua").write_text(SCRIPT)
    (folder / "haproxy.cfg").write_text(
        f"global\n  lua-load {RENAME}\n  lua-load {folder}/cases.lua\n"
        "defaults\n  mode http\n  timeout client 1s\nfrontend f\n  bind 127.0.0.1:1\n"
    )
    done = subprocess.run(
        ["haproxy", "-c", "-f", str(folder / "haproxy.cfg")],
        env={**os.environ, "CASES": str(folder), "COUNT": str(len(bodies)), "NAME": NAME},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "lua" not in done.stderr.lower(), done.stderr
    outs = [folder / f"{number}.out" for number in range(1, len(bodies) + 1)]
    return [out.read_bytes() if out.exists() else None for out in outs]


CASES = {
    "the name alone": ('{"model":"qwen"}', f'{{"model":{NAME}}}'),
    "white space stays": (' {\n "model" : "qwen" ,\t"a": 1 }\r\n', f' {{\n "model" : {NAME} ,\t"a": 1 }}\r\n'),
    "in the end": ('{"a": [1, 2], "model": "q"}', f'{{"a": [1, 2], "model": {NAME}}}'),
    "a name with escapes": (r'{"model": "a\"b\\", "x": 1}', f'{{"model": {NAME}, "x": 1}}'),
    "a name that is no text": ('{"model": null, "n": 1}', f'{{"model": {NAME}, "n": 1}}'),
    "a name that is an object": ('{"model": {"model": "}"}, "n": 1}', f'{{"model": {NAME}, "n": 1}}'),
    "below the top": (
        '{"tools": [{"model": "x"}], "model": "q", "meta": {"model": "y"}}',
        f'{{"tools": [{{"model": "x"}}], "model": {NAME}, "meta": {{"model": "y"}}}}',
    ),
    "in a text": (
        r'{"prompt": "say \"model\": \"x\", {[", "model": "q"}',
        rf'{{"prompt": "say \"model\": \"x\", {{[", "model": {NAME}}}',
    ),
    "as a value": ('{"stop": "model", "model": "q"}', f'{{"stop": "model", "model": {NAME}}}'),
    "twice": ('{"model": "a", "b": 1, "model": "c"}', f'{{"model": {NAME}, "b": 1, "model": {NAME}}}'),
    "a key with escapes": (r'{"model": "a", "mod\u0065l": "c"}', rf'{{"model": {NAME}, "mod\u0065l": {NAME}}}'),
    "a key with escapes alone": (r'{"\u006Dodel": "c"}', rf'{{"\u006Dodel": {NAME}}}'),
    "a key that only looks like it": (r'{"\\u006dodel": "c"}', rf'{{"model": {NAME}, "\\u006dodel": "c"}}'),
    "in capitals": ('{"Model": "a", "model": "b"}', f'{{"Model": {NAME}, "model": {NAME}}}'),
    "in capitals alone": ('{"MODEL": "a"}', f'{{"model": {NAME}, "MODEL": {NAME}}}'),
    "no name": ('{"messages": []}', f'{{"model": {NAME}, "messages": []}}'),
    "nothing": ("{ }", f'{{"model": {NAME} }}'),
    "other letters": ('{"prompt": "größer 日本", "model": "ü"}', f'{{"prompt": "größer 日本", "model": {NAME}}}'),
    "numbers and words": (
        '{"t": -1.5e+3, "a": true, "b": [[], {}], "model": "q", "c": false}',
        f'{{"t": -1.5e+3, "a": true, "b": [[], {{}}], "model": {NAME}, "c": false}}',
    ),
}  # fmt: skip
NOT_AN_OBJECT = [
    "", "   ", "[]", '"model"', "null", "{", '{"model"', '{"model":', '{"model": "q"', '{"model": "q",', '{"model": "q',
    '{"model": "q"} x', '{"model": "q"}{"model": "x"}', "{'model': 'q'}", '{model: "q"}', '{"model" "q"}',
    '{"a": 1 "model": "q"}', '{"a": [1, "model": "q"}', '{"a": "\\"}', '{"a": }', '{"a": "b\\', '{,"model": "q"}',
    '{"a": 1,}', '// {"model": "q"}', '{/* */"model": "q"}',
]  # fmt: skip


def test_only_the_outermost_model_gets_another_name(tmp_path: Path) -> None:
    results = renamed([body.encode() for body, _ in CASES.values()], tmp_path)
    for (title, (_, expected)), result in zip(CASES.items(), results, strict=True):
        assert result is not None and result.decode() == expected, title
        assert json.loads(result)["model"] == json.loads(NAME) or title == "a key with escapes", title


def test_what_is_no_json_object_is_left_alone(tmp_path: Path) -> None:
    results = renamed([body.encode() for body in NOT_AN_OBJECT], tmp_path)
    assert [body for body, result in zip(NOT_AN_OBJECT, results, strict=True) if result is not None] == []


def test_any_object_keeps_all_but_its_model(tmp_path: Path) -> None:
    dice = random.Random(7)

    def value(depth: int) -> Any:
        kind = dice.randrange(7 if depth else 5)
        if kind == 0:
            return dice.choice([None, True, False, 0, -1.5e-7, 12345678901234567890])
        if kind < 5:
            return "".join(dice.choice(string.printable + 'ü日"\\{}[]:,') for _ in range(dice.randrange(12)))
        if kind == 5:
            return [value(depth - 1) for _ in range(dice.randrange(4))]
        return {key(): value(depth - 1) for _ in range(dice.randrange(4))}

    def key() -> str:
        return dice.choice(["model", "models", "role", "{", '"', "\\", "a:b", "messages"])

    given = [{**{key(): value(3) for _ in range(5)}, "n": number} for number in range(200)]
    bodies = [json.dumps(one, ensure_ascii=dice.random() < 0.5, indent=dice.choice([None, 1])) for one in given]
    results = renamed([body.encode() for body in bodies], tmp_path)
    for one, result in zip(given, results, strict=True):
        assert result is not None and json.loads(result) == {**one, "model": json.loads(NAME)}


def test_a_long_request_takes_no_time_to_speak_of(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": 'a "quoted" word\n' * 4} for _ in range(9000)]
    body = json.dumps({"messages": messages, "model": "q"}).encode()
    assert len(body) > 900_000
    (result,) = renamed([body], tmp_path)
    assert result is not None and json.loads(result) == {"messages": messages, "model": json.loads(NAME)}
