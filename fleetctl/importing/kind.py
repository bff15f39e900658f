"""The kinds of files that can be read; apart from what reads them, so that commands know them at once."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """A kind of file that can be read."""

    SPARKRUN = "sparkrun"
    SPARK_VLLM_DOCKER = "spark-vllm-docker"
    COMPOSE = "compose"
    SYSTEMD = "systemd"
    COMMAND = "command"
    NGINX = "nginx"
    HAPROXY = "haproxy"
