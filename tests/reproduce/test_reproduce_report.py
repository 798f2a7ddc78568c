"""Reports of re-created tables: digits, checks, pages that show every letter, plots that hold every point."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from scipy import stats

from unmask.jsonable import described
from unmask.plot import SQUARE, WIDTH, Curve, Plot, label, left_out, svg, ticks
from unmask.reproduce import paper
from unmask.reproduce.claims import decide, smaller
from unmask.reproduce.figures import Figure
from unmask.reproduce.rendering import markdown, terminal_lines
from unmask.reproduce.report import Check, Report, Row, Table
from unmask.reproduce.report_files import environment, load_results, write_report
from unmask.types import UserError

HOSTILE = [
    "a|b", "<script>x</script>", "R&D", "&lt;", "$x$ and $y$", "`tick`", "*bold* _it_ __init__", "[a](b)", "~~gone~~",
    "back\\slash", "\\|", "# head", "- list", "1. one", "+ plus", "a  b", "\x1b[31mred", "two\nlines", "日本語",
    "> quote", "|", "==", "a\x00b\x7f",
]  # fmt: skip


def shown(name: str) -> str:
    """What a reader should see: blanks collapse, an escape becomes its picture."""
    return " ".join(name.split()).replace("\x1b", "␛").replace("\x00", "␀").replace("\x7f", "␡")


def example(**changes: Any) -> Report:
    ppl = {
        "MDLM": Figure(31.4159, 0.0271, True),
        "w/o carry-over": Figure(33.2, None, True),
        "never ran": None,
        "inf": Figure(math.inf, math.nan),
    }
    rows = [
        Row(name, {"PPL": Figure(27.04, 0.01, True, 2)} if i == 0 else {}, {"PPL": value, "seconds": Figure(12.5)})
        for i, (name, value) in enumerate(ppl.items())
    ]
    rows.append(Row("text", {"PPL": "see text"}, {"PPL": "diverged"}, note="a note | with a pipe"))
    curve = Curve("MDLM", [1.0, 10.0, 100.0], [40.0, math.nan, 31.0], [1.0, math.inf, 0.5])
    given = Report(
        "lm1b-ablation",
        "tab:lm1b-ablation",
        "smoke",
        "unmask reproduce lm1b-ablation --scale smoke",
        [Table("Ablation", "tab:lm1b-ablation", ["PPL", "seconds"], rows)],
        [Plot("bound", "The bound", "T", "PPL", [curve, Curve("exact", [1.0, 100.0], [30.0, 30.0])], log_x=True)],
        [Check("lower is better", True, "1 < 2"), Check("no", False, "2 > 1"), Check("open", None, "1 ~ 1")],
        {"seed": 0, "train": {"steps": 200, "rate": 3e-4}, "times": [0.5, 1.0], "where": None},
        ["a note"],
        [
            {
                "name": "mdlm",
                "parameters": 1234567,
                "steps": 200,
                "tokens": 25600,
                "unmasked_tokens": 12800,
                "seconds": 9.25,
            },
        ],
    )
    return replace(given, **changes)


# -- digits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Figure(27.0412, 0.0134), "27.041 ± 0.013"),
        (Figure(27.0412, 0.0134, bound=True), "≤ 27.041 ± 0.013"),
        (Figure(27.0412, 0.0996), "27.04 ± 0.10"),  # the error rounds up to the next power of ten
        (Figure(27.0412, 0.0994), "27.041 ± 0.099"),
        (Figure(27.0412, 9.96), "27 ± 10"),
        (Figure(27.0412, 3.21), "27.0 ± 3.2"),
        (Figure(56789.0, 1234.0), "56800 ± 1200"),
        (Figure(0.5, 1234.0), "0 ± 1200"),
        (Figure(-0.001, 0.1), "0.00 ± 0.10"),  # never minus zero
        (Figure(-3.14159, 0.025), "-3.142 ± 0.025"),
        (Figure(0.0, 0.5), "0.00 ± 0.50"),
        (Figure(1.234e-7, 1.1e-8), "(1.23 ± 0.11)e-7"),
        (Figure(1.234e12, 1.1e10), "(1.234 ± 0.011)e12"),
        (Figure(27.0412, 1e-14), "27.04 ± 1.0e-14"),
        (Figure(27.0412, 0.0), "27.04 ± 0"),
        (Figure(27.0412), "27.04"),
        (Figure(3.3), "3.300"),
        (Figure(142.89, bound=True), "≤ 142.9"),
        (Figure(2473.9), "2474"),
        (Figure(12345.6), "12350"),
        (Figure(0.00123456), "0.001235"),
        (Figure(0.0000123456), "1.235e-05"),
        (Figure(9.99961), "10.00"),
        (Figure(1.5e12), "1.500e+12"),
        (Figure(0.0), "0"),
        (Figure(12345), "12345"),  # an int is exact
        (Figure(142.89, bound=True, decimals=2), "≤ 142.89"),
        (Figure(23.0, decimals=2), "23.00"),
        (Figure(27.04, 0.01, True, 2), "≤ 27.04 ± 0.01"),
        (Figure(math.nan, 0.1), "nan"),
        (Figure(math.inf, bound=True), "≤ inf"),
        (Figure(27.0412, math.inf), "27.04 ± inf"),
    ],
)
def test_digits(figure: Figure, text: str) -> None:
    assert str(figure) == text


@given(st.floats(-1e12, 1e12), st.floats(1e-6, 1e6))
def test_text_is_the_value_to_two_digits_of_the_error(value: float, error: float) -> None:
    text = str(Figure(value, error))
    inside, scale = text, Decimal(1)
    if found := re.fullmatch(r"\((.*)\)e(-?\d+)", text):
        inside, scale = found[1], Decimal(10) ** int(found[2])
    words = inside.split(" ± ")
    if "e" in words[1] or "e" in words[0]:  # the error is noise beside the value
        assert error / max(abs(value), 1e-4) < 1e-7
        return
    seen, seen_error = (Decimal(word) * scale for word in words)
    unit = Decimal(10) ** (Decimal(f"{error:.1e}").adjusted() - 1)
    assert abs(seen_error - Decimal(error)) <= unit * Decimal("0.5001")
    assert abs(seen - Decimal(value)) <= unit * Decimal("0.5001") + Decimal(abs(value)) * Decimal("1e-15")
    assert words[0].partition(".")[2] == "" or len(words[0].partition(".")[2]) == len(words[1].partition(".")[2])


def ordering(claim: str, low: Figure, high: Figure, sigmas: float = 2.0) -> Check:
    return decide(claim, smaller(low, high), sigmas=sigmas)


# -- checks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "holds"),
    [
        (Figure(27.04, 0.01), Figure(28.56, 0.15), True),
        (Figure(28.56, 0.15), Figure(27.04, 0.01), False),
        (Figure(28.51, 0.15), Figure(28.56, 0.15), None),
        (Figure(28.56, 0.15), Figure(28.51, 0.15), None),
        (Figure(1.0, 0.3), Figure(math.exp(0.999), 0.4 * math.exp(0.999)), None),  # almost two errors apart
        (Figure(1.0, 0.3), Figure(math.exp(1.001), 0.4 * math.exp(1.001)), True),
        (Figure(math.exp(1.001), 0.4 * math.exp(1.001)), Figure(1.0, 0.3), False),
    ],
)
def test_ordering_is_welchs_statistic(low: Figure, high: Figure, holds: bool | None) -> None:
    n = 50
    assert low.error and high.error
    sd = [figure.error / figure.value * math.sqrt(n) for figure in (high, low)]  # of the logarithms
    logs = [math.log(figure.value) for figure in (high, low)]
    z = stats.ttest_ind_from_stats(logs[0], sd[0], n, logs[1], sd[1], n, equal_var=False).statistic
    check = ordering("a claim", low, high)
    assert check.claim == "a claim"
    assert check.holds is holds
    assert f"{z:.1f} combined standard errors" in check.detail
    assert str(low) in check.detail and str(high) in check.detail
    assert ("not decided" in check.detail) is (holds is None)


def test_ordering_is_as_rare_as_the_normal_law_says() -> None:
    """Two equal figures with honest errors are decided with the chance of two tails beyond `sigmas`."""
    n, rng = 4000, np.random.default_rng(0)
    pairs = rng.normal(500.0, [0.3, 0.4], size=(n, 2))
    for sigmas in (1.0, 2.0):
        found = [ordering("", Figure(a, 0.3), Figure(b, 0.4), sigmas).holds for a, b in pairs.tolist()]
        chance = stats.norm.sf(sigmas)
        for answer in (True, False):
            assert stats.binomtest(found.count(answer), n, chance).pvalue > 1e-3


def test_ordering_without_errors_says_so() -> None:
    check = ordering("faster", Figure(1.0), Figure(2.0))
    assert check.holds is True and "counts as exact" in check.detail
    assert ordering("faster", Figure(2.0), Figure(1.0)).holds is False
    assert ordering("faster", Figure(2.0), Figure(2.0)).holds is None
    assert "counts as exact" in ordering("", Figure(1.0, 0.1), Figure(2.0)).detail
    assert "exact" not in ordering("", Figure(1.0, 0.1), Figure(2.0, 0.1)).detail


@pytest.mark.parametrize("bad", [Figure(math.nan, 0.1), Figure(math.inf, 0.1), Figure(1.0, math.nan)])
def test_ordering_decides_nothing_about_what_is_not_finite(bad: Figure) -> None:
    for pair in ((bad, Figure(1.0, 0.1)), (Figure(1.0, 0.1), bad)):
        check = ordering("", *pair)
        assert check.holds is None and "not finite" in check.detail


# -- files ------------------------------------------------------------------------------------------------------------


def test_round_trip(tmp_path: Path) -> None:
    report = example()
    page = write_report(report, tmp_path / "deep" / "folder")
    folder = tmp_path / "deep" / "folder"
    assert page == folder / "report.md"
    assert sorted(p.name for p in folder.iterdir()) == ["bound.svg", "report.md", "results.json"]
    back = load_results(folder)
    # NaN differs from itself, so the comparison is of the text of all fields
    assert repr(back) == repr(replace(report, environment=environment()))
    assert repr(load_results(folder / "results.json")) == repr(back)
    assert markdown(back) == page.read_text(encoding="utf-8")
    assert terminal_lines(back) == terminal_lines(report)


def test_results_are_strict_json_with_the_machine(tmp_path: Path) -> None:
    write_report(example(), tmp_path)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert found["schema"] == 2
    assert found["environment"]["torch"] == torch.__version__
    assert found["environment"]["threads"] == torch.get_num_threads()
    assert {"python", "unmask", "cpu"} <= found["environment"].keys() and found["environment"]["cpu"]
    cells = found["tables"][0]["rows"][3]["ours"]
    assert cells["PPL"] == {"value": "inf", "error": "nan", "bound": False, "decimals": None}
    assert described(Figure(math.inf, math.nan)) == cells["PPL"]


def test_a_protocol_may_hold_anything(tmp_path: Path) -> None:
    odd = {
        "path": Path("a/b"),
        "numpy": np.float64(0.5),
        "torch": torch.tensor(3),
        "set": {2, 1},
        "nan": math.nan,
        5: (1,),
    }
    write_report(example(protocol=odd), tmp_path)
    want = {"path": "a/b", "numpy": 0.5, "torch": 3, "set": [1, 2], "nan": "nan", "5": [1]}
    assert load_results(tmp_path).protocol == want


def test_writing_again_replaces_and_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    write_report(example(), tmp_path)
    first = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    write_report(example(notes=["another"]), tmp_path)
    assert "another" in (tmp_path / "report.md").read_text(encoding="utf-8")
    write_report(example(), tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == first


def test_names_of_plots_are_safe_and_differ(tmp_path: Path) -> None:
    names = ["../../evil", "a b", "a-b", "a/b", "", "a b"]
    write_report(example(plots=[Plot(name, "", "", "", []) for name in names]), tmp_path / "in")
    files = {p.name for p in (tmp_path / "in").glob("*.svg")}
    assert len(files) == len(names)
    assert {p.name for p in tmp_path.iterdir()} == {"in"}
    linked = re.findall(r"!\[[^]]*\]\(([^)]*)\)", (tmp_path / "in" / "report.md").read_text(encoding="utf-8"))
    assert len(linked) == len(names) and set(linked) == files


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot create the folder"):
        write_report(example(), tmp_path / "file" / "folder")


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: "{}",
        lambda text: text.replace('"schema": 2', '"schema": "x"'),
        lambda text: text.replace('"schema": 2', '"schema": 99'),
        lambda text: text.replace('"tables"', '"tabels"'),
        lambda text: text.replace('"value"', '"vaule"', 1),
        lambda text: text.replace('"holds"', '"hodls"', 1),
        lambda text: text.replace('"rows": [', '"rows": [7, ', 1),
        lambda text: text.replace('"value": 31.4159', '"value": "much"'),
        lambda text: text.replace('"value": 31.4159', '"value": null'),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: Any) -> None:
    write_report(example(), tmp_path)
    path = tmp_path / "results.json"
    before = path.read_text(encoding="utf-8")
    assert damage(before) != before
    path.write_text(damage(before), encoding="utf-8")
    with pytest.raises(UserError, match=re.escape(str(path))):
        load_results(path)


def test_a_missing_or_binary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"results\.json"):
        load_results(tmp_path)
    (tmp_path / "results.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not JSON"):
        load_results(tmp_path)


# -- pages ------------------------------------------------------------------------------------------------------------


class Cells(HTMLParser):
    """The text of every table cell and list item, row by row, as a reader of the page sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.items: list[str] = []
        self.tags: set[str] = set()
        self.into: str | None = None

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self.into = tag
        elif tag == "li":
            self.items.append("")
            self.into = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self.into:
            self.into = None

    def handle_data(self, data: str) -> None:
        if self.into == "li":
            self.items[-1] += data
        elif self.into:
            self.rows[-1][-1] += data


