"""One page of all results: every claim with the paper's size, ours, and the verdict; made from results.json files.

What stands between the marks of the page is written anew, what stands around them is kept. Figures that any page
quotes can be filled in as well: between `<!-- FOLDER | ROW | COLUMN -->` and `<!-- / -->`. A claim is a row too, with
the columns of the page; `all | claims | decided` counts them.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ..files import write_text
from ..plot import EffectBar, Forest, forest_svg, svg
from ..text_tables import escape_markdown, markdown_table
from ..types import UserError
from .figures import Figure, significant
from .rendering import MARKS, markdown
from .report import NATS, NONE, POINTS, RATIO, Check, Report, plot_stems
from .report_files import load_results

PAGE = "README.md"
BEGIN, END = "<!-- summary: written by `unmask reproduce summary` -->", "<!-- end of the summary -->"
QUOTED = re.compile(r"<!-- ([^|\n]+?) \| ([^|\n]+?) \| ([^|\n]+?) -->(.*?)<!-- / -->")
NEW_PAGE = f"# Results of `unmask reproduce`\n\n{BEGIN}\n{END}\n"
CLAIM_COLUMNS = ["", "claim", "paper", "here", "trainings", "verdict"]
COLOURS = {"holds": "#009E73", "refuted": "#D55E00", "not decided": "#8c959f"}  # by verdict
FORESTS = (  # units, the name of the plot, its axis, and where this begins to be logarithmic
    (
        (NATS, RATIO),
        "claims-nats",
        "logarithm of the ratio: of perplexities, nats a token; of seconds, of variances",
        0.01,
    ),
    ((POINTS,), "claims-points", "points of the mean score", 1.0),
)


@dataclass(frozen=True)
class Result:
    """A report and the folder that it is in, relative to that of the page."""

    folder: str
    report: Report

    @property
    def data(self) -> str:
        """The name of its text or genome: the folder that the report's own is in."""
        return Path(self.folder).parent.name or Path(self.report.data).name

    @property
    def heading(self) -> str:
        """The name of its table, its data and its scale."""
        return f"{self.report.name}, {self.data}, scale {self.report.scale}"


def write_summary(folder: str | Path) -> Path:
    """Write the page, its plots, and the reports below the folder again from their results.json. Returns the page."""
    folder = Path(folder)
    for name, text in summary_files(folder).items():
        write_text(folder / name, text)
    return folder / PAGE


def summary_files(folder: Path) -> dict[str, str]:
    """All files that follow from the results.json files below a folder, by their paths in it."""
    results = collect(folder)
    files = {}
    for result in results:
        report = result.report
        for stem, plot in zip(plot_stems(report.plots), report.plots, strict=True):
            files[f"{result.folder}/{stem}.svg"] = svg(plot)
        files[f"{result.folder}/report.md"] = markdown(report)
    forests = [forest for spec in FORESTS if (forest := forest_of(results, *spec)).groups]
    files |= {f"{forest.name}.svg": forest_svg(forest) for forest in forests}
    page = folder / PAGE
    before = page.read_text(encoding="utf-8") if page.exists() else NEW_PAGE
    files[PAGE] = filled(_between(before, _body(results, forests)), results)  # the page last: it shows the others
    return files


def collect(folder: Path) -> list[Result]:
    """The reports below a folder, by their paths."""
    paths = sorted(folder.rglob("results.json"))
    results = [Result(str(path.parent.relative_to(folder)), load_results(path)) for path in paths if _is_report(path)]
    if not results:
        raise UserError(f"{folder} has no results.json of `unmask reproduce` in it; give such a folder with --out")
    return results


def _is_report(path: Path) -> bool:
    return "models" not in path.parts and "tasks" not in path.parts  # classifiers have a results.json of their own


def filled(text: str, results: list[Result]) -> str:
    """The text with every quoted figure as the results have it."""
    reports = {result.folder: result.report for result in results}
    claims = _claims(results)
    counts = {"decided": _decided(claims)} | {kind: str(n) for kind, n in Counter(map(_kind, claims)).items()}

    def figure(quote: re.Match[str]) -> str:
        folder, row, column, _ = quote.groups()
        if (folder, row) == ("all", "claims"):
            value = counts.get(column)
        else:
            value = _quoted(reports[folder], row, column) if folder in reports else None
        if value is None:
            raise UserError(
                f"there is no figure {folder} | {row} | {column} in the results; correct the mark in the page"
            )
        return f"<!-- {folder} | {row} | {column} -->{value}<!-- / -->"

    return QUOTED.sub(figure, text)


