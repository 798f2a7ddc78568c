"""N-gram judges against the recursive definition of back-off, and against pocketsphinx where it is installed."""

from __future__ import annotations

import gzip
import itertools
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from unmask.evaluation.judge import open_scorer
from unmask.evaluation.judge.formats.ngram import SENTENCE, Arpa, read_arpa, sentences
from unmask.types import UserError

ARPA = """made by hand
\\data\\
ngram 1=6
ngram 2=5
ngram 3=2

\\1-grams:
-99\t<s>\t-0.30
-0.70\t</s>
-0.60\tthe\t-0.25
-0.80\tcat\t-0.20
-0.90\tsat\t-0.10
-1.10\ton\t-0.15

\\2-grams:
-0.20\t<s> the\t-0.12
-0.35\tthe cat\t-0.05
-0.40\tcat sat\t-0.07
-0.50\tsat </s>
-0.45\tsat on

\\3-grams:
-0.10\t<s> the cat
-0.15\tthe cat sat

\\end\\
"""
WORDS = ["<s>", "</s>", "the", "cat", "sat", "on"]


def arpa_file(folder: Path, content: str = ARPA, name: str = "small.arpa") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    return path


def katz(word: str, history: tuple[str, ...]) -> float:
    """log10 p by the recursive definition, read from the text of the file itself."""
    rows = [line.split("\t") for line in ARPA.splitlines() if "\t" in line]
    known = {tuple(row[1].split()): (float(row[0]), float(row[2]) if len(row) > 2 else 0.0) for row in rows}
    history = history[-2:]
    if (*history, word) in known:
        return known[(*history, word)][0]
    return known.get(history, (0, 0.0))[1] + katz(word, history[1:])


@pytest.mark.parametrize("name", ["small.arpa", "small.lm.gz"])
def test_arpa_backs_off_as_katz_says(tmp_path, name):
    model = read_arpa(arpa_file(tmp_path, name=name))
    assert model.order == 3
    for length in range(4):
        for history in itertools.product(WORDS, repeat=length):
            for word in WORDS:
                assert model.nats(word, history) == pytest.approx(-katz(word, history) * math.log(10))


def test_running_text_becomes_sentences_of_known_words(tmp_path):
    scorer = open_scorer(str(arpa_file(tmp_path)))
    scored = scorer.nats(["The cat sat. “The” DOG sat on\nThe cat", "", "..."])
    expected = [
        ("the", ("<s>",)), ("cat", ("<s>", "the")), ("sat", ("the", "cat")), ("</s>", ("cat", "sat")),
        ("the", ("<s>",)), ("sat", ()), ("on", ("sat",)), ("</s>", ("sat", "on")),  # a dog is not known
        ("the", ("<s>",)), ("cat", ("<s>", "the")),  # the text ends here, the sentence does not
    ]  # fmt: skip
    assert scored[0].nats == pytest.approx(-sum(katz(*one) for one in expected) * math.log(10))
    assert scored[0][1:] == (10, 9, 1)
    assert scored[1] == scored[2] == (0.0, 0, 0, 0)
    about = scorer.describe()
    assert (about["case"], about["punctuation"]) == ("lower", "dropped")
    assert "left out" in about["unknown_words"]


def test_a_model_with_punctuation_and_unknown_words(tmp_path):
    unigrams = {"<unk>": -1.0, "The": -0.5, "cat": -0.6, ".": -0.4, ",": -0.7, "don't": -0.8}
    lines = [f"{value}\t{word}" for word, value in unigrams.items()]
    content = "\n".join(["\\data\\", f"ngram 1={len(lines)}", "", "\\1-grams:", *lines, "\\end\\"])
    scorer = open_scorer(f"arpa:{arpa_file(tmp_path, content)}")
    (scored,) = scorer.nats(["The dog, The cat don’t."])
    assert scored.nats == pytest.approx((0.5 + 1.0 + 0.7 + 0.5 + 0.6 + 0.8 + 0.4) * math.log(10))
    assert scored[1:] == (7, 7, 1)
    assert scorer.describe()["case"] == "kept" and scorer.describe()["punctuation"] == "words"


def test_sentences_end_where_one_expects():
    found = list(sentences('He said "no." Then?\n\nWell, yes!) and\nso'))
    assert found == [
        (["He", "said", '"no."'], True),
        (["Then?"], True),
        (["Well,", "yes!)"], True),
        (["and"], True),
        (["so"], False),
    ]
    assert not SENTENCE.search("1.5")


