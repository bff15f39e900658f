"""A model on the Hugging Face hub: config.json, and the headers of its files through HTTP ranges. No weights.

huggingface_hub does the asking, so HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE mean what they mean everywhere.
Where the hub is out of reach, what an earlier download left in its cache is used.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    NotASafetensorsRepoError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    SafetensorsParsingError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars

from fleetctl.capacity.headers import of_metadata
from fleetctl.checkpoint.source import CONFIG, Checkpoint, Folder, read_files
from fleetctl.errors import SpecError

# What the library's own HTTP client raises; which client that is depends on its version.
_HttpError: type[Exception] = HfHubHTTPError.__bases__[0]
_PATIENCE = 20.0
"""Seconds that the hub may take for its first answer."""


def read_hub(model: str) -> Checkpoint:
    """Read a model by its id. Raises SpecError, with what to do, where that fails."""
    disable_progress_bars()
    where = f"hub: {model}"
    try:
        # Asked first because it is asked once: a download tries a hub that is out of reach for half a minute.
        HfApi().model_info(model, timeout=_PATIENCE)
        config = Path(hf_hub_download(model, CONFIG)).read_bytes()
        metadata = HfApi().get_safetensors_metadata(model)
    except NotASafetensorsRepoError:
        return Checkpoint(where, config, [])
    except HFValidationError:
        raise SpecError(
            f"{model}: neither a folder nor an id of the hub", hint="an id looks like Qwen/Qwen2.5-32B-Instruct"
        ) from None
    except GatedRepoError:
        raise SpecError(
            f"{model}: its publisher asks for consent", hint="agree on its page, and set HF_TOKEN to a token of yours"
        ) from None
    except RepositoryNotFoundError:
        raise SpecError(
            f"{model}: no such folder, and the hub knows no such model",
            hint="check the spelling; for a private one set HF_TOKEN",
        ) from None
    except SafetensorsParsingError as error:
        raise SpecError(f"{model}: damaged weights on the hub: {error}") from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        return _cached(model, error)
    except EntryNotFoundError:
        raise SpecError(f"{model}: no {CONFIG} in it", hint="is it a language model?") from None
    except HfHubHTTPError as error:
        said = str(error).strip().splitlines()[0]
        raise SpecError(f"{model}: the hub says: {said}", hint="try again later, or name a local folder") from None
    except (_HttpError, OSError) as error:
        return _cached(model, error)
    shapes = [
        (name, info.dtype, info.shape) for one in metadata.files_metadata.values() for name, info in one.tensors.items()
    ]
    return Checkpoint(where, config, of_metadata(shapes, model))


def _cached(model: str, error: Exception) -> Checkpoint:
    """The model as an earlier download left it. SpecError where there is none."""
    cached = try_to_load_from_cache(model, CONFIG)
    if not isinstance(cached, str):
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SpecError(
            f"{model}: no such folder, and the hub is out of reach: {reason[:200]}",
            hint="name a folder with the model, set HF_ENDPOINT to a mirror, or give the weights' size with --weights"
            " and a config.json as MODEL",
        ) from None
    return read_files(Folder(Path(cached).parent))
