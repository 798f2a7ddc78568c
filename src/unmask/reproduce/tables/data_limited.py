"""When data run out: AR against MDLM and the block mixture, on few unique tokens that are seen again and again.

Two papers find that diffusion passes AR there, two that a regularised AR does not let it. So AR has several strengths
of regularisation, and the best on the validation split counts, chosen with the first seed: others train that one only.
AR and blocks of one token are scored exactly, MDLM by its bound. A study of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...evaluation.likelihood import TIMES
from ...models.block_diffusion import BlockDiffusion
from ...models.language_model import LanguageModel
from ...plot import Curve, Plot
from ...types import UserError
from ..bench import Bench
from ..claims import Claim
from ..learning_models import DRAWS, PARTS, WHOLE, study_config, study_sizes, under_whole_bound
from ..report import Cell, Check, Report, Row, Table
from ..scales import Scale
from ..scored import ScoredModel, mean_rate
from ..specs import Changes, Family, ModelSpec, PaperTable, Setup, changed

AR, MDLM, MIXTURE = "AR", "MDLM", "mixture, blocks of 1"
BOUND = "mixture, the whole row"
NATS, CHOSEN = "nats/token", "chosen"
CHOOSING = 4  # settings are chosen on a quarter as many rows, of the validation split
STRENGTHS: dict[str, Changes] = {  # of the regularisation of AR
    "plain": {},
    "decay": {"model": {"dropout": 0.1}, "train": {"weight_decay": 0.1}},
    "strong": {"model": {"dropout": 0.3}, "train": {"weight_decay": 0.3}},
    "heavy": {"model": {"dropout": 0.5}, "train": {"weight_decay": 0.5}},
}
MIXED: Changes = {
    "model": {"method": "block"},
    "block": {"size": 1, "mixture": {"1": 0.5, "4": 0.2, "16": 0.15, "full": 0.15}},
}


Grid = Mapping[int, Sequence[int]]  # unique tokens -> how often they are seen
Strengths = Mapping[tuple[int, int], str]  # unique tokens and epochs -> the strength of AR's regularisation
SIZES: dict[str, Grid] = {  # rows and batches are those of `learning`
    "smoke": {2**11: (1, 4)},
    "small": {2**14: (4, 8, 16, 64), 2**16: (1, 4, 8, 16, 64), 2**20: (1,)},
    "medium": {2**20: (1, 4, 16), 2**22: (1, 4, 16)},
}
LONGER: dict[str, Grid] = {"small": {2**14: (256,)}}  # of MDLM alone, which goes on learning where AR has long stopped
NETWORKS: dict[str, Changes] = {"small": {"model": {"hidden_dim": 64, "n_heads": 2}}}  # where not that of `learning`


def data_sizes(scale: Scale) -> Grid:
    """The grid of a scale."""
    if scale.name not in SIZES:
        raise UserError(f"data-limited has the scales {', '.join(SIZES)}, not {scale.name}")
    return SIZES[scale.name]


def _longer(scale: Scale, unique: int) -> tuple[int, ...]:
    return tuple(LONGER.get(scale.name, {}).get(unique, ()))


def _kinds() -> dict[str, tuple[str, Changes]]:
    """The recipe of `learning` and what is changed in it, by the name of the model."""
    return {
        **{f"ar-{strength}": ("ar-all", changes) for strength, changes in STRENGTHS.items()},
        "mdlm": ("all", {}),
        "mixture": ("all", MIXED),
    }


def _name(kind: str, unique: int, epochs: int) -> str:
    return f"limited-{kind}-{unique}x{epochs}"


def limited_models(setup: Setup) -> dict[str, ModelSpec]:
    """Every kind with every number of unique tokens and epochs, and MDLM with more; each decayed to its own end."""
    sizes, grid, models = study_sizes(setup.scale), data_sizes(setup.scale), {}
    for kind, (recipe, changes) in _kinds().items():
        for unique, times in grid.items():
            for epochs in (*times, *(_longer(setup.scale, unique) if kind == "mdlm" else ())):
                config = study_config(recipe, sizes, setup.source, unique * epochs, sizes.rates[0], setup.seed)
                rows = {"train": {"rows": max(1, unique // sizes.length)}}
                network = NETWORKS.get(setup.scale.name, {})
                models[_name(kind, unique, epochs)] = ModelSpec(changed(config, network, rows, changes))
    return models


LIMITED = Family(limited_models, base="", texts=())


def data_limited(bench: Bench) -> Report:
    """Every cell of the grid: the best AR, MDLM, and the mixture by its blocks of one token and by the whole row."""
    sizes, grid = study_sizes(bench.scale), data_sizes(bench.scale)
    if len(bench.rows("train")) < max(grid) // sizes.length:
        has = len(bench.rows("train")) * sizes.length
        raise UserError(f"{bench.source} has {has:,} training tokens of the {max(grid):,} needed; give more text")
    strengths = _trained(bench, grid)
    rows, checks, plots, chosen_epochs = [], [], [], {}
    for unique, times in grid.items():
        scored = {}
        for epochs in times:
            scored[epochs] = _scored(bench, (AR, MDLM, MIXTURE, BOUND), strengths[unique, epochs], unique, epochs)
            checks += _checks(f"{unique:,} unique tokens, {epochs} epoch{'s' * (epochs > 1)}", scored[epochs])
        for epochs in _longer(bench.scale, unique):
            scored[epochs] = _scored(bench, (MDLM,), "", unique, epochs)
        for epochs, sides in scored.items():
            for side, each in sides.items():
                rows.append(_row(side, unique, epochs, each, strengths[unique, epochs] if side == AR else ""))
        if len(scored) == 1:
            continue  # nothing to choose, and no curve
        plots.append(_plot(unique, scored))
        best = _best_epochs(bench, unique, times, strengths)
        at_best = {side: scored[epochs][side] for side, epochs in best.items()}
        chosen_epochs[f"best epochs, {unique:,} tokens"] = "; ".join(f"{side}: {n}" for side, n in best.items())
        checks += _checks(f"{unique:,} unique tokens, each after its best number of epochs", at_best)
    return bench.report(
        "data-limited",
        "when data run out",
        [Table("Unique tokens and epochs", "ours", [NATS, CHOSEN], rows)],
        plots=plots,
        checks=checks,
        protocol={
            "test_rows": f"{min(len(bench.rows()), sizes.rows)} of the {bench.split} split",
            "optimizer": f"all parts of `learning` ({', '.join(PARTS)}), batch {sizes.batch_size}; every training "
            "decays to its own end",
            "embeddings": "counts of the unique tokens only",
            "weights": "raw",
            "data": "the first rows of the training split; all methods see the same, as often",
            "chosen": f"on {max(1, sizes.rows // CHOOSING)} rows of the validation split: the best number of epochs, "
            "and in every cell the strength of AR, with the first seed, of "
            + "; ".join(f"{name}: {_words(changes)}" for name, changes in STRENGTHS.items())
            + "; MDLM and the mixture have no regularisation",
            **chosen_epochs,
            "mixture": f"steps with one block size each, shares {MIXED['block']['mixture']}",
            "law": "AR and blocks of one token are exact; MDLM and the whole row are bounds without a raised cut-off",
            "evaluation": f"{DRAWS} draws of seed {bench.seed}; of MDLM {WHOLE.name}; float32",
            "±": "standard error over draws" + ("" if bench.seeds == 1 else " and trainings"),
        },
        study=True,
    )


def _words(changes: Changes) -> str:
    settings = [f"{key} {value:g}" for section in changes.values() for key, value in section.items()]
    return ", ".join(settings) or "none"


def _trained(bench: Bench, grid: Grid) -> Strengths:
    """Train what the study needs; returns the strength of AR's regularisation with the fewest nats in every cell."""
    cells = [(unique, epochs) for unique, times in grid.items() for epochs in times]
    longer = [("mdlm", unique, epochs) for unique in grid for epochs in _longer(bench.scale, unique)]
    unregularised = [_name(kind, *cell) for kind in ("mdlm", "mixture") for cell in cells] + [_name(*c) for c in longer]
    bench.need(unregularised, extra=[_name(f"ar-{strength}", *cell) for strength in STRENGTHS for cell in cells])
    chosen = {
        cell: min(STRENGTHS, key=lambda strength: _valid_nats(bench, AR, strength, *cell, True)) for cell in cells
    }
    bench.need([_name(f"ar-{strength}", *cell) for cell, strength in chosen.items()])
    return chosen


