"""Task files in every official layout, the Hub's columns in three formats, the real sets, and everything wrong."""

from __future__ import annotations

import csv
import json
import logging
import zipfile
from pathlib import Path

import pytest

from support.paths import DATA
from unmask.data import online, tasks
from unmask.data.records import Hub
from unmask.types import UserError

SHARED = DATA / "glue"
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the GLUE files are not on this machine")
MNLI = [
    "index",
    "promptID",
    "pairID",
    "genre",
    "sentence1_binary_parse",
    "sentence2_binary_parse",
    "sentence1_parse",
    "sentence2_parse",
    "sentence1",
    "sentence2",
]
STS = ["index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2"]
MRPC = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]


@pytest.fixture(autouse=True)
def _nowhere_else(monkeypatch):
    monkeypatch.delenv("UNMASK_DATA", raising=False)


def put(path: Path, *rows: list[str] | str, start: str = "", newline: str = "\n") -> Path:
    """A file of tab-separated rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [row if isinstance(row, str) else "\t".join(row) for row in rows]
    path.write_bytes((start + "".join(line + newline for line in lines)).encode())
    return path


def plain(name: str, split: str, local: Path) -> list[tuple[str, str | None, int | float | None]]:
    found = tasks.load(tasks.task(name), split, str(local)).examples
    assert [one.index for one in found] == list(range(len(found)))
    return [(one.first, one.second, one.label) for one in found]


def refused(name: str, split: str, local: Path | str | None) -> str:
    with pytest.raises(UserError) as error:
        tasks.load(tasks.task(name), split, None if local is None else str(local))
    said = str(error.value)
    assert "\n" not in said
    return said


# ---- the official layouts


def test_sst2_has_a_header_and_spaces_at_the_end(tmp_path):
    put(tmp_path / "SST-2/train.tsv", "sentence\tlabel", 'a " charming \t1', "bleak \t0", 'no " end \t0')
    put(tmp_path / "SST-2/test.tsv", "index\tsentence", "0\tuneasy .")
    want = [('a " charming ', None, 1), ("bleak ", None, 0), ('no " end ', None, 0)]
    assert plain("glue/sst2", "train", tmp_path) == plain("glue/sst2", "train", tmp_path / "SST-2") == want
    assert plain("glue/sst2", "test", tmp_path) == [("uneasy .", None, None)]


def test_cola_has_no_header(tmp_path):
    put(tmp_path / "CoLA/train.tsv", ["gj04", "1", "", 'Mary said "go.'], ["gj04", "0", "*", "Her go."])
    put(tmp_path / "CoLA/dev.tsv", ["gj04", "1", "", "The sailors rode."])
    put(tmp_path / "CoLA/test.tsv", "index\tsentence", "0\tBill whistled.")
    assert plain("glue/cola", "train", tmp_path) == [('Mary said "go.', None, 1), ("Her go.", None, 0)]
    assert plain("glue/cola", "dev", tmp_path) == [("The sailors rode.", None, 1)]
    assert plain("glue/cola", "test", tmp_path) == [("Bill whistled.", None, None)]


def test_cola_in_two_training_files_is_joined_only_if_that_is_the_official_set(tmp_path):
    many = [["s", "1", "", f"Sentence {i}."] for i in range(8550)]
    put(tmp_path / "train.tsv", *many[:7000])
    put(tmp_path / "val.tsv", *many[7000:])
    facts = tasks.load(tasks.task("glue/cola"), "train", str(tmp_path)).facts
    assert facts["rows"] == 7000 and "7,000, where the official split has 8,551" in facts["rule"]
    put(tmp_path / "val.tsv", *many[7000:], ["s", "0", "*", "The last."])
    loaded = tasks.load(tasks.task("glue/cola"), "train", str(tmp_path))
    assert loaded.facts["rows"] == 8551 and loaded.examples[-1].first == "The last."
    assert loaded.facts["rule"] == "the official split: train.tsv and val.tsv together"
    assert [Path(path).name for path in loaded.facts["source"]] == ["train.tsv", "val.tsv"]


def test_mnli_has_columns_in_different_places_and_two_dev_sets(tmp_path):
    row = ["0", "1", "1n", "fiction", "( a )", "( b )", "(ROOT a)", "(ROOT b)"]
    put(tmp_path / "MNLI/train.tsv", [*MNLI, "label1", "gold_label"], [*row, "A.", "B.", "neutral", "contradiction"])
    five = ["label1", "label2", "label3", "label4", "label5", "gold_label"]
    put(
        tmp_path / "MNLI/dev_matched.tsv",
        [*MNLI, *five],
        [*row, "M.", "N.", *["neutral"] * 5, "entailment"],
        [*row, "X.", "Y.", *["neutral"] * 5, "-"],
    )
    put(tmp_path / "MNLI/dev_mismatched.tsv", [*MNLI, *five], [*row, "O.", "P.", *["entailment"] * 5, "neutral"])
    put(tmp_path / "MNLI/test_mismatched.tsv", MNLI, [*row, "Q.", "R."])
    assert plain("glue/mnli", "train", tmp_path) == [("A.", "B.", 2)]
    assert plain("glue/mnli", "dev", tmp_path) == [("M.", "N.", 0)]
    assert plain("glue/mnli", "dev-mismatched", tmp_path) == [("O.", "P.", 1)]
    assert plain("glue/mnli", "test-mismatched", tmp_path) == [("Q.", "R.", None)]
    facts = tasks.load(tasks.task("glue/mnli"), "dev", str(tmp_path)).facts
    assert facts["left_out"] == {"without a label": 1}


def test_mnli_of_its_authors_has_the_label_first(tmp_path):
    names = ["gold_label", "sentence1", "sentence2", "label1"]
    put(tmp_path / "train.tsv", names, ["entailment", "A.", "B.", "neutral"])
    assert plain("glue/mnli", "train", tmp_path) == [("A.", "B.", 0)]


def test_qqp_leaves_broken_rows_out_and_says_so(tmp_path, caplog):
    good = [[str(i), "1", "2", f"Why {i}?", "Why not?", str(i % 2)] for i in range(5)]
    rows = [*good[:2], ["9", "1", "2", "How is"], "", "it done?\tHow?\t1", *good[2:]]
    put(tmp_path / "QQP/train.tsv", ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"], *rows)
    put(tmp_path / "QQP/test.tsv", ["id", "question1", "question2"], ["0", "Who?", "When?"])
    with caplog.at_level(logging.WARNING):
        loaded = tasks.load(tasks.task("glue/qqp"), "train", str(tmp_path))
    assert [one.first for one in loaded.examples] == [f"Why {i}?" for i in range(5)]
    assert loaded.facts["left_out"] == {"too few columns": 2}
    assert "2 rows with too few columns were left out; the first is line 4 of" in caplog.text
    assert plain("glue/qqp", "test", tmp_path) == [("Who?", "When?", None)]


def test_qqp_with_many_broken_rows_is_refused(tmp_path):
    rows = [["1", "1", "2", "Why?", "Why not?", "1"]] * 20 + [["1", "1"]] * 11
    put(tmp_path / "train.tsv", ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"], *rows)
    said = refused("glue/qqp", "train", tmp_path)
    assert said.startswith("11 rows of") and "the first is line 22 of" in said
    put(tmp_path / "train.tsv", ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"], ["1", "1"])
    assert refused("glue/qqp", "train", tmp_path).startswith("1 rows of")


@pytest.mark.parametrize(
    ("name", "folder", "columns"),
    [("qnli", "QNLI", ["question", "sentence"]), ("rte", "RTE", ["sentence1", "sentence2"])],
)
def test_labels_by_their_names(tmp_path, name, folder, columns):
    put(
        tmp_path / folder / "dev.tsv",
        ["index", *columns, "label"],
        "0\tA?\tB.\tentailment",
        "1\tC?\tD.\tnot_entailment",
    )
    assert plain(f"glue/{name}", "dev", tmp_path) == [("A?", "B.", 0), ("C?", "D.", 1)]


def test_stsb_as_glue_and_as_the_benchmark_has_it(tmp_path):
    row = ["0", "captions", "MSRvid", "2012", "1", "none", "none", "A plane.", "An air plane."]
    put(tmp_path / "a/STS-B/dev.tsv", [*STS, "score"], [*row, "3.8"], [*row, "0"])
    put(tmp_path / "a/STS-B/test.tsv", STS, row)
    want = [("A plane.", "An air plane.", 3.8), ("A plane.", "An air plane.", 0.0)]
    assert plain("glue/stsb", "dev", tmp_path / "a") == want
    assert all(isinstance(label, float) for _, _, label in want)
    assert plain("glue/stsb", "test", tmp_path / "a") == [(*want[0][:2], None)]
    start = ["captions", "MSRvid", "2012", "0001"]
    put(
        tmp_path / "b/sts-dev.csv",
        [*start, "3.800", "A plane.", "An air plane."],
        [*start, "0.000", "A plane.", "An air plane.", "licence", "licence"],
        newline="\r\n",
    )
    assert plain("glue/stsb", "dev", tmp_path / "b") == want
    prints = [tasks.load(tasks.task("glue/stsb"), "dev", str(tmp_path / at)).facts["sha256"] for at in "ab"]
    assert prints[0] == prints[1]


def mrpc_rows(n: int) -> list[list[str]]:
    return [[str(i % 2), str(i), str(1000 + i), f'He said "{i} .', f"She {i} ."] for i in range(n)]


def test_mrpc_as_glue_has_it(tmp_path):
    put(tmp_path / "MRPC/dev.tsv", MRPC, *mrpc_rows(2), start="\ufeff")
    put(tmp_path / "MRPC/test.tsv", ["index", *MRPC[1:]], ["0", "1", "2", "A .", "B ."])
    assert plain("glue/mrpc", "dev", tmp_path) == [('He said "0 .', "She 0 .", 0), ('He said "1 .', "She 1 .", 1)]
    assert plain("glue/mrpc", "test", tmp_path) == [("A .", "B .", None)]


def test_mrpc_as_its_authors_have_it_with_and_without_the_dev_ids(tmp_path):
    put(tmp_path / "msr_paraphrase_train.txt", MRPC, *mrpc_rows(25), start="\ufeff")
    put(tmp_path / "msr_paraphrase_test.txt", MRPC, *mrpc_rows(2), start="\ufeff")
    task = tasks.task("glue/mrpc")
    dev, train = (tasks.load(task, split, str(tmp_path)) for split in ("dev", "train"))
    assert [one.second for one in dev.examples] == ["She 9 .", "She 19 ."]
    assert [one.second for one in train.examples] == [f"She {i} ." for i in range(25) if i not in (9, 19)]
    assert dev.facts["rule"] == train.facts["rule"]
    assert (
        "not the official split" in dev.facts["rule"]
        and "every 10th row of msr_paraphrase_train.txt" in (dev.facts["rule"])
    )
    assert len(plain("glue/mrpc", "test", tmp_path)) == 2
    put(tmp_path / "mrpc_dev_ids.tsv", ["3", "1003"], ["20", "1020"], ["4", "1005"])
    dev, train = (tasks.load(task, split, str(tmp_path)) for split in ("dev", "train"))
    assert [one.second for one in dev.examples] == ["She 3 .", "She 20 ."]
    assert len(train.examples) == 23 and "that mrpc_dev_ids.tsv lists" in dev.facts["rule"]


@shared
def test_the_sample_rows_of_the_official_archives(tmp_path):
    """The first rows of every task; their BOM is the three letters, which is no fault of the official file."""
    read = {}
    for task in tasks.glue():
        with zipfile.ZipFile(SHARED / "sample_rows" / f"{task.hub.subset}.zip") as archive:
            archive.extractall(tmp_path / task.hub.subset)
        (folder,) = (tmp_path / task.hub.subset / "dummy_data").iterdir()
        if task.title == "MRPC":
            for path in (folder / "train", folder / "test"):
                path.write_text(path.read_text(encoding="utf-8").replace("BOM", "\ufeff", 1), encoding="utf-8")
        for split in task.splits:
            read[task.title, split] = tasks.load(task, split, str(folder)).examples
    assert [one.label for one in read["MNLI", "train"]] == [1, 0, 0]
    assert read["MNLI", "dev"][0].first == "The new rights are nice enough"
    assert read["QQP", "train"][1].second == "How do you control your horniness?"
    assert [one.label for one in read["QQP", "train"]] == [0, 1, 0]
    assert [one.label for one in read["STS-B", "train"]] == [5.0, 3.8, 3.8]
    for task in tasks.glue():
        with_label = task.title == "MRPC"
        assert all((one.label is None) != with_label for one in read[task.title, "test"])
        assert all(one.label is not None for split in task.evaluations for one in read[task.title, split])


# ---- the real sets

COMPLETE = {
    "glue/sst2": (67_349, 872),
    "glue/cola": (8_551, 1_043),
    "glue/rte": (2_490, 277),
    "glue/stsb": (5_749, 1_500),
    "glue/mrpc": (3_669, 407),
}


@shared
@pytest.mark.parametrize("name", COMPLETE)
def test_the_real_sets_are_complete(name):
    task = tasks.task(name)
    train, dev = (tasks.load(task, split, str(SHARED)) for split in ("train", "dev"))
    assert (train.facts["rows"], dev.facts["rows"]) == COMPLETE[name]
    assert train.facts["rule"].startswith("the official split" if name != "glue/mrpc" else "not the official split")
    if name == "glue/mrpc":
        raw = (SHARED / "MRPC/msr_paraphrase_train.txt").read_text(encoding="utf-8-sig").splitlines()[1:]
        assert len(raw) == 4076 == sum(COMPLETE[name])
        labels = [int(line.split("\t")[0]) for line in raw]
        assert [one.label for one in dev.examples] == labels[9::10]
        assert sum(labels) == sum(one.label for one in [*train.examples, *dev.examples]) == 2753  # 67.5%, as published


@shared
def test_the_data_folder_of_the_environment(monkeypatch):
    monkeypatch.setenv("UNMASK_DATA", str(SHARED.parent))
    found = tasks.load(tasks.task("glue/rte"), "dev")
    assert found.facts["source"] == [str(SHARED / "RTE/dev.tsv")]
    assert found.facts["classes"] == {"entailment": 146, "not_entailment": 131}
    assert "QNLI has no file for the split 'train' of QNLI; put train.tsv" in refused("glue/qnli", "train", None)


# ---- tables with the Hub's columns


def as_table(path: Path, kind: str, rows: list[dict]) -> None:
    path = path.with_name(f"{path.name}.{kind}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


TEXTS = ['a "quoted", one', "two\nlines", "ünï", "tab\there"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv"])
def test_tables_of_the_hub(tmp_path, kind):
    rows = [{"sentence": text, "label": i % 2, "idx": i} for i, text in enumerate(TEXTS)]
    as_table(tmp_path / "sst2/train", kind, rows)
    as_table(tmp_path / "sst2/validation", kind, rows[:2])
    as_table(tmp_path / "sst2/test", kind, [{**row, "label": -1} for row in rows])
    assert plain("glue/sst2", "train", tmp_path) == [(text, None, i % 2) for i, text in enumerate(TEXTS)]
    assert len(plain("glue/sst2", "dev", tmp_path)) == 2
    assert [label for _, _, label in plain("glue/sst2", "test", tmp_path / "sst2")] == [None] * 4
    pairs = [{"premise": "p", "hypothesis": text, "label": "neutral", "idx": 0} for text in TEXTS]
    as_table(tmp_path / "mnli/validation_matched", kind, pairs)
    as_table(tmp_path / "mnli/validation_mismatched", kind, pairs[:1])
    assert plain("glue/mnli", "dev", tmp_path) == [("p", text, 1) for text in TEXTS]
    assert len(plain("glue/mnli", "dev-mismatched", tmp_path)) == 1


def test_parts_of_a_table_in_their_order(tmp_path):
    for i in (1, 0):
        rows = [{"sentence1": f"{i}", "sentence2": "b", "label": 3.5}]
        as_table(tmp_path / f"train-0000{i}-of-00002", "parquet", rows)
    as_table(tmp_path / "train-notes", "parquet", [{"a": 1}])
    assert plain("glue/stsb", "train", tmp_path) == [("0", "b", 3.5), ("1", "b", 3.5)]


def test_the_hubs_columns_in_an_official_file_name(tmp_path):
    put(tmp_path / "train.tsv", "sentence\tlabel\tidx", "A b.\t1\t0")
    assert plain("glue/cola", "train", tmp_path) == [("A b.", None, 1)]
    put(tmp_path / "dev.tsv", "sentence1\tsentence2\tlabel", "A.\tB.\tequivalent")
    assert plain("glue/mrpc", "dev", tmp_path) == [("A.", "B.", 1)]


def test_one_content_has_one_fingerprint(tmp_path):
    task = tasks.task("glue/rte")
    put(
        tmp_path / "a/dev.tsv",
        "index\tsentence1\tsentence2\tlabel",
        "0\tA.\tB.\tentailment",
        "1\tC.\tD.\tnot_entailment",
    )
    rows = [{"sentence1": "A.", "sentence2": "B.", "label": 0}, {"sentence1": "C.", "sentence2": "D.", "label": 1}]
    as_table(tmp_path / "b/validation", "jsonl", rows)
    as_table(tmp_path / "c/validation", "jsonl", rows[::-1])
    prints = [tasks.load(task, "dev", str(tmp_path / at)).facts for at in "abc"]
    assert prints[0]["sha256"] == prints[1]["sha256"] != prints[2]["sha256"]
    assert json.loads(json.dumps(prints[0])) == prints[0]
    assert prints[0] | {"source": 0, "sha256": 0} == {
        "task": "glue/rte",
        "version": 1,
        "split": "dev",
        "source": 0,
        "sha256": 0,
        "rows": 2,
        "official_rows": 277,
        "rule": "the rows that are there: 2, where the official split has 277",
        "classes": {"entailment": 1, "not_entailment": 1},
    }


def test_another_suite_is_one_more_record(tmp_path, monkeypatch):
    """DNA with two classes, only data, and nothing of GLUE."""
    task = tasks.Task(
        "dna/promoters",
        "promoters",
        "is it one?",
        ("no", "yes"),
        "matthews",
        tasks.Columns("sequence", None, "label"),
        Hub("owner/promoters"),
        also=("f1",),
    )
    rows = [{"sequence": "ACGT" * (i + 1), "label": i % 2} for i in range(4)]
    for split in ("train", "dev", "test"):
        as_table(tmp_path / f"dna/promoters/{split}", "csv", rows)
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path))
    for split in task.splits:
        loaded = tasks.load(task, split)
        assert [one.label for one in loaded.examples] == [0, 1, 0, 1]
        assert loaded.facts["classes"] == {"no": 2, "yes": 2} and loaded.facts["official_rows"] is None
    with pytest.raises(UserError, match=r"has no file for the split 'dev' of promoters, and no folder promoters"):
        tasks.load(task, "dev", str(tmp_path))
    monkeypatch.delenv("UNMASK_DATA")
    pretend_hub(monkeypatch, {"train": {"sequence": ["AC"], "label": [1]}}, ["no", "yes"])
    assert tasks.load(task, "train").facts["source"] == ["Hugging Face Hub: owner/promoters (train)"]


# ---- the Hub


def pretend_hub(monkeypatch, splits, names=None, real=False):
    import datasets

    calls = []

    def load_dataset(*args, **settings):
        calls.append(args)
        out = {}
        for split, columns in splits.items():
            features = {column: datasets.Value("string") for column in columns}
            features["label"] = datasets.Value("float32") if real else datasets.ClassLabel(names=names)
            out[split] = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
        return datasets.DatasetDict(out)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(online, "reachable", lambda: True)
    return calls


def test_from_the_hub(monkeypatch):
    rows = {"premise": ["a", "b"], "hypothesis": ["c", "d"], "label": [2, 0]}
    hidden = {**rows, "label": [-1, -1]}
    calls = pretend_hub(
        monkeypatch,
        {"train": rows, "validation_matched": rows, "test_matched": hidden},
        ["entailment", "neutral", "contradiction"],
    )
    task = tasks.task("glue/mnli")
    found = tasks.load(task, "dev")
    assert [(one.first, one.second, one.label) for one in found.examples] == [("a", "c", 2), ("b", "d", 0)]
    assert found.facts["source"] == ["Hugging Face Hub: nyu-mll/glue (mnli, validation_matched)"]
    assert [one.label for one in tasks.load(task, "test").examples] == [None, None]
    assert calls[0] == ("nyu-mll/glue", "mnli")
    assert "which has train, validation_matched, test_matched; set task.local" in refused(
        "glue/mnli", "dev-mismatched", None
    )


def test_labels_of_the_hub_are_taken_by_name(monkeypatch):
    pretend_hub(monkeypatch, {"train": {"sentence": ["a", "b"], "label": [0, 1]}}, ["positive", "negative"])
    assert [one.label for one in tasks.load(tasks.task("glue/sst2"), "train").examples] == [1, 0]


def test_scores_of_the_hub_are_what_the_files_say(monkeypatch, tmp_path):
    rows = {"sentence1": ["A."], "sentence2": ["B."], "label": [3.8]}
    pretend_hub(monkeypatch, {"train": rows}, real=True)
    task = tasks.task("glue/stsb")
    put(tmp_path / "sts-train.csv", ["a", "b", "c", "d", "3.800", "A.", "B."])
    assert tasks.load(task, "train").facts["sha256"] == tasks.load(task, "train", str(tmp_path)).facts["sha256"]


def test_without_network_and_files(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(online, "reachable", lambda: False)
    said = refused("glue/sst2", "dev", None)
    assert "'glue/sst2' is not on this machine, and the Hugging Face Hub cannot be reached" in said
    assert all(way in said for way in ("task.local=PATH", "UNMASK_DATA=ROOT", "ROOT/glue/SST-2/", "network"))
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path))  # a folder without it changes nothing
    assert refused("glue/sst2", "dev", None) == said
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path / "none"))
    assert "is not a folder" in refused("glue/sst2", "dev", None)


# ---- what users get wrong

SST2 = "sentence\tlabel\n"
SCORES = "sentence1\tsentence2\tscore\n"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("sst2", "text\tlabel\na\t1\n", r"train.tsv has no column 'sentence'; its columns are 'text', 'label'"),
        ("sst2", "sentence\tclass\na\t1\n", r"has no column 'label'; its columns are 'sentence', 'class'"),
        ("rte", "a\tb\n1\t2\n", r"has no columns 'sentence1', 'sentence2', 'label'; its columns are 'a', 'b'"),
        ("sst2", SST2 + "a\t1\nb\t2\n", r"line 3 of .*the label '2' in column 'label'; SST-2 allows 0 \(negative\), 1"),
        ("sst2", SST2 + "a\tgood\n", r"line 2 of .*the label 'good'.*1 \(positive\)"),
        ("sst2", SST2 + "a\t0.5\n", r"line 2 of .*the label '0.5'"),
        ("sst2", SST2 + "a\tnan\n", r"line 2 of .*the label 'nan'"),
        ("sst2", SST2 + "a\t-1\n", r"line 2 of .*the label '-1'"),
        ("sst2", SST2 + "a\t-\n", r"line 2 of .*the label '-'"),
        ("sst2", SST2 + "a\t\n", r"line 2 of .*has no label in column 'label'; SST-2 allows 0"),
        ("sst2", SST2 + "a\t1\nb\n", r"line 3 of .*has 1 column, and 2 are needed; mend the row"),
        ("cola", "gj04\t1\t\ta\ngj04\t1\ta\n", r"line 2 of .*has 3 columns, and 4 are needed"),
        ("cola", "gj04\t2\t\ta\n", r"line 1 of .*the label '2' in column 'label'; CoLA allows 0 \(unacceptable\)"),
        ("stsb", SCORES + "a\tb\t5.01\n", r"line 2 of .*'5.01' in column 'score'; STS-B allows a score from 0 to 5"),
        ("stsb", SCORES + "a\tb\tnan\n", r"line 2 of .*'nan'"),
        ("stsb", SCORES + "a\tb\t-1\n", r"line 2 of .*'-1'"),
        ("sst2", "", r"train.tsv has no rows for the split 'train' of SST-2"),
        ("sst2", SST2, r"train.tsv has no rows for the split 'train' of SST-2"),
        ("sst2", SST2 + "\t1\n\t0\n", r"column 'sentence' of .* is empty in every row"),
        ("rte", "sentence1\tsentence2\tlabel\na\t\tentailment\n", r"column 'sentence2' of .* is empty in every row"),
    ],
)
def test_a_wrong_file(tmp_path, name, content, said):
    (tmp_path / "train.tsv").write_text(content)
    with pytest.raises(UserError, match=said) as error:
        tasks.load(tasks.task(f"glue/{name}"), "train", str(tmp_path))
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("train.jsonl", '{"sentence": "a", "label": 1}\n{"sentence": "b"}\n', r"line 2 of .*has no column 'label'"),
        ("train.jsonl", '{"sentence": "a"}\n', r"train.jsonl has no column 'label'; its columns are 'sentence'"),
        ("train.jsonl", "[1]\n", r"line 1 of .*is not a JSON object"),
        ("train.jsonl", "{\n", r"line 1 of .*is not JSON"),
        ("train.jsonl", '{"sentence": null, "label": 1}\n', r"line 1 of .*has nothing in column 'sentence'"),
        ("train.jsonl", '{"sentence": 3, "label": 1}\n', r"line 1 of .*has int in column 'sentence'"),
        ("train.jsonl", '{"sentence": "a", "label": null}\n', r"line 1 of .*has no label"),
        ("train.jsonl", '{"sentence": "a", "label": [1]}\n', r"line 1 of .*the label '\[1\]'"),
        ("train.csv", "sentence,label\na,1\nb,1,1\n", r"line 3 of .*has 3 cells for 2 columns"),
        ("train.csv", 'sentence,label\n"a,1\n', r"of .*train.csv is damaged"),
        ("train.parquet", "PAR1", r"train.parquet cannot be read as a Parquet file"),
    ],
)
def test_a_wrong_table(tmp_path, file, content, said):
    (tmp_path / file).write_text(content)
    with pytest.raises(UserError, match=said) as error:
        tasks.load(tasks.task("glue/sst2"), "train", str(tmp_path))
    assert "\n" not in str(error.value)


def test_not_utf8(tmp_path):
    (tmp_path / "train.tsv").write_bytes(SST2.encode() + b"caf\xe9\t1\n")
    assert "train.tsv is not UTF-8 text: bad byte at offset 18; convert the file" in refused(
        "glue/sst2", "train", tmp_path
    )


def test_some_empty_texts_are_no_fault(tmp_path):
    put(tmp_path / "train.tsv", "sentence1\tsentence2\tlabel", "a\t\tentailment", "\tb\t1")
    assert plain("glue/rte", "train", tmp_path) == [("a", "", 0), ("", "b", 1)]


def test_rows_with_more_columns_are_counted(tmp_path, caplog):
    put(tmp_path / "train.tsv", SST2.strip(), "a\t1\tb", "c\t0")
    assert plain("glue/sst2", "train", tmp_path) == [("a", None, 1), ("c", None, 0)]
    assert "1 rows with too many columns" in caplog.text
    put(tmp_path / "train.tsv", SST2.strip(), *["a\t1\tb"] * 11)
    assert "11 rows of" in refused("glue/sst2", "train", tmp_path)


def test_wrong_places(tmp_path):
    assert "does not exist; give the folder of SST-2" in refused("glue/sst2", "train", tmp_path / "none")
    file = put(tmp_path / "x/train.tsv", "a")
    assert "is a file; give the folder" in refused("glue/sst2", "train", file)
    (tmp_path / "all/MRPC").mkdir(parents=True)
    said = refused("glue/mrpc", "dev", tmp_path / "all")
    assert "MRPC has no file for the split 'dev' of MRPC; put dev.tsv, msr_paraphrase_train.txt, train there" in said
    assert "named validation" in said and "no folder" not in said
    assert "and no folder MNLI; put dev_matched.tsv there" in refused("glue/mnli", "dev", tmp_path / "all")


@pytest.mark.parametrize(
    ("name", "split", "said"),
    [
        ("glue/sst2", "dve", r"has no split 'dve' \(did you mean 'dev'\?\); it has train, dev, test"),
        ("glue/sst2", "dev-mismatched", r"has no split 'dev-mismatched'; it has train, dev, test"),
        ("glue/mnli", "matched", r"it has train, dev, dev-mismatched, test, test-mismatched"),
    ],
)
def test_unknown_splits(tmp_path, name, split, said):
    with pytest.raises(UserError, match=said):
        tasks.load(tasks.task(name), split, str(tmp_path))
