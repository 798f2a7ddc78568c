"""One model on several sets (paper, table zeroshot-ppl): the conventions, the sets, and which of them are in-domain.

Every set is wrapped to the model's own length without EOS between its documents, with the ends that the model's rows
have. Sets that the model was trained on are evaluated too, and marked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..config import DataConfig, nearest
from ..data.pack import Rows, prepare
from ..data.records import ALIASES, ZERO_SHOT, record
from ..data.tokenization import Tokenizer
from ..distributed import World
from ..progress import progress_bar
from ..tabulate import text_table
from ..types import Likelihood, UserError
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

SUITES: dict[str, tuple[Member, ...]] = {"zero-shot": tuple(Member(*found) for found in ZERO_SHOT)}


def suite(name: str, sets: Sequence[str] | None = None) -> tuple[Member, ...]:
    """The sets of a suite, or those of them that are named."""
    if name not in SUITES:
        raise UserError(f"unknown suite {name!r}{nearest(name, SUITES)}; choose one of {', '.join(SUITES)}")
    members = {member.corpus: member for member in SUITES[name]}
    if sets is None:
        return tuple(members.values())
    chosen: dict[str, Member] = {}
    for own in sets:
        corpus = {"wikitext": "wikitext2", **ALIASES}.get(own, own)
        if corpus not in members:
            listed = ", ".join(members)
            raise UserError(f"the suite {name} has no set {own!r}{nearest(own, members)}; choose from {listed}")
        chosen[corpus] = members[corpus]
    if not chosen:
        raise UserError(f"no set of the suite {name} is named; choose from {', '.join(members)}")
    return tuple(chosen.values())


def in_domain(own: DataConfig, member: Member) -> bool:
    """Whether a model with this data was trained on the set; `a+b` is the source of a model that learned from both."""
    return member.corpus in {KIN.get(name, name) for name in own.source.split("+")}


def member_data(own: DataConfig, member: Member, local: str | None = None) -> DataConfig:
    """How a model with these data reads a set: its own tokenizer, length and ends, the set's text and detokenizer."""
    kept = {"length": own.length, "local": local}
    return DataConfig.model_validate({**own.model_dump(), **record(member.corpus).zero_shot, **kept})


def member_rows(
    own: DataConfig, tokenizer: Tokenizer, member: Member, local: str | None = None, quiet: bool = False
) -> Rows:
    """The rows of a set as a model with these data and this tokenizer reads them."""
    spec = member_data(own, member, local)
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
        own = {"set": self.member.title, "corpus": self.member.corpus, "split": self.member.split}
        return {**own, "in_domain": self.in_domain, **self.likelihood.as_dict()}


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
        found = [member_rows(lm.config.data, lm.tokenizer, member, local, quiet) for member in members]
    results = []
    for member, own in zip(members, found, strict=True):
        with progress_bar(f"evaluating {member.corpus}", quiet) as progress:
            likelihood = evaluate(
                lm.model,
                own,
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
    for one in results:
        own = one.likelihood
        errors = [None if error is None else own.perplexity * error for error in (own.stderr_nats, own.stderr_data)]
        bits = own.as_dict()["bits_per_byte"]
        lines.append(
            (
                one.member.title,
                f"{own.perplexity:.2f}",
                *("-" if e is None else f"{e:.2f}" for e in errors),
                "-" if bits is None else f"{bits:.3f}",
                f"{own.tokens:,}",
                "in-domain" if one.in_domain else "",
            )
        )
    same = shared([one.likelihood.protocol for one in results])
    if "detokenizer" not in same:
        each = [f"{one.likelihood.protocol.get('detokenizer')} ({one.member.title})" for one in results]
        same["detokenizer"] = ", ".join(each)
    return [*text_table(head, lines, right=range(1, len(head))), *(f"  {key}: {value}" for key, value in same.items())]


def shared(protocols: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all protocols say, and say alike."""
    first = protocols[0] if protocols else {}
    return {key: value for key, value in first.items() if all(own.get(key, ...) == value for own in protocols)}
