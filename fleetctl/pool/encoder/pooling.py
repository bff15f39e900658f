"""From one vector per token to one per text, as the Pooling and Normalize of sentence-transformers have it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetctl.pool.encoder.recipe import Pooling

if TYPE_CHECKING:
    from numpy.typing import NDArray


def pool(hidden: NDArray[Any], mask: NDArray[Any], how: Pooling) -> NDArray[Any]:
    """[texts, tokens, width] and [texts, tokens] of 1 (a token) and 0 (padding) to [texts, width]."""
    import numpy as np

    if how == "cls":
        return np.ascontiguousarray(hidden[:, 0])
    if how == "max":
        return np.where(mask[:, :, None] == 1, hidden, np.float32(-1e9)).max(axis=1)
    total = np.matmul(mask[:, None, :].astype(np.float32), hidden)[:, 0]
    count = np.maximum(mask.sum(axis=1, keepdims=True), 1).astype(np.float32)
    return total / (np.sqrt(count) if how == "mean_sqrt_len_tokens" else count)


def normalised(vectors: NDArray[Any]) -> NDArray[Any]:
    """Each vector divided by its length."""
    import numpy as np

    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    return vectors / np.maximum(lengths, 1e-12)[:, None]


def shortened(vectors: NDArray[Any], size: int, normalise: bool) -> NDArray[Any]:
    """The first ``size`` numbers of each (Matryoshka), again of length 1 where the whole ones are."""
    import numpy as np

    short = np.ascontiguousarray(vectors[:, :size])
    return normalised(short) if normalise else short
