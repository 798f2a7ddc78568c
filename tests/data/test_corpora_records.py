"""Named data sets: records, the layouts they are distributed in, splits that are held out, and what users get wrong."""

import csv
import dataclasses
import gzip
import json
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.paths import DATA
from unmask.config import Config, DataConfig, parse
from unmask.data import corpora, dataset_files, online, records
from unmask.data.corpora import open_corpus
from unmask.data.records import CORPORA, ZERO_SHOT, record
from unmask.types import UserError

SHARED = DATA / "text"


@pytest.fixture(autouse=True)
def _no_root(monkeypatch):
    monkeypatch.delenv("UNMASK_DATA", raising=False)


@pytest.fixture
def spec(tmp_path):
    """A config of a set that lies in `tmp_path`/NAME, without its detokenizer."""

    def make(source, **settings):
        own = {"local": str(tmp_path / source), "detokenizer": "none", "cache": str(tmp_path / "cache")}
        return DataConfig(**{"source": source, **own, **settings})

    return make


def texts(corpus, split):
    return [piece.text for piece in corpus.documents(split)]


def write(folder, files):
    """Files by name; text as it is, bytes as they are, lists as JSON lines."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def parquet(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


# ---- the table


def test_the_paper_is_complete():
    wanted = [
        "lm1b",
        "openwebtext",
        "owt",
        "c4",
        "text8",
        "wikitext2",
        "wikitext103",
        "ptb",
        "lambada",
        "ag_news",
        "arxiv",
        "pubmed",
        "hg38",
        "genomic_benchmarks",
        "python-docs",
    ]
    for name in wanted:
        found = record(name)
        assert "\n" not in found.about
        assert DataConfig(**found.conventions).source == found.name
        assert found.unread or found.hub or name in ("python-docs", "hg38")
    assert {record(name) is CORPORA["openwebtext"] for name in ("owt", "openwebtext")} == {True}


def test_the_paper_says_so():
    """Appendix D.4 of the paper."""
    lm1b, owt, c4 = (DataConfig(**record(name).conventions) for name in ("lm1b", "owt", "c4"))
    assert (lm1b.tokenizer, lm1b.length, lm1b.layout, lm1b.attend_pads) == ("bert-base-uncased", 128, "pad", True)
    assert (owt.tokenizer, owt.length, owt.layout, owt.eos_between, owt.block_ends) == (
        "gpt2",
        1024,
        "wrap",
        True,
        True,
    )
    assert (c4.tokenizer, c4.length, c4.layout, c4.attend_pads) == ("bert-base-uncased", 128, "pad", False)
    assert record("owt").held_out == 100_000
    detokenizers = {title: record(name).detokenizer for title, name, _ in ZERO_SHOT}
    assert detokenizers == {
        "PTB": "ptb",
        "Wikitext": "wikitext",
        "LM1B": "lm1b",
        "Lambada": "lambada",
        "AG News": "scientific",
        "Pubmed": "scientific",
        "Arxiv": "scientific",
    }


def test_zero_shot_settings_are_laid_over_those_of_a_model():
    trained = DataConfig(
        source="reviews.jsonl",
        subset="x",
        field="body",
        label="stars",
        layout="pad",
        length=128,
        tokenizer="bytes",
        block_ends=True,
        attend_pads=True,
        detokenizer="ptb",
        document="line",
    )
    for _, name, split in ZERO_SHOT:
        laid = DataConfig(**{**trained.model_dump(), **record(name).zero_shot})
        assert (laid.source, laid.detokenizer, laid.field, laid.label, laid.subset) == (
            name,
            "auto",
            "text",
            None,
            None,
        )
        assert (laid.layout, laid.length, laid.eos_between, laid.attend_pads) == ("wrap", 1024, False, False)
        assert (laid.tokenizer, laid.block_ends) == ("bytes", True), "as the model was trained"
        assert split in record(name).splits


def test_records_cannot_be_changed_by_accident():
    with pytest.raises(dataclasses.FrozenInstanceError):
        record("ptb").field = "text"
    record("ptb").conventions["length"] = 3
    assert record("ptb").conventions["length"] == 1024


def test_old_configs_still_load():
    old = Config().model_dump(mode="json")
    for key in ("detokenizer", "local"):
        del old["data"][key]
    old["data"]["source"] = "dvruette/lm1b"
    made = parse(old).data
    assert (made.source, made.detokenizer, made.local) == ("dvruette/lm1b", "auto", None)


# ---- layouts as distributed


def test_wikitext_lines_are_the_rows_of_the_hub(tmp_path, spec):
    text = " \n = Title = \n \n Some words , here . \n"
    write(tmp_path / "wikitext2", {"train.txt": text, "valid.txt": " v \n", "test.txt": " <unk> \n"})
    corpus = open_corpus(spec("wikitext2"))
    assert corpus.splits == ("train", "valid", "test")
    assert texts(corpus, "train") == [" = Title = \n", " Some words , here . \n"], "space and line break stay"
    assert texts(corpus, "test") == [" <unk> \n"]
    rows = [row["text"] for _, row in dataset_files.rows("lines", tmp_path / "wikitext2/train.txt", "text", None)]
    assert rows == ["", " = Title = \n", "", " Some words , here . \n"], "blank lines are empty rows"
    write(tmp_path / "wikitext2", {"raw_test.txt": " rare \n"})
    assert texts(open_corpus(spec("wikitext2")), "test") == [" rare \n"], "the raw file is preferred"
    assert texts(open_corpus(spec("wikitext2", detokenizer="auto")), "train") == [
        " = Title =\n",
        " Some words, here.\n",
    ]


def test_sentences_are_stripped(tmp_path, spec):
    files = {f"ptb.{split}.txt": f" one {split} \n two \n" for split in ("train", "valid", "test")}
    write(tmp_path / "ptb", files)
    assert texts(open_corpus(spec("ptb")), "valid") == ["one valid", "two"]
    write(tmp_path / "lm1b", {"valid.txt": "A b .\n", "test.txt": "C d .\n"})
    corpus = open_corpus(spec("lm1b", detokenizer="auto"))
    assert (corpus.splits, texts(corpus, "valid"), texts(corpus, "test")) == (("valid", "test"), ["A b."], ["C d."])


def test_lm1b_as_its_authors_distribute_it(tmp_path, spec):
    root = tmp_path / "lm1b" / "1-billion-word-language-modeling-benchmark-r13output"
    write(
        root,
        {
            "training-monolingual.tokenized.shuffled/news.en-00001-of-00100": "one\n",
            "training-monolingual.tokenized.shuffled/news.en-00002-of-00100": "two\n",
            "heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050": "held\n",
            "README.txt": "no\n",
        },
    )
    corpus = open_corpus(spec("lm1b"))
    assert {split: texts(corpus, split) for split in corpus.splits} == {
        "train": ["one", "two"],
        "valid": ["held"],
        "test": ["held"],
    }


def test_lambada(tmp_path, spec):
    write(tmp_path / "lambada", {"lambada_test.jsonl": [{"text": " “Hi” \n"}]})
    corpus = open_corpus(spec("lambada", detokenizer="auto"))
    assert corpus.splits == ("valid", "test"), "test plays valid"
    assert texts(corpus, "valid") == texts(corpus, "test") == ['\n"Hi"']
    with pytest.raises(UserError, match="corpus 'lambada' has no split 'train'; it has valid, test"):
        corpus.documents("train")


def test_ag_news_is_the_text_of_the_hub(tmp_path, spec):
    (tmp_path / "ag_news").mkdir()
    with (tmp_path / "ag_news/test.csv").open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerows([("3", "A title", 'He said "no", twice'), ("1", "B", "two\nlines")])
    corpus = open_corpus(spec("ag_news"))
    assert texts(corpus, "valid") == ['A title He said "no", twice', "B two\nlines"]
    labelled = open_corpus(spec("ag_news", label="label", layout="pad"))
    assert [piece.label for piece in labelled.documents("test")] == ["Business", "World"]
    (tmp_path / "ag_news/test.csv").unlink()
    parquet(tmp_path / "ag_news/test.parquet", text=["A title"], label=[2])
    labelled = open_corpus(spec("ag_news", label="label", layout="pad"))
    assert [piece.label for piece in labelled.documents("test")] == ["Business"], "numbers from 0 in the Hub's files"


def test_scientific_papers(tmp_path, spec):
    papers = [{"article_id": "1", "article_text": ["one .", "two ."], "abstract_text": ["<S> x </S>"]}]
    split_files = {f"arxiv_{split}.txt": papers for split in ("train", "val", "test")}
    write(tmp_path / "scientific_papers", split_files)
    corpus = open_corpus(spec("arxiv", local=str(tmp_path)))
    assert corpus.splits == ("train", "valid", "test")
    assert texts(corpus, "valid") == ["one .\ntwo ."], "as the Hub joins them"
    with pytest.raises(UserError, match=r"does not hold 'pubmed'; expected pubmed_train\.txt"):
        open_corpus(spec("pubmed", local=str(tmp_path)))
    write(tmp_path / "pubmed-dataset", {"val.txt": [{"article_text": ["p"]}]})
    assert texts(open_corpus(spec("pubmed", local=str(tmp_path))), "valid") == ["p"]


def test_c4_shards(tmp_path, spec):
    shard = gzip.compress(b'{"text": "page", "url": "u"}\n')
    write(
        tmp_path / "c4", {"en/c4-train.00000-of-01024.json.gz": shard, "en/c4-validation.00000-of-00008.json.gz": shard}
    )
    corpus = open_corpus(spec("c4"))
    assert (corpus.splits, texts(corpus, "valid")) == (("train", "valid"), ["page"])


@pytest.mark.parametrize("form", ["plain", "zip", "splits"])
def test_text8(tmp_path, spec, monkeypatch, form):
    monkeypatch.setattr(dataset_files, "TEXT8", {"train": (0, 9), "valid": (9, 11), "test": (11, 14)})
    monkeypatch.setattr("unmask.data.readers.CHUNK", 4)
    text = "abcdefghijklmn"
    folder = write(tmp_path / "text8", {} if form == "splits" else {"note.md": ""})
    if form == "plain":
        write(folder, {"text8": text})
    elif form == "zip":
        with zipfile.ZipFile(folder / "text8.zip", "w") as archive:
            archive.writestr("text8", text)
    else:
        write(folder, {"text8.train.txt": text[:9], "text8.validation.txt": text[9:11], "text8.test.txt": text[11:]})
    corpus = open_corpus(spec("text8"))
    assert [texts(corpus, split) for split in ("train", "valid", "test")] == [["abcdefghi"], ["jk"], ["lmn"]]
    assert [piece.ends for piece in corpus.documents("test")] == [True]


def test_text8_must_be_whole():
    assert dataset_files.TEXT8 == {
        "train": (0, 90 * 10**6),
        "valid": (90 * 10**6, 95 * 10**6),
        "test": (95 * 10**6, 10**8),
    }


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv", "arrow", "save_to_disk"])
def test_tables(tmp_path, spec, kind):
    folder = tmp_path / "ptb"
    rows = {"train": ["a, b", "c\nd"], "validation": ["v"], "test": ["t", None]}
    if kind == "save_to_disk":
        import datasets

        made = {name: datasets.Dataset.from_dict({"sentence": own}) for name, own in rows.items()}
        datasets.DatasetDict(made).save_to_disk(str(folder))
    for name, own in rows.items() if kind != "save_to_disk" else ():
        path = folder / f"{name}-00000-of-00001.{kind}"
        if kind == "parquet":
            parquet(path, sentence=own)
        elif kind == "jsonl":
            write(folder, {path.name: [{"sentence": text} for text in own]})
        elif kind == "csv":
            folder.mkdir(exist_ok=True)
            with path.open("w", newline="") as file:
                csv.writer(file).writerows([("id", "sentence"), *enumerate(text or "" for text in own)])
        else:
            folder.mkdir(exist_ok=True)
            table = pa.table({"sentence": own})
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
    corpus = open_corpus(spec("ptb"))
    found = {split: texts(corpus, split) for split in corpus.splits}
    assert found == {"train": ["a, b", "c\nd"], "valid": ["v"], "test": ["t"]}


# ---- where a set is looked for


def test_folder_of_sets_and_environment(tmp_path, spec, monkeypatch):
    write(tmp_path / "root", {"ptb/ptb.train.txt": "one\n", "lambada/test.jsonl": [{"text": "x"}], "train.txt": "no\n"})
    assert texts(open_corpus(spec("ptb", local=str(tmp_path / "root"))), "train") == ["one"]
    with pytest.raises(UserError, match="does not hold 'ag_news'"):  # the other sets' files are not its own
        open_corpus(spec("ag_news", local=str(tmp_path / "root")))
    with pytest.raises(UserError, match="does not hold 'wikitext2'"):
        open_corpus(spec("wikitext2", local=str(tmp_path / "root")))
    monkeypatch.setattr(online, "reachable", lambda: False)
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path / "root"))
    assert texts(open_corpus(spec("ptb", local=None)), "train") == ["one"]
    with pytest.raises(UserError, match="Hub cannot be reached"):
        open_corpus(spec("c4", local=None))
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"UNMASK_DATA=.*nowhere is not a folder"):
        open_corpus(spec("ptb", local=None))
    write(tmp_path / "other", {"ptb/ptb.train.txt": "two\n"})
    assert texts(open_corpus(spec("ptb", local=str(tmp_path / "other"))), "train") == ["two"], "data.local goes first"


def test_a_folder_of_the_same_name_is_spoken_of(tmp_path, spec, monkeypatch, caplog):
    monkeypatch.chdir(write(tmp_path, {"ptb/ptb.train.txt": "here\n", "root/ptb/ptb.train.txt": "there\n"}))
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path / "root"))
    assert texts(open_corpus(spec("ptb", local=None)), "train") == ["there"]
    assert "write ./ptb" in caplog.text


# ---- OpenWebText: the last documents are held out


def short_owt(monkeypatch, held_out=3):
    monkeypatch.setitem(CORPORA, "openwebtext", dataclasses.replace(CORPORA["openwebtext"], held_out=held_out))


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize("sizes", [(10,), (4, 1, 3, 2), (8, 2), (9, 1)])
def test_the_last_documents_are_held_out_exactly(tmp_path, spec, monkeypatch, kind, sizes):
    short_owt(monkeypatch)
    every = [None if i == 8 else f"page {i}" for i in range(sum(sizes))]  # a row without text counts as a row
    start = 0
    for number, size in enumerate(sizes):
        own = every[start : start + size]
        path = tmp_path / "openwebtext" / f"train-{number:05}.{kind}"
        if kind == "parquet":
            parquet(path, text=own)
        else:
            write(path.parent, {path.name: [{"text": text} for text in own]})
        start += size
    corpus = open_corpus(spec("openwebtext"))
    assert corpus.splits == ("train", "valid")
    assert texts(corpus, "train") == [f"page {i}" for i in range(7)]
    assert texts(corpus, "valid") == ["page 7", "page 9"]


def test_too_few_to_hold_out(tmp_path, spec):
    parquet(tmp_path / "openwebtext/train.parquet", text=["a"] * 10)
    with pytest.raises(UserError, match=r"last 100,000 documents, but this copy has only 10; give its path"):
        next(open_corpus(spec("owt", local=str(tmp_path))).documents("train"))


# ---- the Hub


def pretend_hub(monkeypatch, splits):
    """A stand-in for `datasets.load_dataset`; gives the list of calls."""
    import datasets

    calls = []

    def load_dataset(*args, **settings):
        calls.append((args, settings))
        return datasets.DatasetDict({name: datasets.Dataset.from_dict(own) for name, own in splits.items()})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(online, "reachable", lambda: True)
    return calls


def test_hub_names(spec, monkeypatch):
    rows = {"sentence": ["did n't"], "text": ["did n't"], "article": ["did n't"]}
    calls = pretend_hub(monkeypatch, {"train": rows, "validation": rows, "test": rows})
    named = [name for name, found in CORPORA.items() if found.hub and not found.held_out]
    for name in named:
        assert texts(open_corpus(spec(name, local=None)), "valid") == ["did n't"]
    assert texts(open_corpus(spec("ptb", local=None, detokenizer="auto")), "valid") == ["didn't"]
    by_name = dict(zip(named, calls, strict=False))
    assert by_name["wikitext2"][0] == ("Salesforce/wikitext", "wikitext-2-raw-v1")
    assert by_name["ptb"][1]["revision"] == records.PARQUET
    assert by_name["arxiv"][1]["data_files"]["validation"] == "arxiv/validation/*.parquet"
    assert not any("trust_remote_code" in settings for _, settings in calls)


def test_hub_splits_that_are_played_or_held_out(spec, monkeypatch):
    calls = pretend_hub(monkeypatch, {"train": {"text": ["a"]}, "test": {"text": ["b"]}})
    corpus = open_corpus(spec("lm1b", local=None))
    assert (corpus.splits, texts(corpus, "valid")) == (("train", "valid", "test"), ["b"])
    short_owt(monkeypatch)
    pretend_hub(monkeypatch, {"train": {"text": [f"page {i}" for i in range(10)]}})
    corpus = open_corpus(spec("owt", local=None))
    assert (corpus.splits, texts(corpus, "valid")) == (("train", "valid"), ["page 7", "page 8", "page 9"])
    assert len(texts(corpus, "train")) == 7
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["lm1b", "lambada", "wikitext2", "ptb"])
def test_no_network_and_no_copy_names_both_ways_out(spec, monkeypatch, tmp_path, name):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(online, "reachable", lambda: False)
    with pytest.raises(UserError) as error:
        open_corpus(spec(name, local=None))
    said = str(error.value)
    assert "cannot be reached" in said
    assert all(way in said for way in ("data.local=PATH", "UNMASK_DATA=ROOT", "network"))
    assert "\n" not in said


@pytest.mark.parametrize("hidden", [False, True])
def test_a_full_disk_while_downloading(spec, monkeypatch, hidden):
    import datasets

    def load_dataset(*args, **settings):
        full = OSError(28, "No space left on device")
        if hidden:
            raise datasets.exceptions.DatasetGenerationError("An error occurred") from full
        raise full

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(online, "reachable", lambda: True)
    with pytest.raises(UserError, match="no space for data set 'ptb'; set HF_HOME"):
        open_corpus(spec("ptb", local=None))


# ---- what users get wrong


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("lmb1", "lm1b"),
        ("openwebtxt", "openwebtext"),
        ("wikitext_2", "wikitext-2"),
        ("ag-news", "ag_news"),
        ("PubMed", "pubmed"),
    ],
)
def test_a_typo_names_the_nearest(typed, meant, spec):
    with pytest.raises(UserError, match=rf"did you mean '{meant}'\?"):
        open_corpus(spec(typed, local=None))
    if typed != "PubMed":
        with pytest.raises(UserError, match="did you mean"):
            record(typed)


def test_local_paths(tmp_path, spec):
    write(tmp_path, {"empty/readme.md": "x", "a.txt": "text"})
    cases = [
        ({"source": "ptb", "local": str(tmp_path / "gone")}, r"data\.local=.*gone does not exist; give the folder"),
        ({"source": "ptb", "local": str(tmp_path / "empty")}, r"does not hold 'ptb'; expected ptb\.train\.txt"),
        ({"source": str(tmp_path / "a.txt"), "local": str(tmp_path)}, "belongs to a named data set"),
    ]
    for settings, message in cases:
        with pytest.raises(UserError, match=message):
            open_corpus(spec(**settings))


def test_settings_that_do_not_fit(tmp_path, spec):
    write(tmp_path / "ptb", {"ptb.train.txt": "one\n"})
    parquet(tmp_path / "lm1b/train.parquet", text=["x"])
    cases = [
        (spec("ptb", detokenizer="pbt"), r"unknown detokenizer 'pbt' \(did you mean 'ptb'\?\)"),
        (spec("lm1b", field="txt"), r"no field 'txt' \(did you mean 'text'\?\)"),
        (spec("ptb", label="label", layout="pad"), r"plain text without columns"),
        (spec("genomic_benchmarks"), "has no reader yet; give data.source=FILE"),
    ]
    for settings, message in cases:
        with pytest.raises(UserError, match=message):
            open_corpus(settings)
    with pytest.raises(UserError, match=r"has no split 'vaild' \(did you mean 'valid'\?\)|it has train"):
        open_corpus(spec("ptb")).documents("vaild")


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        ("ag_news", {"test.csv": '"3","a"\n'}, "line 1 of .*test.csv is not a class"),
        ("ag_news", {"test.csv": '"3","a","b"\n"4","c","d'}, r"line 2 of .*test.csv is damaged \(unexpected end"),
        ("ag_news", {"test.csv": '"9","a","b"\n'}, "line 1 of .* is not a class"),
        ("ptb", {"train.csv": "sentence,n\na,1\nb\n"}, "line 3 of .* has 1 cells for 2 columns"),
        ("ptb", {"train.csv": "text,n\na,1\n"}, "has no field 'sentence'"),
        ("lm1b", {"train.parquet": b"PAR1 not really"}, "cannot be read as a Parquet file"),
        ("openwebtext", {"train.parquet": b"PAR1 not really"}, "cannot be read as a Parquet file"),
        ("ptb", {"train.arrow": b"ARROW1 not really"}, "cannot be read as an Arrow file"),
        ("lambada", {"test.jsonl": '{"text": "a"}\n{"text": '}, "line 2 of .* is not JSON"),
        ("arxiv", {"arxiv_val.txt": '{"article_id": 1}\n'}, "line 1 of .* is not a paper"),
        ("text8", {"text8": "too short"}, "ends after 9 characters, text8 has 100,000,000"),
        ("text8", {"text8.zip": b"PK not a zip"}, "is not text8 or its zip file"),
        ("wikitext2", {"train.txt": b" = \xff = \n"}, "is not UTF-8 text"),
        ("ptb", {"ptb.train.txt": " \n"}, "holds no text"),
    ],
)
def test_damaged_files(tmp_path, spec, name, files, message):
    def read():
        corpus = open_corpus(spec(name))
        return list(corpus.documents(corpus.splits[0]))

    write(tmp_path / name, files)
    with pytest.raises(UserError, match=message) as error:
        read()
    assert "\n" not in str(error.value)


# ---- detokenizers on one's own files


def test_own_files_with_a_detokenizer(tmp_path):
    whole = {"valid_fraction": 0, "test_fraction": 0, "cache": str(tmp_path / "cache")}
    path = write(tmp_path, {"a.txt": " = A = \n one , two . \nlast one ,"}) / "a.txt"

    def read(**settings):
        return texts(open_corpus(DataConfig(source=str(path), **whole, **settings)), "train")

    assert read() == read(detokenizer="none") == [path.read_text()], "nothing happens unless it is asked for"
    assert read(detokenizer="wikitext") == [" = A =\n one, two.\nlast one ,"], "line by line"
    assert read(detokenizer="wikitext", document="line") == [" = A = ", " one, two. ", "last one ,"]
    rows = write(tmp_path, {"b.jsonl": [{"text": "did n't"}]}) / "b.jsonl"
    assert texts(open_corpus(DataConfig(source=str(rows), detokenizer="ptb", **whole)), "train") == ["didn't"]


def test_fingerprints_know_detokenizer_and_content(tmp_path, spec):
    write(tmp_path, {"ptb/ptb.train.txt": "one\n", "copy/ptb.train.txt": "one\n", "other/ptb.train.txt": "two\n"})

    def print_of(**settings):
        return open_corpus(spec("ptb", **settings)).fingerprint

    assert print_of() == print_of(local=str(tmp_path / "copy"))
    assert (
        len(
            {
                print_of(),
                print_of(detokenizer="ptb"),
                print_of(detokenizer="lm1b"),
                print_of(local=str(tmp_path / "other")),
            }
        )
        == 4
    )
    assert print_of(detokenizer="auto") == print_of(detokenizer="ptb")


# ---- the real files


@pytest.mark.skipif(not SHARED.exists(), reason=f"{SHARED} is not on this machine")
def test_the_real_files(tmp_path):
    """Rows as counted in the README beside the files, and the first words of each set."""
    expected = {
        ("ptb", "valid"): (3370, "consumers may want"),
        ("wikitext2", "test"): (2891, " = Robert Boulter =\n"),
        ("lm1b", "test"): (12_105, "BAGHDAD -- An Iraqi military commander on Monday compared new restrictions on the "
                                   'U.S. military to "house arrest," saying'),
        ("lambada", "test"): (5153, "\nIn my palm is a clear stone"),
        ("ag_news", "test"): (7600, "Fears for T 1 pension after talks Unions representing"),
        ("arxiv", "valid"): (2, "the interest in anchoring phenomena"),
        ("pubmed", "valid"): (2, "approximately, one - third of patients"),
    }  # fmt: skip
    for (name, split), (count, begins) in expected.items():
        corpus = open_corpus(DataConfig(source=name, local=str(SHARED), cache=str(tmp_path)))
        pieces = list(corpus.documents(split))
        assert sum(piece.ends for piece in pieces) == count, name
        assert pieces[0].text.startswith(begins), name
    assert corpora.CORPORA is CORPORA
