"""Settings and faults: defaults, environment, and a control file that is read again when it changes."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

DEFAULT_CONTROL = Path("/etc/standin.json")
Curve = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Settings:
    """One consistent set of values; the package docstring says what each does."""

    load_seconds: float = 5.0
    slow_start: float = 0.0
    stop_seconds: float = 0.0
    memory_bytes: int = 64 * 2**20
    weights_bytes: int = 71 * 2**30
    cache_bytes: int = 13 * 2**30
    cache_tokens: int = 760_000
    max_model_len: int = 262_144
    curve: Curve = ((1, 36), (4, 82), (8, 109), (16, 150))
    long_curve: Curve = ((1, 36), (4, 81), (8, 113), (16, 87))
    long_prompt_tokens: int = 2000
    batched_curve: Curve = ()
    prefill_seconds_per_token: float = 9.6 / 16_900
    speed: float = 1.0
    answer_tokens: int = 64
    spec_acceptance: float = 0.7
    rendezvous_timeout: float = 600.0
    engine_ready_timeout: float = field(
        default_factory=lambda: float(os.environ.get("VLLM_ENGINE_READY_TIMEOUT_S", "600"))
    )
    on_mismatch: str = "hang"
    on_head_lost: str = "loop"
    orphans: bool = False
    health_lies: bool = False
    hang: bool = False
    starved: bool = False
    die_at_first_request: bool = False
    die_at_request: int = 0
    exit_during_load: float | None = None
    never_ready: bool = False
    error_500: bool = False
    dead_engine: int = 0
    zero_exit: bool = False
    tool_calls_as_text: bool = False
    lora_fails: bool = False


NAMES = {item.name for item in fields(Settings)}


def converted(name: str, value: Any) -> Any:
    """`value` in the type that the setting has. Raises ValueError naming the setting."""
    default = getattr(Settings(), name)
    try:
        if name in ("curve", "long_curve", "batched_curve"):
            return tuple((float(running), float(rate)) for running, rate in value)
        if name == "dead_engine":
            return 503 if value is True else int(value)
        if name == "exit_during_load":
            return None if value is None or value is False else float(value)
        if isinstance(default, bool):
            return bool(value)
        return type(default)(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"stand-in setting {name}: {value!r} does not fit: {error}") from error


def from_mapping(base: Settings, values: Mapping[str, Any]) -> Settings:
    """`base` with `values` laid over it. Raises ValueError for a setting that does not exist."""
    unknown = sorted(set(values) - NAMES)
    if unknown:
        raise ValueError(f"stand-in settings that do not exist: {', '.join(unknown)}")
    return replace(base, **{name: converted(name, value) for name, value in values.items()})


def from_environment(environ: Mapping[str, str]) -> Settings:
    """Defaults overlaid with STANDIN_* variables; each value is JSON, or else a plain text."""
    values: dict[str, Any] = {}
    for name in NAMES:
        text = environ.get("STANDIN_" + name.upper())
        if text is not None:
            try:
                values[name] = json.loads(text)
            except json.JSONDecodeError:
                values[name] = text
    return from_mapping(Settings(), values)


class Control:
    """The settings as they are now for one rank."""

    def __init__(self, rank: int = 0, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self.rank = rank
        self.path = Path(environ.get("STANDIN_CONTROL") or DEFAULT_CONTROL)
        self.base = from_environment(environ)
        self.current = self.base
        self.stamp: tuple[int, int, int] | None = None

    def now(self) -> Settings:
        """Current settings. A broken control file is reported on stderr and the last good values stay."""
        try:
            status = self.path.stat()
        except OSError:
            self.stamp, self.current = None, self.base
            return self.current
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if stamp != self.stamp:
            self.stamp = stamp
            try:
                self.current = self.read()
            except (OSError, ValueError) as error:
                print(f"stand-in: {self.path}: {error}", file=sys.stderr, flush=True)
        return self.current

    def read(self) -> Settings:
        """Settings with the control file laid over the environment's."""
        content = json.loads(self.path.read_text())
        if not isinstance(content, dict):
            raise ValueError("the control file must hold one JSON object")
        own = content.pop("ranks", {}).get(str(self.rank), {})
        return from_mapping(self.base, {**content, **own})
