"""What nvidia-smi prints, as it prints it: what the words mean is for the reader to say."""

import re
import shutil
from typing import Any, Dict, List, Optional

from fleetctl.onbox.main import PATH, Call, OpError
from fleetctl.onbox.process import run
from fleetctl.onbox.units import comm_of, unit_of

PATIENCE = 15.0  # seconds; a driver that is in trouble lets it wait for long
MOST = 20_000  # characters
GPUS = "index,name,memory.total,memory.used,driver_version"
APPS = "pid,process_name,used_memory"


def smi(call: Call, *words: str) -> Optional[Dict[str, Any]]:
    """``rc``, ``out`` and ``err`` of nvidia-smi; ``rc`` is None when it did not end. None: there is no nvidia-smi."""
    if shutil.which("nvidia-smi", path=PATH) is None:
        return None
    try:
        done = run(call, ["nvidia-smi", *words], timeout=PATIENCE)
    except OpError as error:
        return {"rc": None, "out": "", "err": str(error)}
    return {"rc": done["rc"], "out": done["out"][:MOST], "err": done["err"][:MOST]}


def query(call: Call, kind: str, fields: str) -> Optional[Dict[str, Any]]:
    """A query (``gpu`` or ``compute-apps``) as lines of values between commas."""
    return smi(call, "--query-%s=%s" % (kind, fields), "--format=csv,noheader,nounits")


def owners(apps: Optional[Dict[str, Any]]) -> Dict[str, Dict[str, str]]:
    """Process id of each line of a query of compute-apps → its unit and the kernel's short name."""
    pids: List[str] = re.findall(r"^\s*(\d{1,9})\s*,", apps["out"], re.MULTILINE) if apps else []
    return {pid: {"unit": unit_of(int(pid)) or "", "comm": comm_of(int(pid))} for pid in pids}
