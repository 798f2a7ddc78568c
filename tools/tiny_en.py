"""The text that `tiny-en` was trained on: TinyStories, cleaned, one story per line of JSON.

    python tools/tiny_en.py data/text runs/tiny-en/data

Three files of TinyStories (CDLA-Sharing-1.0) become train.jsonl: quotes and dashes as a keyboard has them, no blank
lines inside a story, no story twice. valid.jsonl holds the stories of TinyStories' own validation file (its first one
begins in the middle and is left out).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from unmask.data.detokenize import mojibake

SHORTEST = 100  # characters
END = "<|endoftext|>"
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
    out.mkdir(parents=True, exist_ok=True)
    told = first_stories(source)
    for file in FILES:
        told += (source / file).read_text().split(END)
    held_out = (source / "valid.txt").read_text().split(END)[1:]
    kept = {"train": [text for text in map(cleaned, told) if text.isascii()], "valid": list(map(cleaned, held_out))}
    for split, stories in kept.items():
        unique = [text for text in dict.fromkeys(stories) if len(text) > SHORTEST]
        rows = "".join(json.dumps({"text": text}) + "\n" for text in unique)
        (out / f"{split}.jsonl").write_text(rows)
        print(f"{split:5} {len(unique):6,} stories {sum(map(len, unique)):10,} characters", file=sys.stderr)


if __name__ == "__main__":
    main()
