"""Values as JSON: one document that every reader accepts, whatever the figures are."""

from __future__ import annotations

import json
import math
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


def test_a_document_is_ascii_and_a_compact_one_has_no_line_breaks():
    text = to_json({"text": "é\u2028\n\r☃"})
    assert text.isascii() and text.isprintable() and json.loads(text)["text"] == "é\u2028\n\r☃"


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
