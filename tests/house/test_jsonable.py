"""Values as JSON: one document that every reader accepts, whatever the figures are."""

from __future__ import annotations

import io
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from unmask.jsonable import described, finite, to_json


def strict(text: str):
    def refuse(word: str):
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


def test_what_json_cannot_express_is_null():
    value = {"a": [1.5, math.nan, (math.inf, -math.inf)], 2: {"b": math.nan}, "text": "NaN", "none": None, "on": True}
    expected = {"a": [1.5, None, [None, None]], "2": {"b": None}, "text": "NaN", "none": None, "on": True}
    assert finite(value) == expected
    for indent in (None, 1):
        assert strict(to_json(value, indent)) == expected


def test_text_stays_readable_and_a_compact_document_is_one_line():
    value = {"text": "привет 世界 é\u2028\n\r\x85\x9b \ud83d ☃"}
    text = to_json(value)
    assert "привет 世界 é" in text and text.isprintable() and text.encode() and len(text.splitlines()) == 1
    assert json.loads(text) == value
    plain = to_json(value, ascii=True)
    assert plain.isascii() and json.loads(plain) == value


def test_a_terminal_without_the_character_gets_it_escaped(monkeypatch):
    from unmask.cli.shared import print_json

    for encoding in ("utf-8", "ascii", "cp1252"):
        raw = io.BytesIO()
        with io.TextIOWrapper(raw, encoding) as out:
            monkeypatch.setattr(sys, "stdout", out)
            print_json({"text": "привет é"})
            out.flush()
            assert ("привет" in raw.getvalue().decode(encoding)) == (encoding == "utf-8")
            assert json.loads(raw.getvalue().decode(encoding)) == {"text": "привет é"}


def test_an_unknown_type_is_an_error_in_an_answer_and_text_in_a_report():
    with pytest.raises(TypeError):
        to_json({"a": Path("x")})
    assert described({"a": Path("x"), "b": {3, 1, 2}}) == {"a": "x", "b": [1, 2, 3]}


@dataclass
class Figures:
    mean: float
    rows: tuple


def test_a_report_says_inf_and_nan_in_words():
    figures = Figures(math.inf, (torch.tensor(2.5), np.float32(0.5), np.int64(3), math.nan))
    assert described({1: figures}) == {"1": {"mean": "inf", "rows": [2.5, 0.5, 3, "nan"]}}


def test_integers_that_a_browser_would_round_become_text():
    assert described([2**53 - 1, 2**53, -(2**53)], 2**53) == [2**53 - 1, str(2**53), str(-(2**53))]
    assert described(2**53) == 2**53
