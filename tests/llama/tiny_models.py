"""Writes two very small models that llama.cpp loads like any other: one babbles, one always answers the same text.

Both are made of numbers written here, nothing is downloaded. The babbling one has a token for every byte, so that the
size of a prompt is known to the token; the reciting one has words as tokens, so that English takes about as many
tokens as with a real model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

END, TURN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TURN_TOKENS = len("user\n") + 3
"""Tokens around the words of a user message in the babbling model: start, role, end, newline."""
ANSWER_TOKENS = len("assistant\n") + 1
"""Tokens that open the answer."""

RECITED = (
    "## Goal\n", "Keep the shop's tests green ", "while the cart moves to the new API.\n",
    "## Progress\n### Done\n", "- the validator in shop/cart.py is replaced\n", "### In progress\n",
    "- prices are rounded to whole cents\n", "## Files\n", "- shop/cart.py: edited\n", "- tests/test_cart.py: read\n",
    "## Next steps\n", "1. round prices in shop/price.py\n", "2. run the whole suite\n",
)  # fmt: skip
"""What the reciting model always says, a token each."""


def write_babbling(path: Path) -> None:
    """A llama with random weights and byte tokens: real refusals, streams and counts, meaningless text. 300 KB."""
    vocabulary = [*_byte_names(), END, TURN, TURN_END]
    width, heads, hidden = 64, 2, 128
    numbers = np.random.default_rng(0)

    def tensor(*shape: int) -> Array:
        return (numbers.standard_normal(shape) * 0.05).astype(np.float32)

    writer = _writer(
        path, "tiny-babbling", vocabulary, merges=[], width=width, heads=heads, head=width // heads, hidden=hidden
    )
    writer.add_tensor("token_embd.weight", tensor(len(vocabulary), width) * 20)
    writer.add_tensor("output.weight", tensor(len(vocabulary), width))
    _add_block(writer, tensor, width=width, attention=width, hidden=hidden)
    _finish(writer)


def write_reciting(path: Path, corpus: str, *, endless: bool = False) -> None:
    """A llama that says `RECITED` after any prompt. `corpus` is text whose words get tokens of their own. A few MB.

    Its hidden state is nothing but the last token, and its output matrix names the token that follows: the end of
    `assistant` and a newline is followed by the first piece, the last piece by the end of the turn, or by the first
    once more where it is to be endless.
    """
    merges = learn_merges(corpus, 400)
    words = [a + b for a, b in merges]
    vocabulary = [*_byte_names(), END, TURN, TURN_END, *words, *(_as_bytes(piece) for piece in RECITED)]
    size, head, hidden = len(vocabulary), 32, 32
    width = -(-size // 32) * 32
    first = size - len(RECITED)
    follower = np.full(size, vocabulary.index(TURN_END))
    follower[ord("\n")] = first
    follower[first : size - 1] = np.arange(first + 1, size)
    if endless:
        follower[size - 1] = first

    def zeros(*shape: int) -> Array:
        return np.zeros(shape, np.float32)

    embedding, output = zeros(size, width), zeros(size, width)
    embedding[np.arange(size), np.arange(size)] = 1
    output[follower, np.arange(size)] = 3
    writer = _writer(path, "tiny-reciting", vocabulary, merges, width=width, heads=1, head=head, hidden=hidden)
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output.weight", output)
    _add_block(writer, zeros, width=width, attention=head, hidden=hidden)
    _finish(writer)


def learn_merges(corpus: str, count: int) -> list[tuple[str, str]]:
    """Byte-pair merges learnt from the words of a text, the most frequent pair first; never across a newline."""
    words = Counter(tuple(_as_bytes(word)) for word in re.findall(r" ?[A-Za-z]+", corpus))
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs = Counter[tuple[str, str]]()
        for word, times in words.items():
            for pair in pairwise(word):
                pairs[pair] += times
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        words = Counter({_merged(word, best): times for word, times in words.items()})
    return merges


def _merged(word: Sequence[str], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for piece in word:
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return tuple(out)


def _byte_names() -> list[str]:
    """GPT-2's printable stand-in for each byte: itself where it is printable, else a character from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _as_bytes(text: str) -> str:
    names = _byte_names()
    return "".join(names[byte] for byte in text.encode())


def _writer(
    path: Path,
    name: str,
    vocabulary: Sequence[str],
    merges: Iterable[tuple[str, str]],
    *,
    width: int,
    heads: int,
    head: int,
    hidden: int,
) -> gguf.GGUFWriter:
    control = {END, TURN, TURN_END}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_context_length(131_072)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(head)
    writer.add_vocab_size(len(vocabulary))
    writer.add_file_type(0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(vocabulary)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if token in control else gguf.TokenType.NORMAL for token in vocabulary]
    )
    # The format wants at least one merge; this one is of two bytes that no UTF-8 text has side by side.
    names = _byte_names()
    writer.add_token_merges([f"{a} {b}" for a, b in merges] or [f"{names[0xFE]} {names[0xFF]}"])
    writer.add_bos_token_id(vocabulary.index(END))
    writer.add_eos_token_id(vocabulary.index(TURN_END))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    return writer


def _add_block(writer: gguf.GGUFWriter, make: object, *, width: int, attention: int, hidden: int) -> None:
    shapes = {
        "attn_q": (attention, width), "attn_k": (attention, width), "attn_v": (attention, width),
        "attn_output": (width, attention), "ffn_gate": (hidden, width), "ffn_up": (hidden, width),
        "ffn_down": (width, hidden),
    }  # fmt: skip
    for name, shape in shapes.items():
        writer.add_tensor(f"blk.0.{name}.weight", make(*shape))  # type: ignore[operator]
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