def rendered(report: Report) -> Cells:
    parser = Cells()
    parser.feed(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown(report)))
    return parser


def tables_of(page: str) -> list[list[str]]:
    """Blocks of lines that start with a pipe."""
    return [block.splitlines() for block in page.split("\n\n") if block.startswith("|")]


def test_page_has_everything() -> None:
    page = rendered(replace(example(), environment={"python": "3.11"}))
    assert page.rows[0] == ["", "PPL, paper", "PPL, here", "seconds, here", "note"]  # no paper figure of seconds
    assert page.rows[1:6] == [
        ["MDLM", "≤ 27.04 ± 0.01", "≤ 31.416 ± 0.027", "12.50", ""],
        ["w/o carry-over", "–", "≤ 33.20", "12.50", ""],
        ["never ran", "–", "–", "12.50", ""],
        ["inf", "–", "inf", "12.50", ""],
        ["text", "see text", "diverged", "–", "a note | with a pipe"],
    ]
    assert page.rows[6:8] == [
        ["model", "parameters", "steps", "tokens seen", "expected unmasked tokens", "seconds"],
        ["mdlm", "1,234,567", "200", "25,600", "12,800", "9.250"],
    ]
    assert ["train.rate", "0.0003"] in page.rows and ["times", "0.5, 1"] in page.rows and ["where", "–"] in page.rows
    assert ["python", "3.11"] in page.rows
    assert page.items == [
        "left out of the plot: MDLM: 1 of 3 points (not finite, or not positive on a log axis)",
        "✓ lower is better: 1 < 2",
        "✗ no: 2 > 1",
        "~ open: 1 ~ 1",
        "a note",
    ]
    named = markdown(example(data="my.txt", unjudged="No verdict: it is a toy."))
    assert named.startswith("# lm1b-ablation: tab:lm1b-ablation of the paper, at scale smoke, on my.txt\n")
    assert "trained on my.txt" in named and "No verdict: it is a toy.\n\n- lower is better\n- no\n- open\n" in named
    assert not set("✓✗") & set(named)
    text = markdown(example())
    assert text.startswith("# lm1b-ablation: tab:lm1b-ablation of the paper, at scale smoke\n")
    assert "```sh\nunmask reproduce lm1b-ablation --scale smoke\n```" in text
    assert "![The bound](bound.svg)" in text


