"""Drafted tokens as a tree, and the columns in which one network call reads all of its paths.

Vertex 0 is the text so far; any other is a token that may follow its parent. A path from the root is one way in which
the text may go on. A call asks what follows each vertex: a mask that sees the path, the law of one more token. After
some vertices it also asks several masks together, from which the next call's tree is drafted if the path ends there.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .sampler import SlotColumns

COLUMNS = 24  # that take as long as what a call costs without them: measured 24 to 30 at OWT size, 46 at 5M weights
Ranked = tuple[list[int], list[float]]  # tokens for one place, the likeliest first, and the chance of each


@dataclass
class DraftTree:
    """Vertices in the order in which they were added: a parent comes before its children."""

    parents: list[int] = field(default_factory=lambda: [-1])
    tokens: list[int] = field(default_factory=lambda: [-1])
    depths: list[int] = field(default_factory=lambda: [0])
    chances: list[float] = field(default_factory=lambda: [1.0])  # that the text goes this way
    ends: list[float] = field(default_factory=lambda: [1.0])  # that it goes this way, and no further in the tree
    children: dict[tuple[int, int], int] = field(default_factory=dict)  # by parent and token

    def __len__(self) -> int:
        return len(self.tokens) - 1  # drafted tokens

    def add(self, parent: int, token: int, chance: float) -> int:
        """Add a child, and return its number."""
        vertex = self.children[parent, token] = len(self.tokens)
        self.parents.append(parent)
        self.tokens.append(token)
        self.depths.append(self.depths[parent] + 1)
        self.chances.append(chance)
        self.ends.append(chance)
        self.ends[parent] -= chance
        return vertex

    def path(self, vertex: int) -> list[int]:
        """The vertices from the root to this one."""
        return [vertex] if not vertex else [*self.path(self.parents[vertex]), vertex]

    def offered(self, vertex: int) -> float:
        """The chance that a text which goes this way goes on in the tree."""
        return 1 - self.ends[vertex] / self.chances[vertex] if vertex in self.parents else 0.0

    @property
    def pace(self) -> float:
        """Tokens that a call writes, for the time that it takes, if nothing is drafted for the next."""
        return sum(self.chances) / (1 + (2 * len(self) + 2) / COLUMNS)


def grow(places: Sequence[Ranked], most: int, *, for_time: bool) -> DraftTree:
    """The likeliest tree of at most so many drafted tokens; `for_time`, with no more than are worth their time.

    The tokens of a place do not depend on those drafted before it, so a path is as likely as the product of its places.
    """
    tree = DraftTree()
    waiting = [(-places[0][1][0], 0, 0)] if places else []  # (-chance, parent, rank at its place)
    while waiting and len(tree) < most:
        chance, parent, rank = heapq.heappop(waiting)
        if not chance or (for_time and -chance <= 2 * tree.pace / COLUMNS):
            break
        depth = tree.depths[parent]
        tokens, chances = places[depth]
        vertex = tree.add(parent, tokens[rank], -chance)
        if rank + 1 < len(tokens):
            heapq.heappush(waiting, (-tree.chances[parent] * chances[rank + 1], parent, rank + 1))
        if depth + 1 < len(places):
            heapq.heappush(waiting, (chance * places[depth + 1][1][0], vertex, 0))
    return tree


@dataclass(frozen=True)
class TreeColumns:
    """The columns of a tree: its tokens, then what is asked after each vertex."""

    tokens: Tensor  # (n,)
    columns: SlotColumns
    single: list[int]  # by vertex: the column of the mask that sees the path alone
    together: list[range]  # by vertex: the columns of masks for the places after that one


def lay_out(tree: DraftTree, start: int, ahead: Sequence[int], mask: int) -> TreeColumns:
    """The columns of a tree after `start` tokens, with so many masks for later places after each vertex."""
    n = len(tree)
    single, together, place = [], [], [start + depth - 1 for depth in tree.depths[1:]]
    for depth, count in zip(tree.depths, ahead, strict=True):
        single.append(len(place))
        together.append(range(len(place) + 1, len(place) + 1 + count))
        place += range(start + depth, start + depth + count + 1)
    sees = torch.eye(len(place), dtype=torch.bool)
    for vertex, parent in enumerate(tree.parents):
        if vertex:
            if parent:
                sees[vertex - 1] |= sees[parent - 1]
            sees[single[vertex], :n] = sees[vertex - 1, :n]
        later = together[vertex]
        sees[later.start : later.stop] |= sees[single[vertex]]
        sees[later.start : later.stop, later.start : later.stop] = True
    tokens = torch.tensor([*tree.tokens[1:], *[mask] * (len(place) - n)])
    return TreeColumns(tokens, SlotColumns(torch.tensor(place), sees), single, together)
