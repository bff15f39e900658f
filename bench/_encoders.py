"""One way of computing embeddings, as a process that bench/pool_encoder.py starts: `_encoders.py WAY FOLDER TEXTS`.

TEXTS is a JSON file: ``texts``, and ``tokens`` of each. Every line on standard input is a JSON object. With ``tokens``
it asks for a measurement: batches of so many tokens (texts of like length together, padded), for ``seconds``, on so
many ``lanes`` (threads that each compute a batch of their own) of ``threads`` each; the answer has the tokens per
second, and per second that a core was used, padding not counted. With ``vectors`` it asks for a file with the vectors of the first texts.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fleetctl.pool.encoder import pooling
from fleetctl.pool.encoder.engine import Engine
from fleetctl.pool.encoder.graph import write_graph
from fleetctl.pool.encoder.recipe import read_recipe
from fleetctl.pool.encoder.weights import read_header

COMPARED = 400
"""Texts whose vectors are compared."""
Batch = Sequence[Sequence[int]]
Compute = Callable[[Batch], Any]


def main() -> None:
    way, folder, listed = sys.argv[1], Path(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text())
    make = {"onnxruntime": onnxruntime, "torch": torch}[way.partition("-")[0]]
    made: dict[int, Compute] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        threads = asked.get("threads", 1)
        if threads not in made:
            made[threads] = make(folder, way.partition("-")[2], threads)
        if "vectors" in asked:
            np.save(asked["vectors"], np.concatenate([made[threads]([one]) for one in listed["tokens"][:COMPARED]]))
            answer: dict[str, Any] = {}
        else:
            answer = measure(
                made[threads], batches(listed["tokens"], asked["tokens"]), asked["lanes"], asked["seconds"]
            )
        print(json.dumps(answer), flush=True)


def batches(texts: Batch, most: int) -> list[Batch]:
    """Texts of like length together, up to so many tokens."""
    made: list[list[Sequence[int]]] = [[]]
    for tokens in sorted(texts, key=len):
        if made[-1] and len(tokens) * (len(made[-1]) + 1) > most:
            made.append([])
        made[-1].append(tokens)
    return list(made)


def measure(compute: Compute, work: list[Batch], lanes: int, seconds: float) -> dict[str, float]:
    """Tokens per second of all lanes, and per second of a core's time."""
    order = np.random.default_rng(1).permutation(len(work))
    compute(work[order[0]])
    spent_before = time.process_time()
    done = [0] * lanes
    end = time.perf_counter() + seconds
    lasted = [0.0] * lanes

    def lane(number: int) -> None:
        begin, at = time.perf_counter(), number * len(work) // lanes
        while time.perf_counter() < end:
            batch = work[order[at % len(work)]]
            compute(batch)
            done[number] += sum(map(len, batch))
            at += 1
        lasted[number] = time.perf_counter() - begin

    threads = [threading.Thread(target=lane, args=(number,)) for number in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "rate": sum(tokens / spent for tokens, spent in zip(done, lasted, strict=True)),
        "core": sum(done) / (time.process_time() - spent_before),
    }


def padded(batch: Batch) -> tuple[Any, Any]:
    """Token numbers and mask."""
    ids = np.zeros((len(batch), max(map(len, batch))), np.int64)
    mask = np.zeros_like(ids)
    for row, tokens in enumerate(batch):
        ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
    return ids, mask


def onnxruntime(folder: Path, kind: str, threads: int) -> Compute:
    """The encoder's own engine, or its graph with weights of 8 bits."""
    import onnxruntime as ort

    if kind == "float32":
        return Engine(read_recipe(folder), threads).embed
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(quantised(folder, kind), options, providers=["CPUExecutionProvider"])

    def compute(batch: Batch) -> Any:
        ids, mask = padded(batch)
        given = {"input_ids": ids.astype(np.int32), "attention_mask": mask.astype(np.int32)}
        return pooling.normalised(pooling.pool(session.run(None, given)[0], mask, "mean"))

    return compute


def quantised(folder: Path, kind: str) -> bytes:
    """The graph with 8-bit products. ``int8``: a scale per column of the weights and one for what goes in, taken from
    each batch; ``int8blocks``: a scale per 32 weights, and per 32 numbers that go in."""
    import onnx
    from onnx.external_data_helper import load_external_data_for_model
    from onnxruntime.quantization import QuantType, matmul_nbits_quantizer, quantize_dynamic

    config = read_recipe(folder).config
    model = onnx.load_from_string(write_graph(config, read_header(folder / "model.safetensors"), "model.safetensors"))
    load_external_data_for_model(model, str(folder))
    turned_weights(model)
    if kind == "int8":
        plain, small = Path("plain.onnx"), Path("int8.onnx")
        onnx.save(model, plain)
        only = ["MatMul"]
        quantize_dynamic(plain, small, weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=only)
        return small.read_bytes()
    settings = matmul_nbits_quantizer.DefaultWeightOnlyQuantConfig(
        block_size=32, is_symmetric=True, accuracy_level=4, bits=8
    )
    quantiser = matmul_nbits_quantizer.MatMulNBitsQuantizer(model, algo_config=settings)
    quantiser.process()
    return bytes(quantiser.model.model.SerializeToString())


def turned_weights(model: Any) -> None:
    """Transpose the weights in the file, as the quantisers look for products with a constant."""
    from onnx import numpy_helper

    stored = {one.name: one for one in model.graph.initializer}
    for node in list(model.graph.node):
        if node.op_type == "Transpose" and node.input[0] in stored:
            weight = stored[node.input[0]]
            turned = numpy_helper.from_array(np.ascontiguousarray(numpy_helper.to_array(weight).T), node.output[0])
            model.graph.initializer.append(turned)
            model.graph.initializer.remove(weight)
            model.graph.node.remove(node)


def torch(folder: Path, kind: str, threads: int) -> Compute:
    """BertModel of transformers with PyTorch's fused attention."""
    import torch as library
    from transformers import BertModel

    model = BertModel.from_pretrained(folder, attn_implementation="sdpa", dtype=getattr(library, kind)).eval()

    def compute(batch: Batch) -> Any:
        library.set_num_threads(threads)
        ids, mask = padded(batch)
        with library.inference_mode():
            hidden = model(library.from_numpy(ids), attention_mask=library.from_numpy(mask)).last_hidden_state
            weights = library.from_numpy(mask)[:, :, None].to(hidden.dtype)
            pooled = ((hidden * weights).sum(1).float() / weights.sum(1).float()).numpy()
        return pooling.normalised(pooled)

    return compute


if __name__ == "__main__":
    main()