def test_hostile_names_are_seen_letter_by_letter() -> None:
    rows = [Row(name, {"P|P": name}, {"P|P": name}, note=name) for name in HOSTILE]
    models = [{"name": name, "odd_key": name} for name in HOSTILE]
    page = rendered(
        example(
            tables=[Table("T", "l", ["P|P"], rows)],
            models=models,
            protocol={name: name for name in HOSTILE},
            plots=[],
            checks=[Check(name, None, name) for name in HOSTILE],
            notes=HOSTILE,
        )
    )
    want = [shown(name) for name in HOSTILE]
    assert page.rows[0] == ["", "P|P, paper", "P|P, here", "note"]
    n = len(HOSTILE)
    assert page.rows[1 : n + 1] == [[name] * 4 for name in want]
    assert page.rows[n + 1 : 2 * n + 2] == [["model", "odd key"], *([name] * 2 for name in want)]
    assert page.rows[2 * n + 2 :] == [["setting", "value"], *([name] * 2 for name in want)]
    assert page.items == [f"~ {name}: {name}" for name in want] + want
    assert page.tags <= {"h1", "h2", "pre", "code", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "p"}


def test_no_dollar_reaches_the_page() -> None:
    """GitHub reads $x$ as a formula, which no parser here does."""
    title = "costs $5 or $6"
    page = markdown(
        example(name=title, notes=[title], tables=[Table(title, "l", ["c"], [Row(title, {}, {"c": title})])])
    )
    assert "$" not in page


