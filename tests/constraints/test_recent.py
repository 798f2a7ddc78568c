"""What is kept of compiled forms."""

from __future__ import annotations

from dataclasses import dataclass

from unmask.constraints.recent import recent


@dataclass
class Piece:
    nbytes: int


def test_the_latest_results_are_kept_up_to_a_number_of_bytes(monkeypatch):
    monkeypatch.setattr("unmask.constraints.recent.MOST_BYTES", 100)
    made: list[int] = []

    @recent
    def piece(size: int) -> Piece:
        made.append(size)
        return Piece(size)

    first = piece(40)
    piece(41)
    assert piece(40) is first and made == [40, 41]
    piece(42)  # 41 is the one that was asked for longest ago
    assert piece(40) is first and made == [40, 41, 42]
    piece(41)
    large = piece(1000)
    assert piece(1000) is large and made == [40, 41, 42, 41, 1000]
    assert piece(40) is not first