def _best_epochs(bench: Bench, unique: int, times: Sequence[int], strengths: Strengths) -> dict[str, int]:
    """For every side the number of epochs with the fewest nats on the validation split."""

    def nats(side: str, epochs: int) -> float:
        return _valid_nats(bench, side, strengths.get((unique, epochs), ""), unique, epochs)

    epochs_of = {AR: times, MDLM: (*times, *_longer(bench.scale, unique)), MIXTURE: times}
    return {side: min(each, key=lambda epochs: nats(side, epochs)) for side, each in epochs_of.items()}


def _valid_nats(bench: Bench, side: str, strength: str, unique: int, epochs: int, first: bool = False) -> float:
    """Nats a token of the validation split: of the first training, or the mean over all."""
    name, what, how = _law(side, strength, unique, epochs)
    limit = max(1, study_sizes(bench.scale).rows // CHOOSING)
    names = [name] if first else bench.of_seeds(name)
    each = [bench.score(one, rows=bench.rows("valid"), limit=limit, what=f"{what} (valid)", **how) for one in names]
    return sum(scored.rate.value for scored in each) / len(each)


def _scored(
    bench: Bench, sides: Sequence[str], strength: str, unique: int, epochs: int
) -> dict[str, list[ScoredModel]]:
    """Sides on the split of the report, one a training."""
    limit, scored = study_sizes(bench.scale).rows, {}
    for side in sides:
        name, what, how = _law(side, strength, unique, epochs)
        scored[side] = bench.scores(name, limit=limit, what=what, **how)
    return scored


def _law(side: str, strength: str, unique: int, epochs: int) -> tuple[str, str, dict[str, Any]]:
    """The model of a side in a cell, and the law that it is scored by: exact for AR and blocks of 1, else a bound."""

    def change(model: LanguageModel) -> LanguageModel:
        if side == AR:
            return model
        if side == MIXTURE:
            assert isinstance(model, BlockDiffusion)
            return model.in_blocks(1)
        return under_whole_bound(model.in_blocks(None) if isinstance(model, BlockDiffusion) else model)

    kind = {AR: f"ar-{strength}", MDLM: "mdlm"}.get(side, "mixture")
    words = {AR: "", MDLM: " by the whole bound", MIXTURE: " by blocks of 1", BOUND: " by the whole row"}[side]
    name = _name(kind, unique, epochs)
    how = {"change": change, "draws": DRAWS, "estimator": WHOLE if side == MDLM else TIMES}
    return name, name + words, how


def _row(side: str, unique: int, epochs: int, scored: Sequence[ScoredModel], note: str) -> Row:
    cells: dict[str, Cell] = {NATS: mean_rate(scored), CHOSEN: note or None}
    return Row(f"{side}, {unique:,} tokens x {epochs}", {}, cells)


def _checks(where: str, scored: Mapping[str, list[ScoredModel]]) -> list[Check]:
    claims = (
        Claim(f"MDLM is better than AR ({where})", MDLM, AR),
        Claim(f"the mixture by its blocks of 1 is better than AR ({where})", MIXTURE, AR),
    )
    return [claim.check(scored) for claim in claims]


def _plot(unique: int, scored: Mapping[int, Mapping[str, Sequence[ScoredModel]]]) -> Plot:
    curves = []
    for side in (AR, MDLM, MIXTURE, BOUND):
        at = {float(epochs): mean_rate(sides[side]) for epochs, sides in scored.items() if side in sides}
        curves.append(Curve(side, [*at], [y.value for y in at.values()], [y.error or 0.0 for y in at.values()]))
    title = f"{unique:,} tokens, seen again and again"
    return Plot(f"epochs-{unique}", title, "epochs", f"{NATS} (AR and blocks of 1 exact)", curves, log_x=True)


DATA_LIMITED = PaperTable("data-limited", data_limited, LIMITED, "")
