"""Fetching a model from the hub onto this machine, with huggingface_hub: the same files that an engine would fetch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fleetctl.errors import SpecError

BESIDE = ["*.json", "*.txt", "*.model", "*.jinja", "*.py", "*.tiktoken"]
ENDS = (".safetensors", ".gguf", ".bin", ".pt")
LEFT_OUT = ["original/*", "consolidated*", "*.onnx"]


def fetch_model(repo: str, revision: str | None, env: Mapping[str, str]) -> Path:
    """The folder of the revision in this machine's own cache. What is there already is not fetched again.

    Of ``env`` HF_ENDPOINT (a mirror) and HF_TOKEN count, where this machine's own environment says nothing else.
    Raises SpecError, with what to do, where it fails.
    """
    import os

    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    endpoint = os.environ.get("HF_ENDPOINT") or env.get("HF_ENDPOINT")
    token = env.get("HF_TOKEN") or None
    http_error: type[Exception] = HfHubHTTPError.__bases__[0]
    try:
        info = HfApi(endpoint=endpoint, token=token).model_info(repo, revision=revision)
        names = [one.rfilename for one in info.siblings or ()]
        end = next((end for end in ENDS if any(name.endswith(end) for name in names)), "")
        return Path(
            snapshot_download(
                repo,
                revision=revision,
                endpoint=endpoint,
                token=token,
                allow_patterns=[*BESIDE, f"*{end}"],
                ignore_patterns=LEFT_OUT,
            )
        )
    except HFValidationError:
        raise SpecError(f"{repo} is no id of the hub", hint="an id looks like Qwen/Qwen2.5-32B-Instruct") from None
    except GatedRepoError:
        raise SpecError(
            f"{repo}: its publisher asks for consent",
            hint="agree on its page, and give the model environment: {HF_TOKEN: {file: PATH}} with a token of yours",
        ) from None
    except RevisionNotFoundError:
        raise SpecError(
            f"{repo}: the hub knows no revision {revision}", hint="correct revision: of the model"
        ) from None
    except RepositoryNotFoundError:
        raise SpecError(
            f"{repo}: the hub knows no such model, or it is private",
            hint="check the spelling; for a private one give the model environment: {HF_TOKEN: {file: PATH}}",
        ) from None
    except (HfHubHTTPError, http_error, OSError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SpecError(
            f"{repo} cannot be fetched: {said[:300]}",
            hint="set HF_ENDPOINT to a mirror that this machine reaches, or name a folder: --from FOLDER",
        ) from None
