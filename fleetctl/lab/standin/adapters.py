"""LoRA adapters of the stand-in: what vLLM 0.32 loads and refuses, in its words. No weights are read, only headers."""

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path

from .errors import ApiError

MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head", "embed_tokens"]
DEFAULT_RANK = 16


class BadAdapterError(Exception):
    """The engine core cannot load it; vLLM's words."""


class NoAdapterError(BadAdapterError):
    """There is none at that path."""


@dataclass
class Adapters:
    """The adapters of one engine: name → path, in the order in which they were loaded."""

    base: list[str]
    enabled: bool
    max_rank: int
    loaded: dict[str, str] = field(default_factory=dict)

    def load(self, name: str, path: str, in_place: bool = False) -> str:
        """Load one and say so. Raises ApiError as POST /v1/load_lora_adapter does."""
        if not name or not path:
            raise wrong("Both 'lora_name' and 'lora_path' must be provided.")
        if name in self.base:
            raise wrong(f"The lora adapter '{name}' conflicts with a served base model.")
        if name in self.loaded and not in_place:
            raise wrong(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, "
                "set 'load_inplace' to True."
            )
        try:
            self.read(name, path)
        except NoAdapterError as error:
            raise ApiError(404, str(error), "NotFoundError") from error
        except BadAdapterError as error:
            raise failed(str(error).replace(path, "<path>")) from error
        self.loaded[name] = path
        return f"Success: LoRA adapter '{name}' added successfully."

    def unload(self, name: str) -> str:
        """Forget one and say so. Raises ApiError as POST /v1/unload_lora_adapter does."""
        if not name:
            raise wrong("'lora_name' needs to be provided to unload a LoRA adapter.")
        if name not in self.loaded:
            raise ApiError(404, f"The lora adapter '{name}' cannot be found.", "NotFoundError")
        del self.loaded[name]
        return f"Success: LoRA adapter '{name}' removed successfully."

    def read(self, name: str, path: str) -> None:
        """Raise BadAdapterError where the engine core would not load it."""
        if not self.enabled:
            raise BadAdapterError("LoRA is not enabled. Use --enable-lora to enable LoRA.")
        try:
            config = json.loads((Path(path) / "adapter_config.json").read_bytes())
        except FileNotFoundError:
            raise NoAdapterError(f"Loading lora {name} failed: No adapter found for <path>") from None
        except ValueError as error:
            raise BadAdapterError(str(error)) from None
        missing = {"r", "lora_alpha", "target_modules"} - set(config)
        if missing:
            raise BadAdapterError(f"Missing required configuration fields: {missing}")
        rank = max([config["r"], *(config.get("rank_pattern") or {}).values()])
        faults = ["vLLM does not yet support DoRA."] if config.get("use_dora") else []
        if rank > self.max_rank:
            faults.append(f"LoRA rank {rank} is greater than max_lora_rank {self.max_rank}.")
        if config.get("bias", "none") != "none":
            faults.append("Adapter bias is not supported.")
        if faults:
            raise BadAdapterError(" ".join(faults))
        read_weights(path)


def failed(reason: str) -> ApiError:
    """500 for what the engine core could not load."""
    told = f"Worker failed with error '{reason}', please check the stack trace above for the root cause"
    return ApiError(500, f"Call to add_lora method failed: {told}", "InternalServerError")


def wrong(message: str) -> ApiError:
    """400 for what the caller got wrong."""
    return ApiError(400, message, "InvalidUserInput")


def read_weights(path: str) -> None:
    """Raise BadAdapterError for weights that are missing, damaged or of other modules."""
    file = Path(path) / "adapter_model.safetensors"
    if not file.is_file():
        raise BadAdapterError(f"{path} doesn't contain tensors")
    size = file.stat().st_size
    with file.open("rb") as source:
        start = source.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        text = source.read(length) if length <= size else b""
    try:
        tensors = {name: tensor for name, tensor in json.loads(text).items() if name != "__metadata__"}
        end = 8 + length + max(tensor["data_offsets"][1] for tensor in tensors.values())
    except (ValueError, LookupError, TypeError, AttributeError):
        raise BadAdapterError("Error while deserializing header: header too large") from None
    if end != size:
        raise BadAdapterError("Error while deserializing header: incomplete metadata, file not fully covered")
    modules = [name.partition(".lora_")[0].removeprefix("base_model.model.") for name in tensors]
    unexpected = [module for module in modules if module.rpartition(".")[2] not in MODULES]
    if unexpected:
        raise BadAdapterError(
            f"While loading {path}, expected target modules in {set(MODULES)} but received {unexpected}. "
            "Please verify that the loaded LoRA module is correct"
        )
