"""Whether a LoRA adapter fits a model: its adapter_config.json and the header of its weights against the model's. Pure.

What vLLM 0.32.0 does not load it refuses when the adapter is loaded (``vllm/lora/peft_helper.py``, ``lora_model.py``),
and some of what it loads is wrong without a word: a matrix of another shape, a layer that the model does not have. Both
are found here, before any copy is touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fleetctl.capacity.headers import Tensor
from fleetctl.capacity.matrices import dimensions
from fleetctl.capacity.reading import Section

PLAIN_STARTS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
"""Values of init_lora_weights with which the saved adapter is a plain one (vLLM 0.32.0)."""
HEADS = ("classifier", "score")
TYPES = ("F16", "BF16", "F32", "F64")

_PART = re.compile(r"^(?:base_model\.model\.)?(?P<module>.+)\.lora_(?:embedding_)?(?P<matrix>[AB])(?:\.weight)?$")
_SHOWN = 3


@dataclass(frozen=True)
class Adapter:
    """An adapter as its files say. ``where`` is what messages call it."""

    where: str
    config: Section
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True)
class Base:
    """The model that it is for: every matrix with its (out, in), or nothing where its files are not known.

    ``method`` is config.json's quant_method.
    """

    where: str
    tensors: tuple[Tensor, ...] = ()
    method: str = ""
    matrices: Mapping[str, tuple[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrices", dict(_matrices(self.tensors, self.method)))


def rank_of(adapter: Adapter) -> int:
    """The highest rank in an adapter. SpecError where its configuration does not say."""
    patterns = adapter.config.section("rank_pattern")
    ranks = [patterns.whole(name, least=1) for name in patterns.values] if patterns else []
    return max([adapter.config.whole("r", least=1), *ranks])


def faults(adapter: Adapter, base: Base, max_rank: int) -> list[str]:
    """Why an adapter cannot be loaded, or would do wrong; empty when nothing is known against it.

    Raises SpecError where its configuration cannot be understood at all.
    """
    found = list(_of_config(adapter, max_rank))
    pairs = _pairs(adapter.tensors)
    found += _of_tensors(adapter, pairs)
    if not found and base.matrices:
        found += _of_shapes(pairs, base)
    return found


def doubts(adapter: Adapter, names: Iterable[str]) -> list[str]:
    """What should be known before: it says that it was made for another model than ``names`` (a path or an id)."""
    made_for = adapter.config.text("base_model_name_or_path")
    known = {_plain(name) for name in names}
    if made_for and _plain(made_for) not in known:
        return [f"{adapter.where} says that it was made for {made_for[:200]}"]
    return []


def _plain(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


def _of_config(adapter: Adapter, max_rank: int) -> Iterator[str]:
    config = adapter.config
    kind = config.text("peft_type", "LORA")
    if kind.upper() != "LORA":
        yield f"it is a {kind[:40]} adapter, and engines take LoRA alone"
    rank = rank_of(adapter)
    config.whole("lora_alpha", least=1)
    if rank > max_rank:
        yield f"its rank is {rank}, and the model takes {max_rank} at most (max_lora_rank: of its loras:)"
    if config.values.get("target_modules") is None:
        yield "adapter_config.json has no target_modules"
    kept = config.values.get("modules_to_save")
    others = [str(one) for one in kept if one not in HEADS] if isinstance(kept, list) else ["?"] if kept else []
    if others:
        yield f"modules_to_save has {', '.join(others)[:100]}: whole matrices in an adapter are not loaded"
    if config.text("bias", "none") != "none":
        yield f"bias is {config.text('bias')}: an adapter with biases is not loaded"
    for key, what in (
        ("use_dora", "DoRA"),
        ("lora_bias", "LoRA with a bias"),
        ("alora_invocation_tokens", "activated LoRA"),
        ("layer_replication", "replicated layers"),
        ("use_bdlora", "block-diagonal LoRA"),
        ("use_qalora", "QALoRA"),
    ):
        if config.values.get(key):
            yield f"{key} is set: vLLM does not load {what}"
    start = config.values.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower() not in PLAIN_STARTS:
        yield f"init_lora_weights is {start[:40]}: that changes the base model too; convert it to a plain LoRA adapter"


@dataclass
class _Pair:
    """The two matrices of one module."""

    a: Tensor | None = None
    b: Tensor | None = None


def _pairs(tensors: Iterable[Tensor]) -> dict[str, _Pair]:
    pairs: dict[str, _Pair] = {}
    for tensor in tensors:
        found = _PART.match(tensor.name)
        if found:
            pair = pairs.setdefault(found["module"], _Pair())
            if found["matrix"] == "A":
                pair.a = tensor
            else:
                pair.b = tensor
    return pairs


def _of_tensors(adapter: Adapter, pairs: Mapping[str, _Pair]) -> Iterator[str]:
    if not pairs:
        yield "its weights have no matrix of a LoRA adapter (….lora_A.weight, ….lora_B.weight)"
        return
    stray = [t.name for t in adapter.tensors if not _PART.match(t.name) and not _of_head(t.name)]
    if stray:
        yield f"its weights have what is no part of a LoRA adapter: {_some(stray)}"
    alone = [module for module, pair in pairs.items() if pair.a is None or pair.b is None]
    if alone:
        yield f"one of the two matrices is missing for {_some(alone)}"
    odd = sorted({t.dtype for t in adapter.tensors if t.dtype not in TYPES})
    if odd:
        yield f"its weights are of the type {', '.join(odd)}, not {', '.join(TYPES)}"
    most = rank_of(adapter)
    wrong = [
        f"{module} ({_ranks(pair)})"
        for module, pair in pairs.items()
        if pair.a is not None and pair.b is not None and not _one_rank(pair.a, pair.b, most, module)
    ]
    if wrong:
        yield f"its matrices do not have the rank that adapter_config.json says ({most}): {_some(wrong)}"


def _of_head(name: str) -> bool:
    return any(f".{head}." in f".{name}" for head in HEADS)


def _one_rank(a: Tensor, b: Tensor, most: int, module: str) -> bool:
    if ".experts" in module or len(a.shape) != 2 or len(b.shape) != 2:
        return ".experts" in module
    return a.shape[0] == b.shape[1] and 0 < a.shape[0] <= most


def _ranks(pair: _Pair) -> str:
    return " and ".join("x".join(map(str, t.shape)) for t in (pair.a, pair.b) if t is not None)


def _of_shapes(pairs: Mapping[str, _Pair], base: Base) -> Iterator[str]:
    """Modules that the model does not have, and matrices that do not fit its own."""
    by_end: dict[str, set[tuple[int, int]]] = {}
    for name, shape in base.matrices.items():
        by_end.setdefault(_from_layers(name), set()).add(shape)
    unknown, unfit = [], []
    for module, pair in pairs.items():
        if ".experts" in module or pair.a is None or pair.b is None:
            continue  # experts are kept fused by some models and one by one by others; the engine looks at those
        shapes = {base.matrices[module]} if module in base.matrices else by_end.get(_from_layers(module), set())
        if not shapes:
            unknown.append(module)
        elif "embed" not in module and (pair.b.shape[0], pair.a.shape[1]) not in shapes:
            out, into = sorted(shapes)[0]
            unfit.append(f"{module} is {pair.b.shape[0]}x{pair.a.shape[1]} there and {out}x{into} in the model")
    if unknown:
        yield f"the model ({base.where}) has no {_some(unknown)}: it is for another model"
    if unfit:
        yield f"it is for a model of another size: {_some(unfit)}"


def _from_layers(name: str) -> str:
    """A module's name without what stands before the layers, which differs between a model and its wrappers."""
    found = re.search(r"(?:^|\.)((?:layers|h|blocks|lm_head|embed_tokens)(?:\..*)?)$", name)
    return found[1] if found else name


def _matrices(tensors: Iterable[Tensor], method: str) -> Iterator[tuple[str, tuple[int, int]]]:
    for tensor in tensors:
        module, _, last = tensor.name.rpartition(".")
        if last in ("weight", "qweight", "weight_packed") and len(tensor.shape) == 2:
            _, out, into = dimensions(tensor, method)
            yield module, (out, into)


def _some(names: list[str]) -> str:
    shown = ", ".join(name[:120] for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
