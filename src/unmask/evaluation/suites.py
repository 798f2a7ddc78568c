"""One model on several sets (paper, table zeroshot-ppl): the conventions, the sets, and which of them are in-domain.

Every set is wrapped to the length of the model without EOS between its documents, with the block ends of the model's
rows. Sets that the model was trained on are evaluated too, and marked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..config import DataConfig
from ..data.pack import Rows, prepare
from ..data.records import ALIASES, ZERO_SHOT, record
from ..data.tokenization import Tokenizer
from ..distributed import World
from ..errors import UserError, choose, nearest
from ..progress import progress_bar
from ..text_tables import terminal_table
from ..types import Likelihood
from .likelihood import Estimator, check_request, evaluate

if TYPE_CHECKING:
    from ..lm import LM


@dataclass(frozen=True)
class Member:
    """A set of a suite: its title in the paper, the name of its record, and the split."""

    title: str
    corpus: str
    split: str


KIN = {**ALIASES, "wikitext-2": "wikitext2", "wikitext-103": "wikitext2", "wikitext103": "wikitext2"}  # 103 holds 2

SUITES: dict[str, tuple[Member, ...]] = {"zero-shot": tuple(Member(*row) for row in ZERO_SHOT)}


def suite(name: str, sets: Sequence[str] | None = None) -> tuple[Member, ...]:
    """The sets of a suite, or those of them that are named."""
    members = {member.corpus: member for member in SUITES[choose(name, SUITES, "suite")]}
    if sets is None:
        return tuple(members.values())
    chosen: dict[str, Member] = {}
    for wanted in sets:
        corpus = {"wikitext": "wikitext2", **ALIASES}.get(wanted, wanted)
        if corpus not in members:
            listed = ", ".join(members)
            raise UserError(f"the suite {name} has no set {wanted!r}{nearest(wanted, members)}; choose from {listed}")
        chosen[corpus] = members[corpus]
    if not chosen:
        raise UserError(f"no set of the suite {name} is named; choose from {', '.join(members)}")
    return tuple(chosen.values())


def in_domain(data: DataConfig, member: Member) -> bool:
    """Whether a model with this data was trained on the set; `a+b` is the source of a model that learned from both."""
    return member.corpus in {KIN.get(name, name) for name in data.source.split("+")}


def member_data(data: DataConfig, member: Member, local: str | None = None) -> DataConfig:
    """How a model reads a set: its tokenizer, length and block ends, the text and detokenizer of the set."""
    kept = {"length": data.length, "local": local}
    return DataConfig.model_validate({**data.model_dump(), **record(member.corpus).zero_shot, **kept})


def member_rows(
    data: DataConfig, tokenizer: Tokenizer, member: Member, local: str | None = None, quiet: bool = False
) -> Rows:
    """The rows of a set as a model with these data and this tokenizer reads them."""
    spec = member_data(data, member, local)
    with progress_bar(f"tokenizing {member.corpus}", quiet) as progress:
        return prepare(spec, tokenizer, splits=(member.split,), progress=progress).split(member.split)


@dataclass(frozen=True)
class SuiteResult:
    """The likelihood of one set."""

    member: Member
    in_domain: bool
    likelihood: Likelihood

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        facts = {"set": self.member.title, "corpus": self.member.corpus, "split": self.member.split}
        return {**facts, "in_domain": self.in_domain, **self.likelihood.as_dict()}


def evaluate_suite(
    lm: LM,
    members: Sequence[Member],
    *,
    local: str | None = None,
    draws: int = 4,
    seed: int = 0,
    rows: int | None = None,
    batch_size: int = 32,
    estimator: Estimator,
    world: World | None = None,
    protocol: dict[str, Any] | None = None,
    quiet: bool = False,
) -> list[SuiteResult]:
    """The bound of a model on every set. All sets are found and tokenized before the first is evaluated."""
    world = world or World(0, 1, lm.model.device)
    quiet = quiet or not world.main
    check_request(lm.model, draws=draws, rows=rows, batch_size=batch_size)
    with world.first():
        all_rows = [member_rows(lm.config.data, lm.tokenizer, member, local, quiet) for member in members]
    results = []
    for member, split in zip(members, all_rows, strict=True):
        with progress_bar(f"evaluating {member.corpus}", quiet) as progress:
            likelihood = evaluate(
                lm.model,
                split,
                draws=draws,
                seed=seed,
                limit=rows,
                batch_size=batch_size,
                world=world,
                estimator=estimator,
                progress=progress,
                protocol=protocol,
            )
        marked = in_domain(lm.config.data, member)
        facts = {**likelihood.protocol, "detokenizer": record(member.corpus).detokenizer, "in_domain": marked}
        results.append(SuiteResult(member, marked, replace(likelihood, protocol=facts)))
    return results


def table_lines(results: Sequence[SuiteResult]) -> list[str]:
    """The results as aligned text, with what they share of their protocol below."""
    head, lines = ("set", "perplexity", "± draws", "± texts", "bits/byte", "tokens", ""), []
    for result in results:
        likelihood = result.likelihood
        errors = [
            None if error is None else likelihood.perplexity * error
            for error in (likelihood.stderr_nats, likelihood.stderr_data)
        ]
        bits = likelihood.as_dict()["bits_per_byte"]
        lines.append(
            (
                result.member.title,
                f"{likelihood.perplexity:.2f}",
                *("-" if e is None else f"{e:.2f}" for e in errors),
                "-" if bits is None else f"{bits:.3f}",
                f"{likelihood.tokens:,}",
                "in-domain" if result.in_domain else "",
            )
        )
    same = shared([result.likelihood.protocol for result in results])
    if "detokenizer" not in same:
        each = [f"{result.likelihood.protocol.get('detokenizer')} ({result.member.title})" for result in results]
        same["detokenizer"] = ", ".join(each)
    return [*terminal_table([head, *lines]), *(f"  {key}: {value}" for key, value in same.items())]


def shared(protocols: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries that all protocols share."""
    first = protocols[0] if protocols else {}
    return {key: value for key, value in first.items() if all(p.get(key, ...) == value for p in protocols)}
