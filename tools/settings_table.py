"""Write the tables of samplers and settings into docs/sampling.md, from their schema.

python tools/settings_table.py            # rewrite what stands between the markers
python tools/settings_table.py --check    # exit code 1 where the page is behind
"""

from __future__ import annotations

import sys
from pathlib import Path

from unmask.sampling.params import SAMPLERS, all_settings, default_words
from unmask.sampling.settings import Setting

PAGE = Path(__file__).parents[1] / "docs" / "sampling.md"
SURFACES = {"cli": "command line", "http": "HTTP", "page": "page", "loop": "terminal loop", "harness": "lm-eval"}


def markdown_table(head: list[str], rows: list[list[str]]) -> str:
    """A table whose cells are markdown themselves."""
    lines = [f"| {' | '.join(cells)} |" for cells in [head, *rows]]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def samplers_table() -> str:
    rows = [
        [f"`{name}`", ", ".join(f"`{spec.option}`" for spec in entry.settings.values()), entry.about, entry.note]
        for name, entry in SAMPLERS.items()
    ]
    return markdown_table(["`--sampler`", "settings", "what it does", "law"], rows)


def settings_table() -> str:
    rows = []
    for name, spec in all_settings().items():
        users = [sampler for sampler, entry in SAMPLERS.items() if name in entry.takes]
        shown = f"`{name}`" if "cli" in spec.absent else f"`{spec.option}`"
        rows.append([shown, default_words(name), values(spec), spec.help, ", ".join(f"`{user}`" for user in users)])
    return markdown_table(["setting", "default", "values", "meaning", "samplers"], rows)


def values(spec: Setting) -> str:
    """What it may be, in a few words."""
    if spec.choices:
        return ", ".join(f"`{choice}`" for choice in spec.choices)
    if spec.name == "seed":
        return "whole, 64 bits"
    words = {"wholes": "whole numbers", "pair": "two times", "rules": "mapping", "sampler": "a name"}
    words["size"] = "`full` or whole"
    return ", ".join(filter(None, (words.get(spec.kind, spec.kind), spec.limits)))


def absent_list() -> str:
    """What is not everywhere, and why."""
    places: dict[tuple[str, str], list[str]] = {}
    for name, spec in all_settings().items():
        for surface, why in spec.absent.items():
            places.setdefault((name, why), []).append(SURFACES.get(surface, f"`/v1/{surface}`"))
    return "\n".join(f"- `{name}` is not in {', '.join(where)}: {why}." for (name, why), where in places.items())


TABLES = {"samplers": samplers_table, "settings": settings_table, "absent": absent_list}


def rewritten(page: str) -> str:
    """The page with every generated part as it is now."""
    for name, make in TABLES.items():
        begin, end = f"<!-- generated: {name} (python tools/settings_table.py) -->", f"<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            sys.exit(f"{PAGE} has no markers for {name}")
        page = f"{before}{begin}\n{make()}\n{end}{after}"
    return page


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        sys.exit(rewritten(text) != text)
    PAGE.write_text(rewritten(text), encoding="utf-8")
