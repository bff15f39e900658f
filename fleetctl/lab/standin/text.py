"""Made-up text: token counts, seeded answers, embeddings and values that fit a JSON Schema."""

import hashlib
import json
import math
import random
import re
from collections.abc import Iterator
from typing import Any

BYTES_PER_TOKEN = 4
VOCABULARY = (
    "the engine answers with words that mean nothing yet always follow one seed so two probes of a single "
    "prompt can be compared box by load light green stone river market seven clear early paper winter table "
    "small open round bridge number letter morning window garden story water silver north field quiet hand"
)
WORDS = VOCABULARY.split()


def count_tokens(text: str) -> int:
    """Tokens of `text`: four bytes each, at least one."""
    return max(1, math.ceil(len(text.encode()) / BYTES_PER_TOKEN))


def token_ids(text: str) -> list[int]:
    """One number per token, the same for the same four bytes."""
    data = text.encode()
    step = BYTES_PER_TOKEN
    return [int.from_bytes(data[at : at + step], "big") % 32_000 for at in range(0, len(data), step)]


def flatten(content: Any) -> str:
    """The text of a message's content: a string, or a list of parts (an image counts as 256 tokens)."""
    if isinstance(content, list):
        return "\n".join(
            part.get("text", "") if part.get("type") == "text" else "#" * 256 * BYTES_PER_TOKEN
            for part in content
            if isinstance(part, dict)
        )
    return content if isinstance(content, str) else ""


def render_chat(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
    """The prompt that a chat becomes."""
    head = f"<|tools|>{json.dumps(tools, sort_keys=True)}\n" if tools else ""
    lines = [f"<|{message.get('role')}|>{flatten(message.get('content'))}\n" for message in messages]
    return head + "".join(lines) + "<|assistant|>"


def seeded(*parts: object) -> random.Random:
    """A generator that depends on `parts` alone, on every machine."""
    digest = hashlib.sha256("\0".join(str(part) for part in parts).encode()).digest()
    return random.Random(digest)


def answer_length(rng: random.Random, middle: int) -> int:
    """Tokens after which the answer ends by itself: half to one and a half times `middle`."""
    return max(1, rng.randint(middle // 2, middle + middle // 2))


def words(rng: random.Random) -> Iterator[str]:
    """Endless tokens: each a word, with a space before all but the first."""
    yield rng.choice(WORDS)
    while True:
        yield " " + rng.choice(WORDS)


def likeness(query: str, document: str) -> float:
    """Share of a query's words that a document has."""
    asked, there = (set(re.findall(r"\w+", text.lower())) for text in (query, document))
    return len(asked & there) / max(1, len(asked))


def embedding(model: str, text: str, size: int = 64) -> list[float]:
    """A unit vector that depends on model and text."""
    rng = seeded("embedding", model, text)
    values = [rng.uniform(-1, 1) for _ in range(size)]
    norm = math.sqrt(sum(value * value for value in values))
    return [value / norm for value in values]


def example(schema: Any, rng: random.Random, root: Any = None) -> Any:
    """A value that fits a JSON Schema: enum, const, anyOf, $ref to $defs, and the plain types."""
    if not isinstance(schema, dict):
        return {}
    root = schema if root is None else root
    if "$ref" in schema:
        target = root
        for part in str(schema["$ref"]).lstrip("#/").split("/"):
            target = target.get(part, {})
        return example(target, rng, root)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return rng.choice(schema["enum"])
    for union in ("anyOf", "oneOf", "allOf"):
        if schema.get(union):
            return example(schema[union][0], rng, root)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    return of_type(kind[0] if isinstance(kind, list) else kind, schema, rng, root)


def of_type(kind: str, schema: dict[str, Any], rng: random.Random, root: Any) -> Any:
    """A value of one plain JSON type, within the bounds that the schema sets."""
    if kind == "object":
        properties = schema.get("properties", {})
        wanted = schema.get("required") or list(properties)
        return {name: example(properties.get(name, {"type": "string"}), rng, root) for name in wanted}
    if kind == "array":
        return [example(schema.get("items", {}), rng, root) for _ in range(max(1, schema.get("minItems", 1)))]
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + ("exclusiveMinimum" in schema))
        high = schema.get("maximum", low + 10)
        return rng.randint(math.ceil(low), max(math.ceil(low), math.floor(high)))
    text = rng.choice(WORDS).ljust(schema.get("minLength", 0), "x")
    return text[: schema.get("maxLength", len(text))]