def _quoted(report: Report, row: str, column: str) -> str | None:
    """A cell of a table of the report, or of the page's line for a claim."""
    lines = [line for table in report.tables for line in table.rows if line.name == row]
    values = {str(cell) for line in lines if (cell := line.ours.get(column)) is not None}
    if len(values) > 1:
        raise UserError(
            f"{report.name} has several figures {row} | {column}, {' and '.join(sorted(values))}: quote a claim"
        )
    if values:
        return values.pop()
    claims = {check.claim: dict(zip(CLAIM_COLUMNS, _cells(check), strict=True)) for check in report.checks}
    return claims.get(row, {}).get(column)


def _between(page: str, body: str) -> str:
    if BEGIN not in page or END not in page:
        raise UserError(f"the page has no lines {BEGIN!r} and {END!r}; put them where the summary should be")
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{body}\n\n{END}{rest.partition(END)[2]}"


# -- the page --------------------------------------------------------------------------------------------------------


def _kind(check: Check) -> str:
    return check.verdict.partition(" (")[0]


def _claims(results: list[Result]) -> list[Check]:
    """The claims that are judged."""
    return [check for result in results if not result.report.unjudged for check in result.report.checks]


def _count(checks: list[Check]) -> str:
    counted = Counter(map(_kind, checks))
    words = {"holds": "hold", "refuted": "refuted", "not decided": "not decided"}
    return ", ".join(f"{counted[kind]} {shown}" for kind, shown in words.items() if counted[kind])


def _decided(checks: list[Check]) -> str:
    return f"{sum(check.holds is not None for check in checks)} of {len(checks)}"


def _body(results: list[Result], forests: list[Forest]) -> str:
    """Counts, a line for each table, plots, then every claim; the paper's before ours."""
    judged = [result for result in results if result.report.checks and not result.report.unjudged]
    claims = _claims(judged)
    theirs, ours = (_claims([one for one in judged if one.report.study == study]) for study in (False, True))
    split = f" Of the paper's tables {_decided(theirs)}, of our own {_decided(ours)}." if theirs and ours else ""
    parts = [
        f"**{_decided(claims)} claims are decided:** {_count(claims)}.{split} A claim holds or is refuted where its "
        "interval, over texts and trainings together, says so; one training on each side decides nothing (a point "
        "without a bar). Diamonds are the paper's."
    ]
    for title, study in (("the paper's", False), ("our own", True)):
        if lines := [_line(result) for result in results if result.report.study == study]:
            head = f"| {title} | data | {' | '.join(COLOURS)} | trainings | version |\n|---|---|--:|--:|--:|---|---|"
            parts.append("\n".join([head, *lines]))
    parts += [f"![{forest.title}]({forest.name}.svg)" for forest in forests]
    for result in judged:
        report = result.report
        where = f"{escape_markdown(report.label)}, on {escape_markdown(result.data)}, scale {report.scale}"
        parts += [f"### {_link(result)}: {where}", f"```sh\n{report.command}\n```"]
        parts.append(markdown_table([CLAIM_COLUMNS, *map(_cells, report.checks)], words={0, 1, 5}))
    return "\n\n".join(parts)


def _link(result: Result) -> str:
    return f"[{escape_markdown(result.report.name)}]({result.folder}/report.md)"


def _line(result: Result) -> str:
    report = result.report
    counted = Counter() if report.unjudged else Counter(map(_kind, report.checks))
    seeds = sorted({check.effect.trainings for check in report.checks if check.effect and check.effect.trainings})
    cells = [
        f"{result.data}, {report.scale}{', not judged' if report.unjudged else ''}",
        *(str(counted[kind] or "") for kind in COLOURS),
        ", ".join(map(str, seeds)) or NONE,
        str(report.environment.get("unmask", NONE)),
    ]
    return f"| {' | '.join([f'{_link(result)}: {escape_markdown(report.label)}', *map(escape_markdown, cells)])} |"


def _cells(check: Check) -> list[str]:
    effect = check.effect
    if effect is None:
        return [MARKS[check.holds], check.claim, NONE, NONE, NONE, check.verdict]
    theirs = NONE if effect.paper is None else f"{significant(effect.paper, 2)} {effect.unit}"
    ours = f"{Figure(effect.value, effect.error or None)} {effect.unit}"
    trainings = NONE if effect.trainings is None else str(effect.trainings)
    return [MARKS[check.holds], check.claim, theirs, ours, trainings, check.verdict]


def forest_of(results: list[Result], units: tuple[str, ...], name: str, label: str, smallest: float) -> Forest:
    """Every claim whose size has one of these units, beside the paper's."""
    groups = {
        result.heading: [
            EffectBar(check.claim, effect.value, effect.low, effect.high, effect.paper, _kind(check))
            for check in result.report.checks
            if (effect := check.effect) is not None and effect.unit in units
        ]
        for result in results
    }
    shown = {heading: bars for heading, bars in groups.items() if bars}
    title = f"Every claim: by how much it holds, in {units[0]}"
    return Forest(name, title, f"{label}; to the right: as claimed", shown, COLOURS, "paper", smallest)