def test_tables_are_aligned_and_even() -> None:
    rows = [Row(name, {"a": "x"}, {"a": Figure(1.0 * i, 0.1), "b": "本"}) for i, name in enumerate(HOSTILE)]
    page = markdown(example(tables=[Table("T", "l", ["a", "b"], rows)]))
    found = tables_of(page)
    assert len(found) == 3
    for lines in found:
        bars = [[m.start() for m in re.finditer(r"(?<!\\)(?:\\\\)*\|", line)] for line in lines]
        assert len({len(b) for b in bars}) == 1
        wide = [len(line) + len(re.findall("[日本語]", line)) for line in lines]  # these take two columns each
        assert len(set(wide)) == 1


def test_a_fence_in_the_command_does_not_end_it() -> None:
    page = rendered(example(command="echo ```\n# not a heading\n```", plots=[], tables=[], models=[]))
    text = MarkdownIt("commonmark").render(markdown(example(command="echo ```\n# not a heading\n```")))
    assert "echo ```\n# not a heading\n```" in text
    assert "h1" in page.tags and text.count("<h1>") == 1


def test_terminal_lines() -> None:
    lines = terminal_lines(example())
    assert lines[:8] == [
        "lm1b-ablation (tab:lm1b-ablation), scale smoke",
        "",
        "Ablation (tab:lm1b-ablation)",
        "                      PPL, paper         PPL, here  seconds, here",
        "  MDLM            ≤ 27.04 ± 0.01  ≤ 31.416 ± 0.027          12.50",
        "  w/o carry-over               –           ≤ 33.20          12.50",
        "  never ran                    –                 –          12.50",
        "  inf                          –               inf          12.50",
    ]
    assert lines[9:] == ["  text: a note | with a pipe", "", "✓ lower is better: 1 < 2", "✗ no: 2 > 1", "~ open: 1 ~ 1"]
    rows = [Row(name, {}, {"c": name}) for name in HOSTILE]
    text = terminal_lines(example(tables=[Table("T", "l", ["c"], rows)], checks=[]))
    assert "\x1b" not in "".join(text) and not any("\n" in line for line in text)
    for name, line in zip(HOSTILE, text[4:], strict=True):
        assert line.split() == [*shown(name).split()] * 2


