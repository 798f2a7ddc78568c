"""The trainings of the study `learning`: in which order, which learning rates, and their scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..evaluation.likelihood import TIMES
from ..types import UserError
from .bench import Bench
from .learning_models import (
    ALONE,
    DRAWS,
    FINALISTS,
    TUNED,
    VARIANTS,
    WHOLE,
    WITHOUT,
    StudySizes,
    forward_tokens,
    model_name,
    planned,
    under_whole_bound,
)
from .scored import ScoredModel
from .specs import of_seed


@dataclass(frozen=True)
class Run:
    """A trained model and its score on one split."""

    name: str
    tokens: int
    seconds: float
    scored: ScoredModel

    @property
    def nats(self) -> float:
        """Nats per token."""
        return self.scored.rate.value


@dataclass
class Study:
    """What is trained so far: the chosen learning rates, and the runs of recipes by budget and seed."""

    bench: Bench
    sizes: StudySizes
    rates: dict[str, float] = field(default_factory=dict)  # of the recipes that are tuned
    missing: list[str] = field(default_factory=list)  # models that a complete study has

    def name(self, recipe: str, tokens: int, seed: int = 0) -> str:
        """The name of a model with the learning rate that was chosen."""
        tuned = "ar" if recipe == "ar" else "paper"
        return of_seed(model_name(recipe, self.rates.get(tuned, self.sizes.rates[0]), tokens), seed)

    def seeds(self, recipe: str, tokens: int) -> int:
        """How many trainings a recipe has with a budget: of the finalists as many as the command says, if it does."""
        plan = planned(self.sizes, recipe)
        asked = self.bench.asked_seeds if recipe in FINALISTS and tokens in plan else None
        return asked or plan.get(tokens, 0)

    def have(self, names: Iterable[str]) -> list[str]:
        """The ones of these models that are trained; unless the bench may not, it trains those that are missing."""
        names = list(names)
        if self.bench.trains and not self.bench.planning:
            self.bench.need([], names)
        trained = [name for name in names if self.bench.available(name)]
        self.missing += [name for name in names if name not in (*trained, *self.missing)]
        return trained

    def choose_rate(self, recipe: str) -> None:
        """The best learning rate on the validation split; while it is the largest one tried, a larger one is tried."""
        rates, tried, first = self.sizes.rates, self.sizes.tried, self.sizes.first
        while True:
            names = {model_name(recipe, lr, first): lr for lr in rates[:tried]}
            nats = {lr: self.run(name).nats for name, lr in names.items() if name in self.have([name])}
            if not nats:
                return
            self.rates[recipe] = min(nats, key=lambda lr: nats[lr])
            if self.rates[recipe] != rates[tried - 1] or tried == len(rates):
                return
            tried += 1

    def planned_names(self) -> list[str]:
        """The models of a complete study if no larger learning rate than those to be tried is needed."""
        sizes, recipes = self.sizes, [*FINALISTS, *((*ALONE, *WITHOUT, *VARIANTS) if self.sizes.ablation else ())]
        tried = [model_name(recipe, lr, sizes.first) for recipe in TUNED for lr in sizes.rates[: sizes.tried]]
        every = (
            self.name(recipe, tokens, seed)
            for recipe in recipes
            for tokens in planned(sizes, recipe)
            for seed in range(self.seeds(recipe, tokens))
        )
        return list(dict.fromkeys((*tried, *every)))

    def train(self) -> None:
        """Everything, the cheap and important first."""
        sizes = self.sizes
        for base, best in (("paper", "all"), ("ar", "ar-all")):
            self.choose_rate(base)
            self.have([self.name(best, sizes.first)])
        if self.bench.planning:
            self.bench.need([], self.planned_names())
        if sizes.ablation:
            self.have(self.name(recipe, sizes.first) for recipe in (*ALONE, *WITHOUT, *VARIANTS))
        later = list(sizes.budgets)[1:]
        self._finalists([*sizes.smaller, *later[:1]], first_seed=True)
        self._finalists([*sizes.smaller, sizes.first, *later[:1]], first_seed=False)
        for tokens in (*later[1:], *sizes.longest):
            self._finalists([tokens], first_seed=True)
            self._finalists([tokens], first_seed=False)

    def _finalists(self, budgets: Sequence[int], first_seed: bool) -> None:
        for tokens in budgets:
            for recipe in FINALISTS:
                seeds = self.seeds(recipe, tokens)
                self.have(
                    self.name(recipe, tokens, seed) for seed in (range(seeds)[:1] if first_seed else range(seeds)[1:])
                )

    def run(self, name: str, split: str = "valid") -> Run:
        """A model that is trained, scored; scores are kept beside the model."""
        bench, config = self.bench, self.bench.config(name)
        seconds = bench.use(name)["core_seconds"]
        if not seconds:
            raise UserError(f"nothing says how long the training of {name} took; delete its folder to train it again")
        estimator = TIMES if config.model.method == "ar" else WHOLE
        scored = bench.score(
            name,
            under_whole_bound,
            draws=DRAWS,
            limit=self.sizes.rows,
            estimator=estimator,
            what=f"{split}, whole bound",
            rows=bench.rows(split),
        )
        return Run(name, forward_tokens(config), seconds, scored)

    def runs(self, recipe: str, tokens: int, split: str = "valid") -> list[Run]:
        """The trained models of a recipe with a budget, by seed."""
        names = (self.name(recipe, tokens, seed) for seed in range(self.seeds(recipe, tokens)))
        return [self.run(name, split) for name in names if self.bench.available(name)]
