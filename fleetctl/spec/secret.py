"""Secrets by reference: fleet.yaml says where a secret is, never what it is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fleetctl.errors import SpecError


class Secret(BaseModel):
    """One of ``{env: NAME}``, ``{file: PATH}`` or ``{command: [argv…]}``, read on the operator's machine."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra={
            "oneOf": [
                {"required": [source], "properties": {source: {"not": {"type": "null"}, "minLength": 1, "minItems": 1}}}
                for source in ("env", "file", "command")
            ]
        },
    )

    env: str | None = Field(default=None, description="name of an environment variable of the operator")
    file: str | None = Field(default=None, description="path of a file that has the secret and nothing else")
    command: tuple[str, ...] | None = Field(default=None, description="command that prints the secret, one word each")

    @model_validator(mode="after")
    def _exactly_one(self) -> Secret:
        if sum(source is not None for source in (self.env, self.file, self.command)) != 1:
            raise ValueError("a secret names exactly one of env, file, command")
        if not (self.env or self.file or (self.command and self.command[0])):
            raise ValueError("a secret names where it is; this one is empty")
        return self

    def where(self) -> str:
        """Where the secret comes from, fit to be shown."""
        if self.env is not None:
            return f"environment variable {self.env}"
        if self.file is not None:
            return f"file {self.file}"
        return f"command {(self.command or ('',))[0]}"

    def read(self) -> str:
        """The secret itself, without the newline at its end. Raises SpecError when it is not to be had, or empty."""
        value = self._value()
        if not value:
            raise SpecError(f"the secret in the {self.where()} is empty", hint="an empty secret protects nothing")
        return value

    def _value(self) -> str:
        if self.env is not None:
            value = os.environ.get(self.env)
            if value is None:
                raise SpecError(f"the {self.where()} is not set", hint=f"export {self.env}=… and try again")
            return value
        if self.file is not None:
            try:
                return Path(self.file).expanduser().read_text().rstrip("\n")
            except OSError as error:
                raise SpecError(f"cannot read the secret in {self.where()}: {error.strerror}") from error
            except UnicodeDecodeError:
                raise SpecError(f"the secret in {self.where()} is not UTF-8 text") from None
        argv = list(self.command or ())
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SpecError(f"the {self.where()} for a secret did not run: {error}") from error
        except UnicodeDecodeError:
            raise SpecError(f"what the {self.where()} for a secret printed is not UTF-8 text") from None
        if done.returncode != 0:
            raise SpecError(f"the {self.where()} for a secret ended with status {done.returncode}")
        return done.stdout.rstrip("\n")


def _refuse_plain(value: Any) -> Any:
    if not isinstance(value, dict | Secret):
        raise ValueError("a secret does not belong in this file: write {env: NAME}, {file: PATH} or {command: [argv]}")
    return value


SecretRef = Annotated[Secret, BeforeValidator(_refuse_plain)]
