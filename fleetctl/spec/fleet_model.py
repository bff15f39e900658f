"""The part of fleet.yaml about models: what an engine serves and what it is started from."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fleetctl.spec.part import Count, Name, Part
from fleetctl.spec.secret import SecretRef
from fleetctl.spec.units import Duration, Size


class Venv(Part):
    """Launch from a Python environment on the box."""

    venv: str = Field(description="path on the box; the engine is started as VENV/bin/vllm")


class Container(Part):
    """Launch from a container image with host networking."""

    image: str = Field(description="image reference, best pinned by digest: name@sha256:…")
    engine: Literal["docker", "podman"] = Field(default="docker", description="program that runs the container")
    options: tuple[str, ...] = Field(default=(), description="further options of `run`, for example --gpus=all")


class Speculative(BaseModel):
    """Speculative decoding, handed to vLLM as --speculative-config; further keys pass through."""

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
    runtime: Literal["vllm"] = Field(default="vllm", description="kind of engine")
    launch: Venv | Container = Field(description="what the engine is started from: {venv: PATH} or {image: NAME}")
    arguments: tuple[str, ...] = Field(default=(), description="further arguments of the engine, one word each")
    environment: dict[str, str | SecretRef] = Field(
        default={}, description="environment of the engine; values may be secrets"
    )
    measured: dict[Name, Measured] = Field(
        default={}, description="box → what was measured there; plans use it in place of what they would compute"
    )
    load_limit: Duration = Field(default=900.0, description="longest time from start to ready")
    stop_limit: Duration = Field(default=60.0, description="longest time from SIGTERM to the end")
