"""`unmask data`: list, show, prepare."""

import json

import pytest
from typer.testing import CliRunner

from unmask.cli import app
from unmask.data import online, overview
from unmask.data.overview import list_sets, prepare_set, settings_for, show
from unmask.data.records import CORPORA
from unmask.types import UserError

RUN = CliRunner()


@pytest.fixture
def ptb(tmp_path, monkeypatch):
    """A small PTB below UNMASK_DATA, and settings for bytes."""
    folder = tmp_path / "root" / "ptb"
    folder.mkdir(parents=True)
    for split in ("train", "valid", "test"):
        (folder / f"ptb.{split}.txt").write_text(f" it did n't {split} \n <unk> N of N times \n" * 3)
    monkeypatch.setenv("UNMASK_DATA", str(folder.parent))
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    return ["data.tokenizer=bytes", "data.length=16"]


def run(*words):
    """Exit code 0, and what is on standard output."""
    done = RUN.invoke(app, ["data", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_list():
    found = json.loads(run("list", "--json"))
    assert [one["name"] for one in found] == list(CORPORA)
    lm1b = next(one for one in found if one["name"] == "lm1b")
    assert (lm1b["tokenizer"], lm1b["length"], lm1b["layout"], lm1b["detokenizer"]) == (
        "bert-base-uncased",
        128,
        "pad",
        "lm1b",
    )
    assert lm1b["plays"] == {"valid": "test"}
    table = run("list").splitlines()
    assert len(table) == len(found) + 1
    for one, line in zip(found, table[1:], strict=True):
        assert line.split()[0] == one["name"]
        assert one["about"] in line
    assert "(not read yet)" in next(line for line in table if line.startswith("genomic_benchmarks"))
    assert list_sets() == found


def test_show(ptb):
    found = json.loads(run("show", "ptb", "--split", "valid", "-n", "2", "--json", *ptb))
    assert (found["detokenizer"], found["split"], found["splits"]) == ("ptb", "valid", ["train", "valid", "test"])
    first, second = found["texts"]
    assert (first["raw"], first["detokenized"]) == ("it did n't valid", "it didn't valid")
    assert (second["raw"], second["detokenized"]) == ("<unk> N of N times", "? 1 of 1 times")
    assert bytes(first["ids"]).decode() == "it didn't valid"
    stream = list(b"it didn't valid? 1 of 1 times") * 3
    room = 14
    assert [row["ids"] for row in found["rows"]] == [[256, *stream[i * room : (i + 1) * room], 256] for i in range(2)]
    assert found["rows"][0]["tokens"][0] == "[EOS]", "special tokens are visible"
    counts = found["counts"]
    assert (counts["documents"], counts["tokens"], counts["bytes"]) == (6, len(stream), len(stream))
    assert (counts["rows"], counts["dropped_tokens"]) == (len(stream) // room, len(stream) % room)
    assert counts["bytes_per_token"] == 1
    text = run("show", "ptb", "--split", "valid", "-n", "2", *ptb)
    assert "raw          it did n't valid\n" in text
    assert "detokenized  it didn't valid\n" in text
    assert "[EOS]|i|t| |d" in text
    assert "6 documents, 87 tokens, 6 rows, 1.00 bytes/token, 3 tokens in no row" in text


def test_show_of_padded_rows_and_labels_of_the_settings(ptb):
    found = show(settings_for("ptb", [*ptb, "data.layout=pad", "data.length=8"]), "train", 1)
    row = found["rows"][0]
    assert row["tokens"] == ["[EOS]", *"it did", "[EOS]"]
    assert row["counted"] == 8
    lengths = [len("it didn't train"), len("? 1 of 1 times")] * 3
    assert found["counts"]["dropped_tokens"] == sum(length - 6 for length in lengths)


def test_show_of_a_large_source_does_not_tokenize_it(ptb, monkeypatch, tmp_path):
    monkeypatch.setattr(overview, "COUNTED", 10)
    found = show(settings_for("ptb", ptb), "train", 1)
    assert found["counts"] is None
    assert len(found["rows"]) == 1
    assert not list((tmp_path / "cache").rglob("*.bin"))
    assert "not counted yet: unmask data prepare ptb" in run("show", "ptb", *ptb)
    prepare_set(settings_for("ptb", ptb), ["train"])
    assert show(settings_for("ptb", ptb), "train", 1)["counts"]["documents"] == 6, "what is in the cache is shown"


def test_show_of_a_file(ptb, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"line {i}"}) + "\n" for i in range(40)))
    found = show(settings_for(str(path), ["data.tokenizer=bytes", "data.length=4"]))
    assert [text["detokenized"] for text in found["texts"]] == [None] * 3
    assert (found["split"], found["texts"][0]["raw"]) == ("train", "line 0")


def test_prepare(ptb, tmp_path):
    found = json.loads(run("prepare", "ptb", "--json", *ptb))
    assert set(found["counts"]) == {"train", "valid", "test"}
    assert found["counts"]["test"]["documents"] == 6
    assert found["folder"].startswith(str(tmp_path / "cache"))
    assert sorted(p.name for p in (tmp_path / "cache").rglob("*.bin")) == ["test.bin", "train.bin", "valid.bin"]
    text = run("prepare", "ptb", "--split", "valid", *ptb)
    assert found["folder"] in text
    assert "train:" not in text
    short = prepare_set(settings_for("ptb", [*ptb, "data.length=4000"]))
    assert short["counts"]["valid"]["rows"] == 0
    assert "shorter than one block" in short["counts"]["valid"]["problem"]


def test_settings(ptb):
    assert settings_for("owt").source == "openwebtext"
    own, zero = settings_for("lm1b"), settings_for("lm1b", zero_shot=True)
    assert (own.layout, own.tokenizer, zero.layout, zero.tokenizer, zero.length) == (
        "pad",
        "bert-base-uncased",
        "wrap",
        "gpt2",
        1024,
    )
    assert zero.block_ends and not zero.eos_between and not zero.attend_pads
    assert not settings_for("lm1b", ["data.block_ends=false"], zero_shot=True).block_ends
    assert settings_for("book.txt").tokenizer == "bpe"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "ptbb"], r"did you mean 'ptb'\?"),
        (["show", "ptb", "data.lenght=3"], r"unknown config key 'data.lenght' \(did you mean 'data.length'\?\)"),
        (["show", "ptb", "train.steps=3"], r"'train.steps=3' is no setting of the data"),
        (["show", "ptb", "length"], "is not an override"),
        (["show", "ptb", "--split", "vaild"], "has no split 'vaild'.*valid"),
        (["prepare", "ptb", "--split", "vaild"], "has no split 'vaild'.*valid"),
        (["show", "ptb", "-n", "0"], "-n 0 must be at least 1"),
        (["show", "ptb", "data.detokenizer=lm1"], r"did you mean 'lm1b'\?"),
        (["show", "book.txt", "--zero-shot"], "--zero-shot belongs to a named data set"),
        (["show", "genomic_benchmarks"], "has no reader yet"),
        (["show", "hg38", "data.local=/gone"], "data.local=/gone is not a folder; set data.local to a folder with"),
        (["prepare", "c4"], "cannot be reached; set data.local=PATH or UNMASK_DATA=ROOT"),
        (["prepare", "ptb", "data.tokenizer=byte"], r"did you mean 'bytes'\?"),
    ],
)
def test_what_users_get_wrong(ptb, monkeypatch, words, message):
    monkeypatch.setattr(online, "reachable", lambda: False)
    with pytest.raises(UserError, match=message) as error:
        RUN.invoke(app, ["data", *words], catch_exceptions=False)
    assert "\n" not in str(error.value)
