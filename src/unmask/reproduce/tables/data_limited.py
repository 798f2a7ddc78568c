"""When data run out: AR against MDLM and the block mixture, on few unique tokens that are seen again and again.

Two papers find that diffusion passes AR there, two that a regularised AR does not let it. So AR has several strengths
of regularisation, and the best on the validation split counts. AR and blocks of one token are scored exactly, MDLM by
its bound. A study of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...models.block_diffusion import BlockDiffusion
from ...models.language_model import LanguageModel
from ...plot import Curve, Plot
from ...types import UserError
from ..bench import Bench
from ..claims import Claim
from ..figures import Figure
from ..learning_models import PARTS, WHOLE, study_config, study_sizes, under_whole_bound
from ..report import Cell, Check, Report, Row, Table
from ..scales import Scale
from ..scored import ScoredModel, mean_rate
from ..specs import Changes, Family, ModelSpec, PaperTable, Setup, changed

AR, MDLM, MIXTURE = "AR", "MDLM", "mixture, blocks of 1"
BOUND = "mixture, the whole row"
NATS, CHOSEN = "nats/token", "chosen"
STRENGTHS: dict[str, Changes] = {  # of the regularisation of AR
    "plain": {},
    "decay": {"model": {"dropout": 0.1}, "train": {"weight_decay": 0.1}},
    "strong": {"model": {"dropout": 0.3}, "train": {"weight_decay": 0.3}},
}
MIXED: Changes = {
    "model": {"method": "block"},
    "block": {"size": 1, "mixture": {"1": 0.5, "4": 0.2, "16": 0.15, "full": 0.15}},
}


@dataclass(frozen=True)
class DataSizes:
    """The grid: unique tokens, and how often they are seen. Networks, rows and batches are those of `learning`."""

    unique: tuple[int, ...]
    epochs: tuple[int, ...]


SIZES = {
    "smoke": DataSizes((2**11,), (1, 4)),
    "small": DataSizes((2**18,), (1, 4, 16, 64)),
    "medium": DataSizes((2**20, 2**22), (1, 4, 16)),
}


def data_sizes(scale: Scale) -> DataSizes:
    """The grid of a scale."""
    if scale.name not in SIZES:
        raise UserError(f"data-limited has the scales {', '.join(SIZES)}, not {scale.name}")
    return SIZES[scale.name]


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
    """Every kind with every number of unique tokens and epochs, each decayed to its own end."""
    sizes, grid, models = study_sizes(setup.scale), data_sizes(setup.scale), {}
    for kind, (recipe, changes) in _kinds().items():
        for unique in grid.unique:
            for epochs in grid.epochs:
                config = study_config(recipe, sizes, setup.source, unique * epochs, sizes.rates[0], setup.seed)
                rows = {"train": {"rows": max(1, unique // sizes.length)}}
                models[_name(kind, unique, epochs)] = ModelSpec(changed(config, rows, _merged(changes, rows)))
    return models


def _merged(changes: Changes, rows: Changes) -> Changes:
    train: Mapping[str, Any] = changes.get("train", {})
    return {**changes, "train": {**rows["train"], **train}}


LIMITED = Family(limited_models, base="", texts=())


def data_limited(bench: Bench) -> Report:
    """Every cell of the grid: the best AR, MDLM, and the mixture by its blocks of one token and by the whole row."""
    sizes, grid = study_sizes(bench.scale), data_sizes(bench.scale)
    bench.need(list(bench.family.models(Setup(bench.scale, bench.source, bench.seed))))
    if len(bench.rows("train")) < max(grid.unique) // sizes.length:
        has = len(bench.rows("train")) * sizes.length
        raise UserError(
            f"{bench.source} has {has:,} training tokens of the {max(grid.unique):,} needed; give more text"
        )
    rows, checks = [], []
    curves: dict[str, list[tuple[int, Figure]]] = {}
    for unique in grid.unique:
        for epochs in grid.epochs:
            chosen = _chosen(bench, unique, epochs)
            scored = _scored(bench, chosen, unique, epochs)
            for side, each in scored.items():
                rows.append(_row(side, unique, epochs, each, chosen if side == AR else ""))
                curves.setdefault(f"{side}, {unique:,} tokens", []).append((epochs, mean_rate(each)))
            checks += _checks(unique, epochs, scored)
    return bench.report(
        "data-limited",
        "when data run out",
        [Table("Unique tokens and epochs", "ours", [NATS, CHOSEN], rows)],
        plots=[_plot(curves)],
        checks=checks,
        protocol={
            "test_rows": f"{min(len(bench.rows()), sizes.rows)} of the {bench.split} split",
            "network": f"modern, {sizes.network.n_blocks} blocks of width {sizes.network.hidden_dim}",
            "optimizer": f"all parts of `learning` ({', '.join(PARTS)}), batch {sizes.batch_size}; every training "
            "decays to its own end",
            "embeddings": "counts of the unique tokens only",
            "weights": "raw",
            "data": "the first rows of the training split; all methods see the same, as often",
            AR: "the best on the validation split of "
            + "; ".join(f"{name}: {_words(changes)}" for name, changes in STRENGTHS.items())
            + "; MDLM and the mixture have no regularisation",
            "mixture": f"steps with one block size each, shares {MIXED['block']['mixture']}",
            "law": "AR and blocks of one token are exact; MDLM and the whole row are bounds without a raised cut-off",
            "±": "standard error over draws" + ("" if bench.seeds == 1 else " and trainings"),
        },
        study=True,
    )


def _words(changes: Changes) -> str:
    settings = [f"{key} {value:g}" for section in changes.values() for key, value in section.items()]
    return ", ".join(settings) or "none"


def _chosen(bench: Bench, unique: int, epochs: int) -> str:
    """The strength of regularisation with the fewest nats on the validation split, as a mean over trainings."""
    limit, valid = study_sizes(bench.scale).rows, bench.rows("valid")

    def nats(strength: str) -> float:
        names = bench.of_seeds(_name(f"ar-{strength}", unique, epochs))
        return sum(bench.score(name, rows=valid, limit=limit, what=f"{name} (valid)").rate.value for name in names)

    return min(STRENGTHS, key=nats)


def _scored(bench: Bench, chosen: str, unique: int, epochs: int) -> dict[str, list[ScoredModel]]:
    limit = study_sizes(bench.scale).rows
    ar, mdlm, mixture = (_name(kind, unique, epochs) for kind in (f"ar-{chosen}", "mdlm", "mixture"))

    def one(model: LanguageModel) -> LanguageModel:
        assert isinstance(model, BlockDiffusion)
        return model.in_blocks(1)

    def whole(model: LanguageModel) -> LanguageModel:
        return under_whole_bound(model.in_blocks(None) if isinstance(model, BlockDiffusion) else model)

    return {
        AR: bench.scores(ar, limit=limit),
        MDLM: bench.scores(mdlm, whole, limit=limit, estimator=WHOLE, what=f"{mdlm} by the whole bound"),
        MIXTURE: bench.scores(mixture, one, limit=limit, what=f"{mixture} by blocks of 1"),
        BOUND: bench.scores(mixture, whole, limit=limit, what=f"{mixture} by the whole row"),
    }


def _row(side: str, unique: int, epochs: int, scored: Sequence[ScoredModel], note: str) -> Row:
    cells: dict[str, Cell] = {NATS: mean_rate(scored), CHOSEN: note or None}
    return Row(f"{side}, {unique:,} tokens x {epochs}", {}, cells)


def _checks(unique: int, epochs: int, scored: Mapping[str, list[ScoredModel]]) -> list[Check]:
    where = f"{unique:,} unique tokens, {epochs} epoch{'s' * (epochs > 1)}"
    claims = (
        Claim(f"MDLM is better than AR ({where})", MDLM, AR),
        Claim(f"the mixture by its blocks of 1 is better than AR ({where})", MIXTURE, AR),
    )
    return [claim.check(scored) for claim in claims]


def _plot(curves: Mapping[str, Sequence[tuple[int, Figure]]]) -> Plot:
    drawn = [
        Curve(name, [float(x) for x, _ in each], [y.value for _, y in each], [y.error or 0.0 for _, y in each])
        for name, each in curves.items()
    ]
    title = "Nats a token after so many epochs of the same tokens"
    return Plot("epochs", title, "epochs", f"{NATS} (AR and blocks of 1 exact)", drawn, log_x=True)


DATA_LIMITED = PaperTable("data-limited", data_limited, LIMITED, "")
