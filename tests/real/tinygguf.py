"""Write a tiny random Llama as a .gguf file: `python tinygguf.py FILE`, with the packages gguf and numpy."""

import sys

import gguf
import numpy

LAYERS, HIDDEN, HEADS, FEED = 2, 64, 4, 128
CONTEXT = 2048
SPECIAL = ["<unk>", "<s>", "</s>"]


def main(target: str) -> None:
    words = SPECIAL + [f"<0x{byte:02X}>" for byte in range(256)] + ["▁" + chr(97 + n) for n in range(26)]
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    types += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * 26
    random = numpy.random.default_rng(1)
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(words)
    writer.add_token_scores([0.0] * len(words))
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for message in messages %}{{ message.content }} {% endfor %}")

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, random.normal(0, 0.05, shape).astype(numpy.float32))

    def ones(name: str) -> None:
        writer.add_tensor(name, numpy.ones(HIDDEN, dtype=numpy.float32))

    add("token_embd.weight", len(words), HIDDEN)
    ones("output_norm.weight")
    add("output.weight", len(words), HIDDEN)
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            ones(f"blk.{layer}.{name}.weight")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}.weight", HIDDEN, HIDDEN)
        add(f"blk.{layer}.ffn_gate.weight", FEED, HIDDEN)
        add(f"blk.{layer}.ffn_up.weight", FEED, HIDDEN)
        add(f"blk.{layer}.ffn_down.weight", HIDDEN, FEED)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])
