"""Sequences to vectors: the hidden states of clean sequences, pooled or one vector per position (paper section 5.2).

Sequences are read one at a time and vectors written as they come, so memory does not depend on the number of
sequences. A sequence longer than the model is cut into blocks, each seen without the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..data.rows import capacity
from ..errors import UserError, at_least, choose, optional
from ..evaluation.likelihood import compute_dtype, evaluating
from ..files import replacing
from ..lm import LM
from ..networks.conjoined import Conjoined, backwards
from .strands import complement_of, equivariant, need_dna, side_by_side

POOLS = ("mean", "none")
BUFFER = 16  # times batch_size: blocks that are sorted by length, so that little is padding
MOST_POSITIONS = 2**20  # of one sequence without pooling
ROW_GROUP = 1024  # rows of a parquet file that are held at a time


@dataclass(frozen=True)
class Embedder:
    """How sequences become vectors."""

    lm: LM
    pool: str = "mean"
    length: int | None = None  # tokens that are seen at once; None = the model's length
    both_strands: bool = False
    batch_size: int = 32

    def __post_init__(self) -> None:
        choose(self.pool, POOLS, "pool")
        at_least("batch_size", self.batch_size)
        if not self.lm.model.reads_tokens:
            raise UserError(
                "embeddings are the hidden states of a network that reads tokens, and this model's does not"
            )
        longest = self.lm.model.backbone.longest
        if self.block_length < 1 or (longest is not None and self.block_length > longest):
            raise UserError(f"length={self.length} must be between 1 and {longest or self.lm.length}")
        if self.both_strands:
            need_dna(self.lm, "--both-strands")

    @property
    def block_length(self) -> int:
        """Tokens of a block."""
        return capacity(self.lm.length if self.length is None else self.length, self.lm.prompt_builder.block_ends)

    @property
    def dim(self) -> int:
        """Numbers of a vector; those of the two strands of an equivariant network are averaged."""
        backbone = self.lm.model.backbone
        return backbone.hidden_dim // 2 if equivariant(backbone) else backbone.hidden_dim

    def protocol(self) -> dict[str, Any]:
        """What vectors depend on."""
        both = equivariant(self.lm.model.backbone) or self.both_strands
        return {
            "states": "last, of the clean sequence (t = 0)",
            "pool": self.pool,
            "dim": self.dim,
            "strands": "mean of both" if both else "as written",
            "block_length": self.block_length,
            "dtype": compute_dtype(self.lm.model),
            **self.lm.prompt_builder.unknown.facts(),
        }

    def encode(self, name: str, text: str) -> np.ndarray:
        """The ids of a sequence; one without any is named."""
        try:
            ids = self.lm.encode(text)
        except UserError as error:
            raise UserError(f"sequence {name!r}: {error}") from None
        if not ids:
            raise UserError(f"sequence {name!r} is empty; remove it or add bases")
        if self.pool == "none" and len(ids) > MOST_POSITIONS:
            raise UserError(f"sequence {name!r} has {len(ids):,} positions; cut it, or use --pool mean")
        return np.asarray(ids)

    def __call__(self, sequences: Iterable[tuple[str, str]]) -> Iterator[tuple[str, int, np.ndarray]]:
        """(name, length, (dim,) or (length, dim) float32) of every sequence, in order."""
        waiting: list[_Sequence] = []
        blocks: list[tuple[_Sequence, int]] = []
        with evaluating(self.lm.model), torch.no_grad():
            for name, text in sequences:
                sequence = _Sequence(name, self.encode(name, text), self.block_length, self.pool)
                waiting.append(sequence)
                for start in range(0, len(sequence.ids), self.block_length):
                    blocks.append((sequence, start))
                    if len(blocks) >= BUFFER * self.batch_size:
                        self._read(blocks)
                        blocks = []
                while waiting and waiting[0].complete:
                    yield waiting.pop(0).result()
            self._read(blocks)
            yield from (sequence.result() for sequence in waiting)

    def _read(self, blocks: list[tuple[_Sequence, int]]) -> None:
        """Send blocks through the network, those of a length together."""
        order = sorted(blocks, key=lambda block: min(self.block_length, len(block[0].ids) - block[1]))
        for i in range(0, len(order), self.batch_size):
            part = order[i : i + self.batch_size]
            states = self.states([sequence.ids[start : start + self.block_length] for sequence, start in part])
            for (sequence, start), block_states in zip(part, states, strict=True):
                sequence.add_states(start, block_states)

    def states(self, rows: list[np.ndarray]) -> list[np.ndarray]:
        """The states (n, dim) float32 of rows of ids."""
        z, present = side_by_side(self.lm, rows)
        states = self._states(z, present)
        first = 0 if self.lm.prompt_builder.block_ends is None else 1
        return [row_states[first : first + len(row)].numpy() for row_states, row in zip(states, rows, strict=True)]

    def _states(self, z: Tensor, present: Tensor | None) -> Tensor:
        """(B, L, dim) on the CPU, of both strands where that is wanted."""
        backbone = self.lm.model.backbone
        hidden = self._hidden(z, present)
        if equivariant(backbone):
            strand, other = hidden.chunk(2, dim=-1)
            return (strand + (other if isinstance(backbone, Conjoined) else other.flip(-1))) / 2
        if self.both_strands:
            turn = backwards(z, present)
            other = self._hidden(complement_of(self.lm)[z].gather(1, turn), present)
            hidden = (hidden + other.gather(1, turn[..., None].expand_as(other))) / 2
        return hidden

    def _hidden(self, z: Tensor, present: Tensor | None) -> Tensor:
        model = self.lm.model
        device = model.device
        z, valid = z.to(device), None if present is None else present.to(device)
        return model.states(z, valid).float().cpu()


class _Sequence:
    """A sequence of which some blocks were read."""

    def __init__(self, name: str, ids: np.ndarray, block_length: int, pool: str) -> None:
        self.name, self.ids, self.pool = name, ids, pool
        self.left = -(-len(ids) // block_length)
        self.sum: np.ndarray | float = 0.0
        self.parts: dict[int, np.ndarray] = {}

    @property
    def complete(self) -> bool:
        """Whether all blocks were read."""
        return not self.left

    def add_states(self, start: int, states: np.ndarray) -> None:
        """The states of the block that begins at `start`."""
        self.left -= 1
        if self.pool == "mean":
            self.sum = self.sum + states.sum(0, dtype=np.float64)
        else:
            self.parts[start] = states

    def result(self) -> tuple[str, int, np.ndarray]:
        """(name, length, vector or vectors)."""
        if self.pool == "mean":
            return self.name, len(self.ids), np.asarray(self.sum / len(self.ids), dtype=np.float32)
        return self.name, len(self.ids), np.concatenate([self.parts[start] for start in sorted(self.parts)])


# -- files -----------------------------------------------------------------------------------------------------------


class EmbeddingWriter(Protocol):
    """Takes vectors one at a time."""

    def add(self, name: str, length: int, vectors: np.ndarray) -> None:
        """Write one sequence."""


@contextmanager
def open_writer(path: str | Path, embedder: Embedder, facts: dict[str, Any]) -> Iterator[EmbeddingWriter]:
    """A writer by the ending of a file's name; the file exists only when everything went well."""
    place = Path(path)
    with ExitStack() as stack:
        temporary = stack.enter_context(replacing(place))
        if place.suffix == ".npy":
            beside = stack.enter_context(replacing(place.with_suffix(".json")))
            yield from _npy(temporary, beside, embedder.dim, facts)
        elif place.suffix == ".parquet":
            yield from _parquet(temporary, embedder, facts)
        else:
            raise UserError(f"{path} must end in .npy or .parquet")


