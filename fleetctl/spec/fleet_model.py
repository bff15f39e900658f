"""The part of fleet.yaml about models: what an engine serves and what it is started from."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fleetctl.spec.part import Count, Name, Part, Rule
from fleetctl.spec.secret import SecretRef
from fleetctl.spec.units import Duration, Size

RuntimeName = Literal["vllm", "sglang", "llama.cpp", "text-embeddings-inference", "infinity", "encoder"]
Task = Literal["generate", "embed", "rerank"]


class Venv(Part):
    """Launch from a Python environment on the box."""

    venv: str = Field(description="path on the box; the engine is started as VENV/bin/vllm, or what `runtime:` has")


def _image_id(value: Any) -> Any:
    """Docker shows an ID with ``sha256:`` before it, Podman without."""
    return f"sha256:{value}" if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) else value


ImageId = Annotated[
    str,
    BeforeValidator(_image_id),
    Field(pattern=r"^sha256:[0-9a-f]{64}$"),
    Rule("the ID of an image is sha256: and 64 hex digits; `fleetctl images list` shows it"),
]


class Container(Part):
    """Launch from a container image with host networking."""

    image: str = Field(description="image reference, best pinned: name@sha256:…, or any name together with id:")
    id: ImageId | None = Field(
        default=None,
        description="ID of the image, which stays the same when it is copied from box to box: engines start from this "
        "image and no other; `fleetctl images list` shows it",
    )
    engine: Literal["docker", "podman"] = Field(default="docker", description="program that runs the container")
    gpus: Literal["nvidia", "amd", "intel", "none"] = Field(
        default="nvidia",
        description="whose GPUs the container gets, all of them; options that name devices themselves (--gpus, "
        "--device) stand in for it",
    )
    options: tuple[str, ...] = Field(default=(), description="further options of `run`, for example --cap-add=IPC_LOCK")


class Program(Part):
    """Launch a program that is not in a Python environment: llama-server, text-embeddings-router."""

    program: str = Field(description="path of the program on the box")


class Build(Part):
    """Launch from one of the builds that stand under `builds:`."""

    build: Name = Field(description="name of the build")


Start = Venv | Container | Program
"""What an engine is started from."""


class Speculative(BaseModel):
    """Speculative decoding (vLLM: --speculative-config, to which further keys pass through; SGLang: its flags)."""

    model_config = ConfigDict(extra="allow", frozen=True)

    method: str = Field(description="method, as vLLM names it: mtp, eagle3, ngram, …")
    num_speculative_tokens: Count = Field(description="tokens drafted at a time")


class Measured(Part):
    """What an engine of a model logged of its memory on a box, of one rank; `fleetctl capacity calibrate` writes it."""

    weights: Size = Field(description="what loading the model took")
    overhead: Size = Field(description="what it took beyond weights and cache")
    peak: Size | None = Field(default=None, description="the peak of activations in that, where the log says")
    startup: Size | None = Field(
        default=None,
        description="the most of the box's memory that it took at one time while it started with a small cache",
    )
    ranks: Count = Field(default=1, description="boxes that the engine was divided over")
    batched_tokens: Count = Field(default=8192, description="--max-num-batched-tokens that it ran with")
    at: str = Field(description="the day")


MaxLoraRank = Literal[1, 8, 16, 32, 64, 128, 256, 320, 512]
"""What vLLM takes for --max-lora-rank."""


class Loras(Part):
    """A model that takes LoRA adapters at run time: `fleetctl lora push` brings them, with no word of them here."""

    max_loras: Count = Field(
        default=8, description="adapters that one batch may use (--max-loras); each takes memory all the time"
    )
    max_lora_rank: MaxLoraRank = Field(default=16, description="highest rank of an adapter (--max-lora-rank)")
    max_cpu_loras: Count | None = Field(
        default=None,
        description="adapters kept in the memory of the box (--max-cpu-loras); further ones are read from the disk "
        "when they are asked for; default: as many as max_loras",
    )

    @model_validator(mode="after")
    def _enough(self) -> Loras:
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise ValueError(f"max_cpu_loras has to be at least max_loras, which is {self.max_loras}")
        return self


class Model(Part):
    """A model the fleet can serve."""

    weights: str = Field(description="path of a folder on the boxes, or a hub id such as org/name")
    revision: str | None = Field(default=None, description="revision of a hub id")
    weights_size: Size | None = Field(
        default=None, description="bytes in memory; default: the size of the weights folder"
    )
    served_as: tuple[str, ...] = Field(default=(), description="names clients use; default: the model's key")
    context: Count = Field(description="longest request in tokens (--max-model-len)")
    kv_cache_dtype: str | None = Field(default=None, description="--kv-cache-dtype, for example fp8")
    speculative: Speculative | None = Field(default=None, description="speculative decoding (--speculative-config)")
    loras: Loras | None = Field(
        default=None, description="it takes LoRA adapters, pushed while it serves; `{}` for the defaults; default: none"
    )
    runtime: RuntimeName = Field(default="vllm", description="kind of engine; docs/engines.md says what each can do")
    task: Task | None = Field(
        default=None,
        description="what the engine does, and is asked to prove; default: generate, of encoders' servers embed",
    )
    launch: Start | Build = Field(
        description="what the engine is started from: {venv: PATH}, {image: NAME}, {program: PATH} or {build: NAME}"
    )
    arguments: tuple[str, ...] = Field(default=(), description="further arguments of the engine, one word each")
    environment: dict[str, str | SecretRef] = Field(
        default={}, description="environment of the engine; values may be secrets"
    )
    measured: dict[Name, Measured] = Field(
        default={}, description="box → what was measured there; plans use it in place of what they would compute"
    )
    load_limit: Duration = Field(default=900.0, description="longest time from start to ready")
    stop_limit: Duration = Field(default=60.0, description="longest time from SIGTERM to the end")
