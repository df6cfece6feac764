"""A process that turns lines into ids: reads chunks of lines from its standard input, writes arrays to its output.

It is run as a script, by `hf_electra_rtd.data.encoding`, and imports neither this package nor the caller's main
module: it starts in a fraction of a second, needs little memory, and ends when its input ends, however that came
about.

    first message in: the tokenizer as JSON. Then, a message in: lines, parted by line breaks; and a message out: the
    number of lines (uint32), the number of ids of each line (uint32), the ids (uint32). A message is its length in
    bytes (uint64) and its content.
"""

from __future__ import annotations

import os
import struct
import sys
from itertools import chain
from typing import IO


if __name__ == "__main__":
    # This directory, whose modules would hide others of the same names; it is not there with PYTHONSAFEPATH.
    if sys.path and os.path.realpath(sys.path[0] or ".") == os.path.dirname(os.path.realpath(__file__)):
        del sys.path[0]

import numpy as np
from tokenizers import Tokenizer


LENGTH = struct.Struct("<Q")


def load_backend(described: str) -> Tokenizer:
    """A tokenizer from its JSON, without truncation and padding."""
    backend = Tokenizer.from_str(described)
    backend.no_truncation()
    backend.no_padding()
    return backend


def encode_lines(backend: Tokenizer, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all lines, one after the other, and how many each line has: uint32 arrays."""
    encoded = backend.encode_batch_fast(lines, add_special_tokens=False)
    lengths = np.fromiter(map(len, encoded), dtype=np.uint32, count=len(lines))
    # `ids` makes a list of Python integers: one line's at a time, and no Python code for each of them.
    ids = chain.from_iterable(encoding.ids for encoding in encoded)
    return np.fromiter(ids, dtype=np.uint32, count=int(lengths.sum())), lengths


def read_message(stream: IO[bytes]) -> bytes | None:
    """The next message; None where the stream ends."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    content = stream.read(length)
    return content if len(content) == length else None


def write_message(stream: IO[bytes], content: bytes) -> None:
    stream.write(LENGTH.pack(len(content)))
    stream.write(content)
    stream.flush()


def main() -> None:
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    described = read_message(stdin)
    if described is None:
        return
    backend = load_backend(described.decode())
    while (message := read_message(stdin)) is not None:
        ids, lengths = encode_lines(backend, message.decode().split("\n"))
        try:
            write_message(stdout, np.uint32(len(lengths)).tobytes() + lengths.tobytes() + ids.tobytes())
        except BrokenPipeError:  # nobody waits for the answer any more
            sys.stderr.close()
            return


if __name__ == "__main__":
    main()
