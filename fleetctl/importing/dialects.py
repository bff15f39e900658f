"""The dialects there are, and which of them a program, a module or an image is."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fleetctl.importing.dialect import Dialect
from fleetctl.importing.infinity_flags import INFINITY
from fleetctl.importing.llamacpp_flags import LLAMACPP
from fleetctl.importing.sglang_flags import SGLANG
from fleetctl.importing.tei_flags import TEI
from fleetctl.importing.vllm_flags import VLLM

DIALECTS = (LLAMACPP, TEI, INFINITY, SGLANG, VLLM)
PROGRAMS = {program: dialect for dialect in DIALECTS for program in dialect.programs}
MODULES = {module: dialect for dialect in DIALECTS for module in dialect.modules}


def seen(texts: Iterable[str]) -> Dialect | None:
    """The first kind of engine of which a word or the name of an image has the sign."""
    words = list(texts)
    return next((dialect for dialect in DIALECTS if any(dialect.sign.search(word) for word in words)), None)


def starts() -> str:
    """A regular expression for a text in which an engine is started."""
    found = [re.escape(module) for module in MODULES]
    for program, dialect in PROGRAMS.items():
        verbs = "|".join(map(re.escape, dialect.programs[program]))
        found.append(rf"\b{re.escape(program)}\s+(?:{verbs})\b" if verbs else rf"\b{re.escape(program)}\b")
    return "|".join(found)