def _npy(path: Path, beside: Path, dim: int, facts: dict[str, Any]) -> Iterator[EmbeddingWriter]:
    """(n, dim) float32, and a file beside it with names, lengths and protocol."""
    with path.open("wb") as array, beside.open("w", encoding="utf-8") as names:
        writer = _Npy(array, names, dim, facts)
        yield writer
        writer.end()


class _Npy:
    def __init__(self, array: Any, names: Any, dim: int, facts: dict[str, Any]) -> None:
        self.array, self.names, self.dim, self.rows, self.many = array, names, dim, 0, False
        self._header()
        names.write(f'{{"protocol": {json.dumps(facts)},\n "columns": ["name", "length"],\n "sequences": [')

    def _header(self) -> None:
        """The header has room for any number of rows, so that it can be written again when their number is known."""
        shape = {"descr": "<f4", "fortran_order": False, "shape": (self.rows, self.dim)}
        np.lib.format.write_array_header_1_0(self.array, shape)

    def add(self, name: str, length: int, vectors: np.ndarray) -> None:
        rows = np.ascontiguousarray(np.atleast_2d(vectors), dtype="<f4")
        self.array.write(rows.tobytes())
        self.rows += len(rows)
        self.names.write(("," if self.many else "") + "\n  " + json.dumps([name, length]))
        self.many = True

    def end(self) -> None:
        begin = self.array.tell() - 4 * self.rows * self.dim
        self.array.seek(0)
        self._header()
        assert self.array.tell() == begin, "the header grew"
        self.names.write("]}\n")


def _parquet(path: Path, embedder: Embedder, facts: dict[str, Any]) -> Iterator[EmbeddingWriter]:
    """Columns name, length and embedding (a list of fixed size, or one such list per position)."""
    pq = optional("pyarrow.parquet", "a Parquet file", "data")
    import pyarrow as pa

    vector = pa.list_(pa.float32(), embedder.dim)
    kind = vector if embedder.pool == "mean" else pa.list_(vector)
    fields = [("name", pa.string()), ("length", pa.int64()), ("embedding", kind)]
    schema = pa.schema(fields, metadata={"unmask": json.dumps(facts)})
    with pq.ParquetWriter(path, schema) as file:
        writer = _Parquet(file, schema, embedder)
        yield writer
        writer.flush()


class _Parquet:
    def __init__(self, file: Any, schema: Any, embedder: Embedder) -> None:
        self.file, self.schema, self.pooled = file, schema, embedder.pool == "mean"
        self.held: list[tuple[str, int, np.ndarray]] = []
        self.size = 0

    def add(self, name: str, length: int, vectors: np.ndarray) -> None:
        self.held.append((name, length, vectors))
        self.size += 1 if self.pooled else len(vectors)
        if self.size >= ROW_GROUP:
            self.flush()

    def flush(self) -> None:
        import pyarrow as pa

        if not self.held:
            return
        names, lengths, vectors = zip(*self.held, strict=True)
        kind = self.schema.field("embedding").type
        flat = pa.array(np.concatenate([vector.reshape(-1) for vector in vectors]))
        if self.pooled:
            column = pa.FixedSizeListArray.from_arrays(flat, type=kind)
        else:
            inner = pa.FixedSizeListArray.from_arrays(flat, type=kind.value_type)
            column = pa.ListArray.from_arrays(pa.array(np.cumsum([0, *lengths]), pa.int32()), inner, type=kind)
        table = pa.Table.from_arrays(
            [pa.array(names, pa.string()), pa.array(lengths, pa.int64()), column], schema=self.schema
        )
        self.file.write_table(table)
        self.held, self.size = [], 0
