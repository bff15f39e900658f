"""What a unit file says of the engine that it starts."""

from __future__ import annotations

import re

from fleetctl.capacity.calibration import BATCHED_TOKENS
from fleetctl.render.release import Rank, Release


def batched_tokens(release: Release, box: str, rank: Rank) -> int:
    """--max-num-batched-tokens of a rank on a box, from its unit file; vLLM's default where it is not given."""
    unit = next((file.content for file in release.files.get(box, ()) if file.path.endswith(f"/{rank.unit}")), "")
    found = re.findall(r"--max[-_]num[-_]batched[-_]tokens[ =]\"?([0-9]{1,9})\b", unit)
    return int(found[-1]) if found else BATCHED_TOKENS