def test_a_figure_for_no_column_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="not columns"):
        Table("T", "l", ["a"], [Row("r", {}, {"b": Figure(1.0)})])


# -- plots ------------------------------------------------------------------------------------------------------------

SVG = "{http://www.w3.org/2000/svg}"
finite = st.floats(-1e12, 1e12)
positive = st.floats(1e-12, 1e12)


@settings(max_examples=300)
@given(st.one_of(st.tuples(finite, finite, st.just(False)), st.tuples(positive, positive, st.just(True))))
def test_ticks_cover_the_data(case: tuple[float, float, bool]) -> None:
    low, high, log = min(case[:2]), max(case[:2]), case[2]
    found = ticks(low, high, log)
    assert found[0] <= low and found[-1] >= high
    assert 2 <= len(found) <= 12
    assert found == sorted(set(found))
    assert not log or found[0] > 0
    labels = [label(value, found) for value in found]
    if high - low > max(1e-4 * max(abs(low), abs(high)), 1e-80):
        assert len(set(labels)) == len(labels) and all(len(text) <= 10 for text in labels)
        # at least a third of the axis is used, so that a curve is not a line at the edge
        f = math.log if log else float
        assert f(high) - f(low) >= 0.3 * (f(found[-1]) - f(found[0]))


@pytest.mark.parametrize(
    ("low", "high", "log", "want"),
    [
        (0, 1, False, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.3, 0.8, False, [0.3, 0.4, 0.5, 0.6, 0.7, 0.8]),
        (23.05, 42.18, False, [20, 25, 30, 35, 40, 45]),
        (10, 1000, True, [10, 20, 50, 100, 200, 500, 1000]),
        (1, 1000, True, [1, 10, 100, 1000]),
        (20, 70, True, [20, 30, 40, 50, 60, 70]),
        (7, 7, False, [6, 6.5, 7, 7.5, 8]),
    ],
)
def test_ticks_are_the_numbers_a_person_would_choose(low: float, high: float, log: bool, want: list[float]) -> None:
    assert ticks(low, high, log) == want


@pytest.mark.parametrize(
    ("value", "axis", "text"),
    [
        (0.25, [0, 1], "0.25"),
        (0.0, [0, 1e6], "0"),
        (1000, [10, 1000], "1000"),
        (1000, [10, 10000], "1k"),
        (2500000.0, [0, 1e7], "2.5M"),
        (-20000, [-20000, 0], "-20k"),
        (2e-7, [0, 1e-6], "2e-07"),
        (0.3, [0, 1], "0.3"),
    ],
)
def test_labels(value: float, axis: list[float], text: str) -> None:
    assert label(value, axis) == text


def parse(plot: Plot) -> ET.Element:
    return ET.fromstring(svg(plot))


def groups(root: ET.Element) -> dict[str, ET.Element]:
    return {g.findtext(f"{SVG}title", ""): g for g in root.iter(f"{SVG}g") if g.get("class") == "curve"}


