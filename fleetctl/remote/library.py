"""paramiko, imported when the first box is connected and not before: it takes a tenth of a second."""

from __future__ import annotations

import logging
import sys

# paramiko imports invoke, and with it asyncio and more, for `Match exec` alone, which `ssh -G` does for us.
# Told that there is none it goes on without; 40 ms less for every command.
_invoke = sys.modules.get("invoke")
if _invoke is None:
    sys.modules["invoke"] = None  # type: ignore[assignment]
try:
    import paramiko
    from paramiko.pkey import UnknownKeyType
finally:
    if _invoke is None:
        del sys.modules["invoke"]

# paramiko logs what it also raises; without a handler of ours Python would print it on the operator's terminal.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

__all__ = ["UnknownKeyType", "paramiko"]
