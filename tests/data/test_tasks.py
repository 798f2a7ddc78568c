"""Tasks as records, the paper's average, and examples as tokens: compared with `transformers` on real rows."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from support.paths import DATA
from unmask.data import tasks
from unmask.data.tasks.encoding import longest_first
from unmask.data.tokenization import Tokenizer, bytes_tokenizer, read_tokenizer
from unmask.types import UserError, Vocab

shared = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data are not on this machine")

# ---- records


def test_the_eight_tasks_of_the_paper():
    found = {task.title: (task.metric, len(task.labels), task.pairs, task.n_outputs) for task in tasks.glue()}
    assert found == {
        "MNLI": ("accuracy", 3, True, 3),
        "QQP": ("f1", 2, True, 2),
        "QNLI": ("accuracy", 2, True, 2),
        "SST-2": ("accuracy", 2, False, 2),
        "CoLA": ("matthews", 2, False, 2),
        "STS-B": ("spearman", 0, True, 1),
        "MRPC": ("f1", 2, True, 2),
        "RTE": ("accuracy", 2, True, 2),
    }
    assert [task.title for task in tasks.glue() if task.regression] == ["STS-B"]
    assert tasks.task("glue/mnli").evaluations == ("dev", "dev-mismatched")
    assert tasks.task("glue/mnli").labels == ("entailment", "neutral", "contradiction")
    assert [tasks.task(name) for name in tasks.TASKS][:8] == list(tasks.glue())


def test_records_agree_with_themselves():
    for task in tasks.glue():
        assert task.version >= 1 and set(task.metrics) <= set(tasks.METRICS)
        assert set(task.hub_splits) == set(task.splits) == set(task.rows) and set(task.evaluations) <= set(task.splits)
        assert {split for form in task.forms for split in form.files} == set(task.splits)
        assert task.regression == (task.span is not None) and task in {task}
        assert all((form.columns.second is not None) == task.pairs for form in task.forms)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("glue/sst", r"unknown task 'glue/sst' \(did you mean 'glue/sst2'\?\); the tasks are glue/mnli, "),
        ("SST-2", r"did you mean 'glue/sst2'\?"),
        ("MNLI", r"did you mean 'glue/mnli'\?"),
        ("cola", r"did you mean 'glue/cola'\?"),
        ("glue/wnli", r"the paper leaves WNLI out of GLUE, and so does unmask; the tasks are"),
        ("wnli", r"leaves WNLI out"),
        ("xyz", r"unknown task 'xyz'; the tasks are"),
    ],
)
def test_unknown_tasks(typed, said):
    with pytest.raises(UserError, match=said) as error:
        tasks.task(typed)
    assert "\n" not in str(error.value)


def test_records_need_no_optional_package():
    code = (
        "import sys, unmask.data.tasks as t; t.task('glue/rte'); t.average({}); "
        "assert not {'sklearn', 'scipy', 'datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


PAPER = {  # table 4: MNLI-m, MNLI-mm, QQP, QNLI, SST-2, CoLA, STS-B, MRPC, RTE, average
    "AR": (80.94, 80.78, 86.98, 86.16, 90.14, 33.43, 84.32, 83.88, 47.29, 74.88),
    "BERT": (84.43, 85.35, 88.41, 90.46, 92.20, 54.81, 88.41, 89.16, 61.37, 81.62),
    "BERT + MDLM": (84.76, 85.07, 88.49, 90.30, 92.20, 57.69, 87.48, 90.53, 62.09, 82.06),
}


@pytest.mark.parametrize("row", PAPER)
def test_the_average_is_the_papers(row):
    *numbers, printed = PAPER[row]
    results = {name: value / 100 for name, value in zip(tasks.NUMBERS, numbers, strict=True)}
    assert tasks.average(results) == pytest.approx(printed, abs=0.01)
    assert tasks.average({name: results[name] for name in tasks.NUMBERS[1:]}) is None


def test_numbers_and_what_is_no_number():
    assert tasks.NUMBERS == ("MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE")
    assert tasks.number(tasks.task("glue/mnli"), "dev-mismatched") == "MNLI-mm"
    assert tasks.number(tasks.task("glue/rte")) == "RTE"
    with pytest.raises(UserError, match=r"'SST2' is not a number of the paper's GLUE table \(did you mean 'SST-2'\?\)"):
        tasks.average({"SST2": 0.9})
    with pytest.raises(UserError, match=r"RTE=62\.1 is not a fraction"):
        tasks.average({"RTE": 62.1})


# ---- tokens

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(40))]


def words_backend() -> Backend:
    backend = Backend(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return backend


def words_tokenizer() -> Tokenizer:
    return Tokenizer(words_backend(), Vocab(len(WORDS), mask=4, pad=0, bos=2, eos=3), "words")


def words_reference():
    """BERT's own template in `transformers`."""
    from transformers import PreTrainedTokenizerFast

    backend = words_backend()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, mask_token="[MASK]", **names)


def compare(examples, tokenizer, reference, length) -> int:
    """Equal ids and types for every example; gives how many `transformers` cut."""
    encoded = tasks.encode(examples, tokenizer, length)
    first, second = [one.first for one in examples], [one.second for one in examples]
    pair = None if second[0] is None else second
    wanted = reference(first, pair, truncation=True, max_length=length, return_token_type_ids=True)
    whole = reference(first, pair)["input_ids"]
    for i in range(len(examples)):
        assert encoded.ids(i).tolist() == wanted["input_ids"][i]
        assert encoded.types(i).tolist() == wanted["token_type_ids"][i]
    cut = sum(len(a) != len(b) for a, b in zip(whole, wanted["input_ids"], strict=True))
    assert encoded.cut == cut == encoded.describe()["cut_examples"]
    return cut