def coordinates(group: ET.Element) -> list[tuple[float, float]]:
    lines = [line.get("points", "") for line in group.iter(f"{SVG}polyline")]
    return [tuple(map(float, point.split(","))) for line in lines for point in line.split()]  # type: ignore[misc]


def test_svg_holds_every_curve_and_every_name() -> None:
    curves = [Curve(name, [1.0, 2.0], [float(i), i + 1.0]) for i, name in enumerate(HOSTILE)]
    root = parse(Plot("p", "a <title> & more", "x & y", "<y>", curves))
    xml_names = [re.sub("[\x00\x1b]", "�", name) for name in HOSTILE]  # XML has no way to hold these
    assert list(groups(root)) == xml_names
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert all(text in texts for text in [*xml_names, "a <title> & more", "x & y", "<y>"])
    assert "nothing to draw" not in texts


@pytest.mark.parametrize(("log_x", "log_y"), [(False, False), (True, False), (False, True), (True, True)])
def test_points_lie_where_they_should(log_x: bool, log_y: bool) -> None:
    """The picture is an affine map of the data (of its logarithm on a log axis), upside down, inside the card."""
    rng = np.random.default_rng(3)
    x, y = np.sort(rng.lognormal(2, 2, 20)), rng.lognormal(1, 1, 20)
    root = parse(Plot("p", "", "", "", [Curve("c", x.tolist(), y.tolist())], log_x=log_x, log_y=log_y))
    points = np.array(coordinates(groups(root)["c"]))
    for got, data, log, sign in ((points[:, 0], x, log_x, 1), (points[:, 1], y, log_y, -1)):
        fit = stats.linregress(np.log(data) if log else data, got)
        assert sign * fit.rvalue > 1 - 1e-6 and sign * fit.slope > 0
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    assert width == WIDTH
    assert (points > 0).all() and (points < [width, height]).all()
    assert len(list(groups(root)["c"])) == 2 + 20  # title, line and a mark a point


@pytest.mark.parametrize("points", [3, 500])
def test_every_curve_has_a_mark_of_its_own_which_the_legend_shows(points: int) -> None:
    x = [float(i) for i in range(points)]
    text = svg(Plot("p", "", "", "", [Curve(f"curve {i}", x, [i + 1.0] * points) for i in range(12)]))

    def kinds(part: str) -> list[str]:
        """Every mark without its colour and its place."""
        marks = re.findall(r"<(?:circle|rect|path)[^>]*(?:r=|width=.7|z\")[^>]*/>", part)
        return [re.sub(r' (c?[xy])="[^"]*"|(?<=d="M)[^m]*', "", mark) for mark in marks]

    curves = [kinds(part.split("</g>")[0]) for part in text.split('<g class="curve"')[1:]]
    legend = [kinds(part.split("</g>")[0]) for part in text.split('<g class="curve"')[0].split("<g ")[1:]]
    assert len(curves) == len(legend) == 12 and {len(marks) for marks in legend} == {1}
    assert [set(marks) for marks in curves] == [set(marks) for marks in legend]
    assert len({marks[0] for marks in legend}) == 12 and {len(marks) for marks in curves} == {min(points, 12)}


def test_ticks_of_the_picture_agree_with_its_points() -> None:
    root = parse(Plot("p", "", "", "", [Curve("c", [10.0, 50.0, 1000.0], [1.0, 2.0, 4.0])], log_x=True))
    at = {
        "".join(text.itertext()): float(text.get("x", 0))
        for text in root.iter(f"{SVG}text")
        if text.get("class") == "tick" and text.get("text-anchor") == "middle"
    }
    xs = [x for x, _ in coordinates(groups(root)["c"])]
    assert [at["10"], at["50"], at["1000"]] == pytest.approx(xs, abs=0.02)


def test_error_bars_reach_from_minus_to_plus() -> None:
    curve = Curve("c", [1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 15.0], [2.0, 0.0, 5.0, math.nan])
    root = parse(Plot("p", "", "", "", [curve, Curve("ends", [1.0, 1.0], [8.0, 12.0])]))
    bars = [p.get("d", "") for p in groups(root)["c"].iter(f"{SVG}path") if p.get("class") == "error"]
    assert len(bars) == 2  # no bar for 0 and NaN
    numbers = [float(v) for v in re.findall(r"[\d.]+", bars[0])][:3]
    ends = coordinates(groups(root)["ends"])
    assert numbers == pytest.approx([ends[0][0], ends[0][1], ends[1][1]], abs=0.02)


