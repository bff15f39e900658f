"""Write a tiny random Llama with a trained tokenizer into the folder given.

``tinymodel_script.py FOLDER [HIDDEN LAYERS POSITIONS]``; without numbers the smallest that serves: 128, 2 and 2048.

Run by the Python of an engine's venv, which has torch, transformers and tokenizers; fleetctl itself never
imports this file. The same versions of those three write the same bytes each time.

The model knows nothing. It is shaped so that everything around it can be tried: 4 attention heads and 2 KV
heads, so that two ranks can share it; answers in printable ASCII, which hardly ever end by themselves, so
that a request gets the number of tokens it asked for.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # type: ignore[import-not-found,unused-ignore]
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-not-found,unused-ignore]
from transformers import LlamaConfig, LlamaForCausalLM  # type: ignore[import-not-found,unused-ignore]

SEED = 20
VOCABULARY = 512
HIDDEN, LAYERS, POSITIONS = 128, 2, 2048
BEGIN, END, TURN = "<s>", "</s>", "<|turn|>"

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "<|turn|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% elif message['content'] %}"
    "{% for part in message['content'] %}{{ part['text'] }}{% endfor %}"
    "{% endif %}\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)

# Any text will do; this one has most of the words that a short prompt in a test has.
TEXT = """
The operator describes the boxes in one file and moves the model with one command. Each box has an
address, a link, some memory and an engine. The proxy sends a request to the engine that has the fewest
requests running; when no engine is up it holds the requests, and answers them as soon as an engine is
ready again. A copy on each box serves more tokens per second than one engine across both, and either box
can restart without the model going away. One engine across both boxes has more room for the cache. Say
hello. Write one short sentence about the weather today. What is the capital of France? Count from one to
ten: one, two, three, four, five, six, seven, eight, nine, ten. Answer with a single word, please. You
are a helpful assistant. The user asks a question and the assistant answers it. Summarise this letter in
three lines. Which of these tools should be called, and with which arguments? It was the best of days;
the sun was out, the wind was still, and there was nothing to be done before the evening. In the morning
they went down to the river to see whether the ice had gone, and it had. They took the long way home,
talking of this and that, of what the winter had been and what the summer would be.
"""


def train_tokenizer() -> Tokenizer:
    """A byte-level BPE: any text can be written with it, and the common words above are short."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BEGIN, END, TURN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT.strip().splitlines(), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"the tokenizer has {tokenizer.get_vocab_size()} entries, not {VOCABULARY}")
    return tokenizer


def readable(token: str) -> bool:
    """Whether the vocabulary entry is printable ASCII; a space is written as U+0120 in byte-level BPE."""
    return token not in (BEGIN, END, TURN) and all("!" <= char <= "~" or char == "\u0120" for char in token)


def make_model(tokenizer: Tokenizer, hidden: int, layers: int, positions: int) -> LlamaForCausalLM:
    """Random weights; those that would speak an unreadable token are nought, so it is hardly ever chosen."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        bos_token_id=tokenizer.token_to_id(BEGIN),
        eos_token_id=tokenizer.token_to_id(END),
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        # A random head finds all tokens about equally likely: spread the scores, silence the unreadable.
        model.lm_head.weight.mul_(30)
        for token, row in tokenizer.get_vocab().items():
            if not readable(token):
                model.lm_head.weight[row] = 0
    return model


def main(folder: Path, hidden: int = HIDDEN, layers: int = LAYERS, positions: int = POSITIONS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    tokenizer = train_tokenizer()
    make_model(tokenizer, hidden, layers, positions).save_pretrained(folder, safe_serialization=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": positions,
        "bos_token": BEGIN,
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(settings, indent=2, sort_keys=True)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
