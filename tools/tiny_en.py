"""The text that `tiny-en` was trained on: TinyStories, cleaned, one story per line of JSON.

    python tools/tiny_en.py data/text runs/tiny-en/data [runs/tinystories]

Three files of TinyStories (CDLA-Sharing-1.0) become train.jsonl: quotes and dashes as a keyboard has them, no blank
lines inside a story, no story twice. valid.jsonl holds the stories of TinyStories' own validation file (its first one
begins in the middle and is left out). A third folder gets the same stories for studies: the last 401 of train.jsonl are
its validation split, and the stories of valid.jsonl its test split.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from unmask.data.detokenize import mojibake

SHORTEST = 100  # characters
END = "<|endoftext|>"
STUDY_VALID = 401  # stories
FILES = ("more_stories.txt", "more_stories_v2.txt")
KEYBOARD = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "´": "'", "`": "'", "–": "-", "—": "-", "…": "..."})


def cleaned(story: str) -> str:
    text = story.translate(KEYBOARD).replace("\u00a0", " ")
    return re.sub(r"\n\s*\n+", "\n", re.sub(r"[ \t]+", " ", text)).strip()


def first_stories(folder: Path) -> list[str]:
    """The first thousand: paragraphs have a blank line between them, stories a line break."""
    return re.split(r"(?<!\n)\n(?!\n)", mojibake((folder / "stories.txt").read_text().strip()))


def main() -> None:
    source, out = Path(sys.argv[1]) / "tinystories", Path(sys.argv[2])
    told = first_stories(source)
    for file in FILES:
        told += (source / file).read_text().split(END)
    held_out = (source / "valid.txt").read_text().split(END)[1:]
    train, valid = (_unique(stories) for stories in (filter(str.isascii, map(cleaned, told)), map(cleaned, held_out)))
    _write(out, {"train": train, "valid": valid})
    if len(sys.argv) > 3:
        splits = {"train": train[:-STUDY_VALID], "valid": train[-STUDY_VALID:], "test": valid}
        _write(Path(sys.argv[3]), splits)


def _unique(stories: Iterable[str]) -> list[str]:
    return [text for text in dict.fromkeys(stories) if len(text) > SHORTEST]


def _write(out: Path, splits: Mapping[str, Sequence[str]]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for split, stories in splits.items():
        (out / f"{split}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in stories))
        print(f"{split:5} {len(stories):6,} stories {sum(map(len, stories)):10,} characters", file=sys.stderr)


if __name__ == "__main__":
    main()
