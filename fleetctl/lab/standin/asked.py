"""What a completion request asks for: its fields checked, and refused in vLLM's words."""

import json
from dataclasses import dataclass
from typing import Any

from . import text
from .engine import Engine
from .errors import bad_request, invalid, unknown_model


@dataclass(frozen=True)
class Asked:
    """A checked completion request."""

    chat: bool
    model: str
    prompt: str
    prompt_tokens: int
    max_tokens: int
    natural: int
    stream: bool
    include_usage: bool
    fixed: str | None
    tool: tuple[str, str] | None


def want(body: dict[str, Any], name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    """A field of the body. Raises ApiError 400 when it has another type."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        wanted = kind.__name__ if isinstance(kind, type) else kind[0].__name__
        raise invalid(f"{wanted}_type", f"body.{name}", f"Input should be a valid {wanted}", value)
    return value


def check_messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The chat's messages. Raises ApiError 400."""
    if "messages" not in body:
        raise invalid("missing", "body.messages", "Field required", body)
    messages: list[dict[str, Any]] = want(body, "messages", list, [])
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise invalid("missing", f"body.messages.{index}.role", "Field required", message)
    if not messages:
        raise bad_request("messages must contain at least one message", "messages")
    return messages


def read_prompt(body: dict[str, Any]) -> tuple[str, int]:
    """The prompt of a plain completion and its tokens: a text, or a list of token numbers."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt and all(isinstance(item, int) for item in prompt):
        return json.dumps(prompt), len(prompt)
    if not isinstance(prompt, str) or not prompt:
        raise bad_request("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    return prompt, text.count_tokens(prompt)


def pick_tool(body: dict[str, Any], engine: Engine, messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The function to call, or None for plain text. Raises ApiError for a choice that cannot be met.

    A named or required tool is always called. With "auto" a tool is called when the last message is
    the user's and holds a word of the tool's name (`get_weather` for "how is the weather").
    """
    tools: list[dict[str, Any]] = [
        t["function"] for t in want(body, "tools", list, []) if isinstance(t, dict) and "function" in t
    ]
    choice = body.get("tool_choice", "auto" if tools else "none")
    if not tools or choice == "none":
        return None
    parser = engine.args.given.get("tool_call_parser")
    if choice == "auto":
        if not engine.args.auto_tool_choice:
            raise bad_request('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
        last = messages[-1]
        said = text.flatten(last.get("content")).lower() if last.get("role") == "user" else ""
        named = [t for t in tools if any(len(w) > 3 and w in said for w in t["name"].lower().split("_"))]
        return named[0] if named else None
    name = choice["function"]["name"] if isinstance(choice, dict) and "function" in choice else None
    if not parser:
        described = f'function "{name}"' if name else f'"{choice}"'
        raise bad_request(f"tool_choice={described} requires --tool-call-parser to be set")
    matching = [tool for tool in tools if name in (None, tool["name"])]
    if not matching:
        raise bad_request("The tool specified in `tool_choice` does not match any of the specified `tools`")
    return matching[0]


def read_request(body: dict[str, Any], engine: Engine, chat: bool, context: int) -> Asked:
    """Check a completion request against the engine. Raises ApiError with vLLM's words."""
    settings = engine.control.now()
    served = [*engine.args.served_model_name, *engine.adapters.loaded]
    model = want(body, "model", str, served[0])
    if model not in served:
        raise unknown_model(model, engine.args.served_model_name)
    if want(body, "n", int, 1) != 1:
        raise bad_request("the stand-in engine makes one answer per request", "n", body["n"])
    tool = fixed = None
    if chat:
        messages = check_messages(body)
        tool = pick_tool(body, engine, messages)
        prompt = text.render_chat(messages, want(body, "tools", list, []))
        prompt_tokens = text.count_tokens(prompt)
    else:
        prompt, prompt_tokens = read_prompt(body)
    length_name = "max_completion_tokens" if chat and body.get("max_completion_tokens") is not None else "max_tokens"
    limit = want(body, length_name, int, None if chat else 16)
    if limit is not None and limit < 1:
        raise bad_request(f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit)
    if limit is not None and limit > context:
        raise bad_request(
            f"{length_name}={limit} cannot be greater than max_model_len={context}. "
            "Please request fewer output tokens.",
            length_name,
            limit,
        )
    if prompt_tokens > context:
        raise bad_request(
            f"This model's maximum context length is {context} tokens. However, your prompt contains "
            f"{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt.",
            "input_tokens",
            prompt_tokens,
        )
    room = max(1, context - prompt_tokens)
    rng = text.seeded(model, prompt)
    natural = text.answer_length(rng, settings.answer_tokens)
    if want(body, "ignore_eos", bool, False):
        natural = context + 1
    natural = max(natural, want(body, "min_tokens", int, 0))
    call = None
    if tool:
        call = (tool["name"], json.dumps(text.example(tool.get("parameters") or {"type": "object"}, rng)))
        fixed = f'<tool_call>\n{{"name": {json.dumps(call[0])}, "arguments": {call[1]}}}\n</tool_call>'
        call = None if settings.tool_calls_as_text else call
    elif chat:
        fixed = formatted(body.get("response_format"), rng)
    if fixed is not None:
        natural = text.count_tokens(fixed)
    options = want(body, "stream_options", dict, {})
    return Asked(
        chat=chat,
        model=model,
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        max_tokens=min(room, limit if limit is not None else room),
        natural=natural,
        stream=want(body, "stream", bool, False),
        include_usage=bool(options.get("include_usage")),
        fixed=fixed,
        tool=call,
    )


def formatted(response_format: Any, rng: Any) -> str | None:
    """The JSON text that a `response_format` asks for, or None."""
    if not isinstance(response_format, dict):
        return None
    if response_format.get("type") == "json_object":
        return json.dumps({"answer": rng.choice(text.WORDS)})
    if response_format.get("type") == "json_schema":
        return json.dumps(text.example(response_format.get("json_schema", {}).get("schema"), rng))
    return None
