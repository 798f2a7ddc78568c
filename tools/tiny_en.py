"""The text that `tiny-en` was trained on: three kinds of English in one folder. docs/results/README.md names the files.

    python tools/tiny_en.py data/text runs/tiny-en/data

Speeches on the State of the Union (public domain), Wikipedia articles of WikiText-2 (CC BY-SA 3.0; sentences with an
<unk> are left out, so that the model does not learn to write it) and TinyStories (CDLA-Sharing; four times, so that
stories are a fifth of the text). Held out: WikiText's own validation and test articles, every 25th speech and every
20th story. Writes train.jsonl and valid.jsonl, and one file a kind for the model card.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from unmask.data.detokenize import mojibake, wikitext

STORIES = 4  # times each


def speeches(folder: Path) -> list[str]:
    return [line.strip() for line in (folder / "sotu/sotu.txt").read_text().splitlines() if line.strip()]


def stories(folder: Path) -> list[str]:
    """Paragraphs of a story have a blank line between them, stories a line break; quotes as they were written."""
    text = mojibake((folder / "tinystories/stories.txt").read_text().strip())
    return [story.strip() for story in re.split(r"(?<!\n)\n(?!\n)", text) if len(story) > 100]


def articles(path: Path) -> list[str]:
    """Articles without headings, and without the sentences that have an <unk>."""
    found: list[list[str]] = []
    for line in path.read_text().splitlines():
        if re.fullmatch(r" = [^=].*[^=] = ?", line):
            found.append([])
        elif found and line.strip() and not line.startswith(" ="):
            sentences = re.split(r"(?<= [.!?] )", line.strip() + " ")
            kept = wikitext("".join(s for s in sentences if "<unk>" not in s).strip() + " \n").strip()
            if len(kept) > 100:
                found[-1].append(kept)
    return ["\n".join(article) for article in found if article]


def main() -> None:
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    spoken, told = speeches(source), stories(source)
    kinds = {
        "sotu": (
            [text for i, text in enumerate(spoken) if i % 25], [text for i, text in enumerate(spoken) if i % 25 == 0],
        ),
        "wikitext2": (articles(source / "wikitext2/train.txt"), articles(source / "wikitext2/valid.txt")),
        "tinystories": (
            [text for i, text in enumerate(told) if i % 20] * STORIES,
            [text for i, text in enumerate(told) if i % 20 == 0],
        ),
    }  # fmt: skip
    for part, split in enumerate(("train", "valid")):
        with (out / f"{split}.jsonl").open("w") as file:
            for kind, parts in kinds.items():
                size = sum(map(len, parts[part]))
                print(f"{split:5} {kind:12} {len(parts[part]):6} documents {size:10,} characters", file=sys.stderr)
                for text in parts[part]:
                    file.write(json.dumps({"text": text, "kind": kind}) + "\n")
    for kind, parts in kinds.items():
        folder = out.parent / "held-out" / kind
        folder.mkdir(parents=True, exist_ok=True)
        rows = "".join(json.dumps({"text": text}) + "\n" for text in parts[1])
        (folder / "test.jsonl").write_text(rows)


if __name__ == "__main__":
    main()
