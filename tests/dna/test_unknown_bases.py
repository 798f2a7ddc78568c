"""N is seen and never scored, whichever way a sequence comes: FASTA, text, a score, both windows of a variant."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from support.dna_models import HEAD, IDS, MASK, coefficient, dna_lm, genome_of, log_softmax, logits, random_bases
from unmask.config import DataConfig
from unmask.data.loader import eval_batch
from unmask.data.pack import prepare
from unmask.dna.alleles import pair_of
from unmask.dna.variants import VariantRequest, score_variants
from unmask.dna.vcf import VcfRecord
from unmask.evaluation import ESTIMATORS
from unmask.evaluation.likelihood import evaluate

LENGTH = 8
CHR = "GATNACAGNTC"
VARIANTS = ["chr1 6 . C T", "chr1 6 . C CG", "chr1 5 . AC A", "chr1 7 . A C"]  # windows of 5 have one N or two


def rows_of(path, **more):
    spec = {"tokenizer": "dna", "length": LENGTH, "valid_fraction": 0.0, "test_fraction": 0.0, **more}
    return prepare(DataConfig(source=str(path), **spec)).split("train")


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_sequence_has_one_likelihood_as_fasta_as_text_and_as_a_score(tmp_path, estimator):
    text = "".join(base if i % 5 else "N" for i, base in enumerate(random_bases(40 * LENGTH)))
    lines = [text[i : i + LENGTH] for i in range(0, len(text), LENGTH)]
    (tmp_path / "x.fa").write_text(f">chr1\n{text}\n")
    (tmp_path / "x.txt").write_text("\n".join(lines) + "\n")
    lm, known = dna_lm("objective.cutoff=0.1", length=LENGTH, scale=1.0), len(text) - text.count("N")
    fasta, plain = rows_of(tmp_path / "x.fa"), rows_of(tmp_path / "x.txt", eos_between=False)
    batches = [eval_batch(rows, range(len(rows))) for rows in (fasta, plain)]
    for part in ("tokens", "given"):
        assert torch.equal(*(getattr(batch, part) for batch in batches))
    assert torch.equal(batches[0].weight(), batches[1].weight())
    likelihoods = [evaluate(lm.model, rows, draws=20, estimator=ESTIMATORS[estimator]) for rows in (fasta, plain)]
    method = {"times": "bound"}.get(estimator, estimator)
    likelihoods.append(lm.score(lines, method=method, draws=20))
    assert [likelihood.tokens for likelihood in likelihoods] == [known] * 3
    first = likelihoods[0]
    for other in likelihoods[1:]:
        error = np.hypot(first.stderr_nats, other.stderr_nats)
        assert abs(other.nats_per_token - first.nats_per_token) < 4 * error + 1e-9 and error < 0.15


def free_of(window):
    return [i for i, token in enumerate(window) if token != IDS["N"]]


def states(window):
    """(what is hidden, the row with it hidden) for every set of known bases."""
    for size in range(len(free_of(window)) + 1):
        for hidden in itertools.combinations(free_of(window), size):
            yield hidden, np.where(np.isin(np.arange(len(window)), hidden), MASK, window)


def continuous(lm, window, sedd):
    total, cutoff = 0.0, lm.config.objective.cutoff
    for hidden, z in states(window):
        if not hidden:
            continue
        time, last = coefficient(len(hidden), len(free_of(window)), cutoff)
        rows, x = logits(lm, z)[[*hidden]], window[[*hidden]]
        if not sedd:
            total -= (time + last) * log_softmax(rows)[np.arange(len(x)), x].sum()
            continue
        rows = rows - np.log(rows.shape[1] - 1)
        mass, nll = np.delete(np.exp(rows), MASK, axis=1).sum(1), -rows[np.arange(len(x)), x]
        total += time * (nll + mass - 1).sum() + last * (nll + np.log(mass)).sum()
    return total


def left_to_right(lm, window):
    backbone = lm.model.backbone
    with torch.no_grad():
        hidden = backbone(torch.tensor([[MASK, *window]]))[0]
        log_p = log_softmax(backbone.head(hidden[0]).double().numpy())
    return -sum(log_p[i, window[i]] for i in free_of(window))


TRUTHS = {
    "mdlm": lambda lm, window: continuous(lm, window, False),
    "sedd": lambda lm, window: continuous(lm, window, True),
    "ar": left_to_right,
}


@pytest.mark.parametrize("method", TRUTHS)
def test_variants_beside_n_are_scored_as_enumeration_says(tmp_path, method):
    lm, genome = dna_lm(f"model.method={method}", length=5, scale=1.0), genome_of(tmp_path, chr1=CHR)
    (tmp_path / "v.vcf").write_text(HEAD + "".join(row.replace(" ", "\t") + "\n" for row in VARIANTS))
    request = VariantRequest(window=5, draws=1 if method == "ar" else 400, batch_size=64)
    effects = list(score_variants(lm, tmp_path / "v.vcf", genome, request))
    assert len(effects) == len(VARIANTS)
    for effect in effects:
        record = VcfRecord(1, effect.chrom, effect.pos, ".", effect.ref, ())
        pair = pair_of(record, effect.alt, genome, 5)
        assert IDS["N"] in pair.ref or IDS["N"] in pair.alt
        truth = TRUTHS[method](lm, pair.ref) - TRUTHS[method](lm, pair.alt)
        assert effect.score == pytest.approx(truth, abs=max(4 * (effect.stderr or 0), 1e-5)), effect
        assert (effect.stderr or 0) < 0.25 * max(1, abs(truth))
