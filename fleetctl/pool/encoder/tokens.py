"""Text to token numbers, with the tokenizer.json of the model.

The file's own settings of padding and truncation are switched off: it is this server that pads its batches, and a text
that is too long is refused or cut as the request asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fleetctl.pool.encoder.errors import ModelError, RequestError

MOST_CHARACTERS = 1 << 20
"""Longest text that is looked at, so that one request cannot take the memory of the box."""


class Tokens:
    """A model's tokenizer. Safe in several threads."""

    def __init__(self, folder: Path, lower_case: bool) -> None:
        from tokenizers import Tokenizer  # of the optional extra

        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{folder} has no tokenizer.json", hint="save the model with its fast tokenizer")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises Exception itself
            raise ModelError(f"{path} cannot be read: {error}", hint="fetch the model again") from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._lower_case = lower_case
        self.special = int(self._tokenizer.num_special_tokens_to_add(False))
        """Tokens that are put around each text."""
        self.size = int(self._tokenizer.get_vocab_size(with_added_tokens=True))
        """How many different tokens there are."""

    def read(self, texts: Sequence[str], cut: int | None) -> list[list[int]]:
        """The tokens of each text, special ones included. ``cut``: at most so many, the end of the text goes."""
        for text in texts:
            if len(text) > MOST_CHARACTERS:
                told = f"an input has {len(text)} characters, {MOST_CHARACTERS} are the most"
                raise RequestError(told, parameter="input")
        if self._lower_case:
            texts = [text.lower() for text in texts]
        found = [one.ids for one in self._tokenizer.encode_batch_fast(list(texts))]
        if cut is None:
            return found
        return [ids if len(ids) <= cut else self._cut(text, cut) for text, ids in zip(texts, found, strict=True)]

    def _cut(self, text: str, most: int) -> list[int]:
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        encoded.truncate(most - self.special)
        return list(self._tokenizer.post_process(encoded).ids)