def test_an_error_bar_below_zero_ends_at_the_foot_of_a_log_axis() -> None:
    root = parse(Plot("p", "", "", "", [Curve("c", [1.0, 2.0], [10.0, 100.0], [50.0, 1.0])], log_y=True))
    bar = next(p.get("d", "") for p in groups(root)["c"].iter(f"{SVG}path") if p.get("class") == "error")
    frame = [p.get("d", "") for p in root.iter(f"{SVG}path") if p.get("stroke") == "#57606a"]
    foot = float(re.findall(r"V([\d.]+)H", frame[0])[0])
    assert float(re.findall(r"[\d.]+", bar)[1]) == foot


def test_what_cannot_be_drawn_is_left_out_and_said() -> None:
    nan, inf = math.nan, math.inf
    curves = [
        Curve("whole", [1.0, 2.0], [1.0, 2.0]),
        Curve("gap", [1.0, 2.0, 3.0, 4.0], [1.0, nan, 2.0, 3.0]),
        Curve("diverged", [1.0, 2.0], [inf, 1e300]),
        Curve("empty", [], []),
        Curve("endless", [inf], [1.0]),
    ]
    plot = Plot("p", "", "", "", curves)
    assert left_out(plot) == [
        "gap: 1 of 4 points (not finite)",
        "diverged: 2 of 2 points (not finite)",
        "empty: no points",
        "endless: 1 of 1 points (not finite)",
    ]
    root = parse(plot)
    assert list(groups(root)) == ["whole", "gap"]
    assert [len(line.get("points", "").split()) for line in groups(root)["gap"].iter(f"{SVG}polyline")] == [1, 2]
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert all(f"left out: {line}" in texts for line in left_out(plot))
    assert "nan" not in svg(plot) and not re.search(r"\binf\b", svg(plot))


def test_log_axes_leave_out_what_has_no_logarithm() -> None:
    plot = Plot("p", "", "", "", [Curve("c", [0.0, 1.0, 2.0], [1.0, -1.0, 2.0])], log_x=True, log_y=True)
    assert left_out(plot) == ["c: 2 of 3 points (not finite, or not positive on a log axis)"]
    assert len(coordinates(groups(parse(plot))["c"])) == 1
    assert left_out(replace(plot, log_x=False, log_y=False)) == []


@pytest.mark.parametrize("curves", [[], [Curve("c", [], [])], [Curve("c", [math.nan], [1.0])]])
def test_nothing_to_draw(curves: list[Curve]) -> None:
    assert "nothing to draw" in svg(Plot("p", "", "", "", curves))
    ET.fromstring(svg(Plot("p", "", "", "", curves)))


@given(st.lists(st.tuples(st.floats(), st.floats(), st.floats()), max_size=6), st.booleans(), st.booleans(), st.text())
def test_any_numbers_and_any_name_give_a_picture(
    points: list[tuple[float, float, float]], log_x: bool, log_y: bool, name: str
) -> None:
    x, y, error = ([point[i] for point in points] for i in range(3))
    plot = Plot("p", name, name, name, [Curve(name, x, y, error)], log_x, log_y)
    root = parse(plot)
    height = float(root.get("height", 0))
    for group in groups(root).values():
        assert all(0 <= px <= WIDTH and 0 <= py <= height for px, py in coordinates(group))
    assert svg(plot) == svg(plot)


def test_a_cloud_of_points_on_a_square_with_its_diagonal() -> None:
    """Two equal axes: what is equal lies on the diagonal, and no line joins the points."""
    rng = np.random.default_rng(4)
    x, y = rng.lognormal(0, 2, 30), rng.lognormal(1, 1, 30)
    curves = [Curve("a", x.tolist(), y.tolist()), Curve("b", [3.0, 20.0], [3.0, 20.0]), Curve("c", [-1.0], [1.0])]
    plot = Plot("p", "", "", "", curves, log_x=True, log_y=True)
    root = ET.fromstring(svg(plot, scatter=True))
    assert not list(root.iter(f"{SVG}polyline"))
    found = {}
    for name, group in groups(root).items():
        path = next(group.iter(f"{SVG}path")).get("d", "")
        found[name] = np.array([[float(v) for v in point.split()] for point in re.findall(r"M([\d. ]+)h0", path)])
    assert {name: len(points) for name, points in found.items()} == {"a": 30, "b": 2}
    for column, data, sign in ((0, x, 1), (1, y, -1)):
        fit = stats.linregress(np.log(data), found["a"][:, column])
        assert sign * fit.rvalue > 1 - 1e-6
    (line,) = [p.get("d", "") for p in root.iter(f"{SVG}path") if p.get("class") == "diagonal"]
    x0, y0, x1, y1 = map(float, re.findall(r"[\d.]+", line))
    assert x1 - x0 == pytest.approx(y0 - y1, abs=0.02)  # a square
    for px, py in found["b"]:
        assert (px - x0) / (x1 - x0) == pytest.approx((y0 - py) / (y0 - y1), abs=1e-3)
    assert float(root.get("width", 0)) == SQUARE
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert "left out: c: 1 of 1 points (not finite, or not positive on a log axis)" in texts