def text(n: int, start: int) -> str:
    return " ".join(f"w{(start + i) % 40}" for i in range(n))


@pytest.mark.parametrize("length", [5, 10, 11])
def test_cut_as_transformers_does_for_all_lengths(length):
    tokenizer, reference = words_tokenizer(), words_reference()
    pairs = [tasks.Example(text(a, 0), text(b, 20), 0, 0) for a in range(length + 3) for b in range(length + 3)]
    assert compare(pairs, tokenizer, reference, length) > 0
    singles = [tasks.Example(text(a, 0), None, 0, 0) for a in range(length + 3)]
    assert compare(singles, tokenizer, reference, length) == 4


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 300))
def test_longest_first_one_token_at_a_time(a, b, room):
    """The rule by its name: take a token from the longer text until both fit (what differs is a tie's last token)."""
    x, y = a, b
    while x + y > room:
        x, y = (x - 1, y) if x > y else (x, y - 1)
    kept = longest_first(a, b, room)
    assert sum(kept) == x + y and abs(kept[0] - x) <= 1
    assert kept == (a, b) or min(kept) == min(x, y)


@shared
@pytest.mark.parametrize(
    ("name", "split", "length"),
    [("rte", "dev", 128), ("rte", "dev", 17), ("qnli", "dev", 64), ("cola", "dev", 16), ("stsb", "dev", 128)],
)
def test_real_rows_as_bert_reads_them(name, split, length):
    from transformers import BertTokenizerFast

    folder = DATA / "tokenizers/bert-base-uncased"
    examples = tasks.load(tasks.task(f"glue/{name}"), split, str(DATA / "glue")).examples[:1000]
    cut = compare(examples, read_tokenizer(folder), BertTokenizerFast.from_pretrained(folder), length)
    assert 0 < cut < len(examples) or name == "stsb"


def some_examples(n: int) -> list[tasks.Example]:
    return [tasks.Example(text(i % 7, i), text(i % 5, 2 * i), i % 3, i) for i in range(n)]


def test_a_batch_is_its_rows_and_pads():
    encoded = tasks.encode(some_examples(20), words_tokenizer(), 9)
    chosen = np.array([19, 3, 0, 8])
    batch = encoded.batch(chosen, np.arange(100, 104), 400)
    assert batch.tokens.dtype == batch.types.dtype == batch.label.dtype == torch.int64
    assert batch.index.tolist() == [100, 101, 102, 103] and batch.total == 400 and batch.scored is None
    assert batch.tokens.shape[1] == max(len(encoded.ids(i)) for i in chosen)
    for row, i in enumerate(chosen):
        size = len(encoded.ids(i))
        assert batch.tokens[row, :size].tolist() == encoded.ids(i).tolist()
        assert batch.types[row, :size].tolist() == encoded.types(i).tolist()
        assert batch.present[row].tolist() == [j < size for j in range(batch.tokens.shape[1])]
        assert (batch.tokens[row, size:] == 0).all() and (batch.types[row, size:] == 0).all()
    assert batch.label.tolist() == [i % 3 for i in chosen]
    assert encoded.labels.tolist() == [i % 3 for i in range(20)] and len(encoded) == 20
    narrow = encoded.batch([0], torch.tensor([5]), 20)
    assert narrow.tokens.tolist() == [[2, 3, 3]] and narrow.types.tolist() == [[0, 0, 1]]


def test_labels_of_scores_and_hidden_ones():
    examples = [tasks.Example("w1", "w2", label, 0) for label in (2.5, None, 0.0)]
    encoded = tasks.encode(examples, words_tokenizer(), 16)
    assert encoded.labels.dtype == np.float32 and encoded.batch([0, 2], np.arange(2), 2).label.dtype == torch.float32
    np.testing.assert_array_equal(encoded.labels, np.array([2.5, np.nan, 0.0], dtype=np.float32))
    hidden = tasks.encode([tasks.Example("w1", None, label, 0) for label in (1, None)], words_tokenizer(), 16)
    assert hidden.labels.dtype == np.int64 and hidden.labels.tolist() == [1, -1]


def test_special_tokens_in_a_text_are_text():
    encoded = tasks.encode([tasks.Example("[SEP] w1 [MASK]", None, 0, 0)], words_tokenizer(), 16)
    ids = encoded.ids(0).tolist()
    assert ids[0] == 2 and ids[-1] == 3 and 3 not in ids[1:-1] and 4 not in ids


def test_our_own_tokenizers_have_ends_too():
    tokenizer = bytes_tokenizer()
    eos = tokenizer.vocab.eos
    encoded = tasks.encode([tasks.Example("ab", "c", 0, 0)], tokenizer, 16)
    assert encoded.ids(0).tolist() == [eos, 97, 98, eos, 99, eos] and encoded.pad == tokenizer.vocab.pad


def test_what_cannot_be_encoded():
    bare = Tokenizer(words_backend(), Vocab(len(WORDS), mask=4), "bare")
    with pytest.raises(UserError, match=r"tokenizer 'bare' has no beginning and end of text.*use a model"):
        tasks.encode(some_examples(2), bare, 16)
    with pytest.raises(UserError, match=r"task.length=4 leaves no room for text; give at least 5"):
        tasks.encode(some_examples(2), words_tokenizer(), 4)


def test_without_a_pad_token_absent_places_are_still_absent():
    tokenizer = Tokenizer(words_backend(), Vocab(len(WORDS), mask=4, bos=2, eos=3), "no pads")
    batch = tasks.encode(some_examples(5), tokenizer, 16).batch([0, 4], np.arange(2), 5)
    assert (batch.tokens[~batch.present] == 3).all() and (~batch.present).any()
