"""Filling in the templates of the root folders. A name that a template uses and nobody gives is an error."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from fleetctl.resources import Folder, root_text

if TYPE_CHECKING:
    import jinja2


@cache
def _template(folder: Folder, name: str) -> jinja2.Template:
    import jinja2  # not before something is rendered: status renders nothing

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.from_string(root_text(folder, name))


def fill(folder: Folder, name: str, /, **values: object) -> str:
    """Text of the template ``folder/name`` with ``values`` filled in."""
    return _template(folder, name).render(**values)