def test_lists_of_different_length_are_our_mistake() -> None:
    for lists in (([1.0], [1.0, 2.0], None), ([1.0], [1.0], [])):
        with pytest.raises(AssertionError, match="differ in length"):
            Curve("c", *lists)


# -- the paper --------------------------------------------------------------------------------------------------------


def ppl(table: paper.Printed, row: str) -> float:
    figure = table.rows[row]["PPL"]
    assert isinstance(figure, Figure)
    return figure.value


def test_every_printed_table_is_whole() -> None:
    assert set(paper.TABLES) | set(paper.PICTURES) == {
        "tab:lm1b-ablation",
        "tab:var_ns",
        "supp:fig:subs-ablation",
        "tab:time-cond-abl",
        "tab:lm1b-ppl",
        "owt-ppl",
        "tab:caching-wall-clock",
        "fig:caching-wall-clock",
        "tab:semi-ar",
        "fig:nll_owt",
        "zeroshot-ppl",
        "tbl:glue",
        "section 5.1, text",
    }
    for table in paper.TABLES.values():
        assert all(list(row) == table.columns for row in table.rows.values())
        assert table.protocol and table.title
        Table(table.title, table.label, table.columns, [Row(name, row, {}) for name, row in table.rows.items()])
    assert all("no numbers" in " ".join(picture.remarks) for picture in paper.PICTURES.values())


def test_figures_agree_with_the_sentences_of_the_paper() -> None:
    """A slip of a digit would break one of the claims of the text, or the agreement between tables."""
    sedd, mdlm = ppl(paper.LM1B, "SEDD (33B tokens)"), ppl(paper.LM1B, "MDLM (33B tokens)")
    assert 1 - mdlm / sedd == pytest.approx(0.17, abs=0.01)  # "a 17% improvement"
    assert mdlm == ppl(paper.LM1B_ABLATION, "MDLM")
    carry = ppl(paper.LM1B_ABLATION, "& w/o carry-over") - ppl(paper.LM1B_ABLATION, "MDLM")
    assert carry == pytest.approx(1.5, abs=0.05)  # "increases the perplexity by 1.5 points"
    sets = {name: {method: own.value for method, own in row.items()} for name, row in paper.ZERO_SHOT.rows.items()}
    assert all(own["MDLM"] < own["SEDD"] for own in sets.values())  # "consistently outperforms the SEDD"
    better = {name for name, own in sets.items() if own["MDLM"] < own["AR"]}
    assert better == {"Lambada", "Pubmed", "Arxiv"}  # "e.g., for Lambada and Scientific Papers"
    assert ppl(paper.OWT, "MDLM") == ppl(paper.TIME_CONDITIONING, "MDLM w/ time conditioning")
    assert ppl(paper.DISCRETE_TIME, "∞") == ppl(paper.TIME_CONDITIONING, "MDLM w/o time conditioning")
    falling = [ppl(paper.DISCRETE_TIME, row) for row in ("10", "20", "50", "100", "200", "500", "1000", "∞")]
    assert falling == sorted(falling, reverse=True)  # "NLL consistently decreases"
    excess = [(value - falling[-1]) * t for value, t in zip(falling, (10, 20, 50, 100, 200, 500, 1000), strict=False)]
    assert max(excess[2:]) < 1.5 * min(excess[2:])  # a bound of T steps is off by O(1/T)
    minutes = paper.CACHING.rows["MDLM"]["T=10k"], paper.CACHING.rows["MDLM + caching"]["T=10k"]
    assert isinstance(minutes[0], Figure) and isinstance(minutes[1], Figure)
    assert 2 < minutes[0].value / minutes[1].value < 2.2  # "twice as fast"
    seconds = paper.SEMI_AR.rows["SSD-LM"]["Sec/Seq"], paper.SEMI_AR.rows["MDLM"]["Sec/Seq"]
    assert isinstance(seconds[0], Figure) and isinstance(seconds[1], Figure)
    assert 25 < seconds[0].value / seconds[1].value < 30  # "25-30x faster"


def test_remark_on_the_units_of_the_schedules() -> None:
    mean = paper.NOISE_SCHEDULES.rows["log-linear"]["mean"]
    assert isinstance(mean, Figure)
    assert round(math.log(ppl(paper.LM1B_ABLATION, "MDLM")), 2) == mean.value
    assert f"{math.log(23.05):.2f} nats or {math.log2(23.05):.2f} bits" in paper.NOISE_SCHEDULES.remarks[0]