# -- pocketsphinx ----------------------------------------------------------------------------------------------------


def pretend_sphinx(arpa: Path) -> SimpleNamespace:
    """What we use of pocketsphinx: whole numbers to the base 1.0001, the word first and its history backwards."""
    zero = -(1 << 29)

    class NGramModel:
        def __init__(self, model: Arpa) -> None:
            self.model = model

        @staticmethod
        def readfile(path: str) -> NGramModel:
            if not path.endswith(".arpa"):
                raise ValueError
            return NGramModel(read_arpa(Path(path)))

        def size(self) -> int:
            return 3

        def prob(self, words: list[str]) -> int:
            if not self.model.knows(words[0]):
                return zero
            return round(-self.model.nats(words[0], words[:0:-1]) / math.log(1.0001))

    log = SimpleNamespace(get_zero=lambda: zero, log_to_ln=lambda value: value * math.log(1.0001))
    return SimpleNamespace(NGramModel=NGramModel, LogMath=lambda: log, get_model_path=lambda: str(arpa.parent))


def test_pocketsphinx_is_asked_in_its_own_way(tmp_path, monkeypatch):
    path = arpa_file(tmp_path)
    monkeypatch.setitem(sys.modules, "pocketsphinx", pretend_sphinx(path))
    texts = ["The cat sat. The dog sat on the cat", ""]
    theirs, ours = open_scorer(f"trigram:{path}"), open_scorer(f"arpa:{path}")
    for one, other in zip(theirs.nats(texts), ours.nats(texts), strict=True):
        assert one.nats == pytest.approx(other.nats, abs=1e-2)
        assert one[1:] == other[1:]
    (tmp_path / "bad.lm.bin").write_bytes(b"nothing")
    for where, why in (
        ("pocketsphinx", "en-us.lm.bin does not exist"),
        (str(tmp_path / "bad.lm.bin"), "damaged or no"),
    ):
        with pytest.raises(UserError, match=why):
            open_scorer(f"trigram:{where}")


def test_the_real_english_trigram(tmp_path):
    pytest.importorskip("pocketsphinx", reason="pocketsphinx is not installed (an optional judge)")
    path = arpa_file(tmp_path)
    theirs, ours = open_scorer(f"trigram:{path}").model, read_arpa(path)
    for history in [(), *itertools.product(WORDS, repeat=1), *itertools.product(WORDS, repeat=2)]:
        for word in WORDS[1:]:
            assert theirs.nats(word, history) == pytest.approx(ours.nats(word, history), abs=2e-4)
    scorer = open_scorer("trigram:pocketsphinx")
    real, shuffled = scorer.nats(["The president lives in the White House.", "lives House White. the in president The"])
    assert real.unknown == 0 and real.nats / real.tokens + 2 < shuffled.nats / shuffled.tokens


# -- what a user got wrong -------------------------------------------------------------------------------------------


def arpa_of(content: str, name: str = "small.arpa"):
    return lambda folder: f"arpa:{arpa_file(folder, content, name)}"


def no_text(folder: Path, name: str) -> Path:
    (folder / name).write_bytes(b"\xff\xfe no text \x80")
    return folder / name


MISTAKES = {
    "arpa missing": (lambda f: f"arpa:{f}/none.arpa", "none.arpa does not exist"),
    "arpa binary": (
        lambda f: f"arpa:{no_text(f, 'en.lm.bin')}",
        "is not an ARPA file in UTF-8; .* trigram: before",
    ),
    "arpa of text": (arpa_of("just some words\n"), r"is not an ARPA file: no \\data\\"),
    "arpa cut": (arpa_of(ARPA.partition("\\3")[0]), r"damaged: it ends before \\end\\"),
    "arpa counts": (arpa_of(ARPA.replace("ngram 2=5", "ngram 2=6")), "announces n-grams"),
    "arpa line": (arpa_of(ARPA.replace("-0.40\t", "x\t")), "damaged in line 18: no 2-gram"),
    "arpa not gzip": (lambda f: f"arpa:{no_text(f, 'x.arpa.gz')}", "damaged: it cannot be unpacked"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_sentence(mistake, tmp_path):
    make, why = MISTAKES[mistake]
    with pytest.raises(UserError, match=why) as caught:
        open_scorer(make(tmp_path))
    assert "\n" not in str(caught.value)


def test_pocketsphinx_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "pocketsphinx", None)
    with pytest.raises(UserError, match="needs the package pocketsphinx; pip install"):
        open_scorer("trigram:pocketsphinx")
