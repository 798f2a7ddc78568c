"""How far do the drafts of a block model get? The chance that each place of a draft is accepted, and what follows.

Texts are written by the law of blocks of one token, and at every few positions the block law is asked for a draft. A
token x of such a text is accepted with chance min(1, q(x)/p(x)), so products of these are the chances that places
1, 2, ... of a draft all pass; 1 + their sum is the most tokens that a round of two calls can write. `together` is the
same where a draft is accepted as a whole, as well as any rule can (Sun et al. 2024). `one call` is for a scheme in
which every call checks a draft and drafts what follows each of its outcomes, without knowing the token that replaces a
refused one: its drafts begin with the second place.

    python benchmarks/drafts.py tiny-en
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

import unmask
from unmask.lm import LM
from unmask.sampling import Choice, Slot
from unmask.sampling.params import SamplingParams

PLACES = 8
SETTINGS: list[dict[str, float]] = [{}, {"temperature": 0.9, "top_p": 0.9}, {"temperature": 0.7, "top_p": 0.9}]


def chances(lm: LM, z: Tensor, clean: int, block: int | None, choice: Choice) -> Tensor:
    """(n, V): what tokens of a canvas from `clean` on are drawn from, all together or each given those before it."""
    denoiser = lm.model.denoiser()
    queries = torch.arange(clean, len(z))[None]
    slot = Slot(0, 0, None, 0, clean, block)
    hidden = denoiser.hidden(z[None], torch.ones(1, dtype=torch.float64), None, None, queries, [slot])
    log_x = denoiser.log_x(hidden[0])
    log_x[:, lm.model.vocab.mask] = -torch.inf
    return choice.chances(log_x)


def measured(lm: LM, texts: int, every: int, **how: float) -> tuple[Tensor, ...]:
    """(PLACES,) each: chances that a draft passes to a place, together, and from its second place on."""
    samples = lm.write([lm.prompt_canvas("")] * texts, SamplingParams(sampler="left-to-right", block=1, **how))
    choice, rows = Choice(**how), []
    mask = torch.full((PLACES,), lm.model.vocab.mask)
    for x in (torch.as_tensor(sample.ids) for sample in samples):
        p = chances(lm, x, 0, 1, choice).gather(1, x[:, None])[:, 0]
        for at in range(every, len(x) - PLACES, every):
            q = chances(lm, torch.cat([x[:at], mask]), at, None, choice)
            ratio = q.gather(1, x[at : at + PLACES, None])[:, 0] / p[at : at + PLACES]
            weight, whole, together = 1.0, 1.0, []
            for one in ratio.tolist():
                weight, whole = min(1.0, weight / one) if one else 1.0, whole * one
                together.append(weight * whole)
            single = ratio.clamp(max=1)
            later = torch.cat([single[1:].cumprod(0), single.new_zeros(1)])
            rows.append(torch.stack([single.cumprod(0), single.new_tensor(together), later]))
    return tuple(torch.stack(rows).mean(0))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--every", type=int, default=6, help="tokens between drafts")
    args = parser.parse_args()
    lm = unmask.load(args.model)
    names = ("places 1 to 4 pass", "calls a token", "together", "one call")
    print(" " * 36 + "".join(f"{name:>28}" if not i else f"{name:>16}" for i, name in enumerate(names)))
    with torch.no_grad():
        for how in SETTINGS:
            passed, together, later = measured(lm, args.texts, args.every, **how)
            first = " ".join(f"{value:.2f}" for value in passed[:4].tolist())
            calls = (2 / (1 + float(passed.sum())), 2 / (1 + float(together.sum())), 1 / (1 + float(later.sum())))
            print(f"{how or 'the plain law'!s:36}{first:>28}" + "".join(f"{value:16.2f}" for value in calls))


if __name__ == "__main__":
    main()
