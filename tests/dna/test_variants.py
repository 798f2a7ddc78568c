"""Scores of variants against enumeration, and files with all kinds of lines."""

from __future__ import annotations

import itertools
import json
import lzma

import numpy as np
import pytest
import torch

from support.dna_models import HEAD, bound, dna_lm, genome_of, ids, log_softmax, logits, random_bases, turned
from support.helpers import refused, run
from unmask.dna import variants
from unmask.dna.alleles import pair_of
from unmask.dna.paired import summarise
from unmask.dna.variants import Effect, VariantRequest, score_variants
from unmask.dna.vcf import VcfRecord, survey
from unmask.evaluation.likelihood import eval_keys
from unmask.process.keys import Keys
from unmask.types import Batch, UserError

CHR = "GATTACAGATC"  # 11 bases; the windows below have 6


@pytest.fixture
def genome(tmp_path):
    return genome_of(tmp_path, chr1=CHR, chr2="ACGTN" + random_bases(400), short="ACG")


def scored(lm, genome, tmp_path, rows, **how):
    path = tmp_path / "v.vcf"
    path.write_text(HEAD + "".join(row.replace(" ", "\t") + "\n" for row in rows))
    return list(score_variants(lm, path, genome, VariantRequest(**how)))


# -- windows ---------------------------------------------------------------------------------------------------------


def letters(window):
    return "".join("ACGTN"[token - 7] for token in window)


@pytest.mark.parametrize(
    ("pos", "ref", "alt", "windows"),
    [
        (6, "C", "T", ("TACAGA", "TATAGA")),  # two bases to the left, three to the right
        (1, "G", "T", ("GATTAC", "TATTAC")),  # moved inwards
        (11, "C", "T", ("CAGATC", "CAGATT")),
        (6, "CA", "GT", ("TACAGA", "TAGTGA")),
        (6, "CAG", "CTG", ("ACAGAT", "ACTGAT")),  # what both begin and end with is flank
        (6, "C", "CGG", ("TACAGA", "ACGGAG")),  # an insertion before column 6 has 3 flanks, then 2
        (5, "ACA", "A", ("TTACAG", "ATTAGA")),
        (1, "G", "GT", ("GATTAC", "GTATTA")),
        (10, "TC", "T", ("CAGATC", "ACAGAT")),  # at the end a deletion takes in bases from the left
    ],
)
def test_windows_have_the_allele_in_the_middle_and_one_length(genome, pos, ref, alt, windows):
    pair = pair_of(VcfRecord(1, "chr1", pos, ".", ref, (alt,)), alt, genome, 6)
    assert (letters(pair.ref), letters(pair.alt)) == windows
    for column, partner in enumerate(pair.partner):  # bases of the genome that stand in both
        assert partner < 0 or pair.ref[partner] == pair.alt[column]


def test_a_chromosome_shorter_than_the_window_is_the_window(genome):
    pair = pair_of(VcfRecord(1, "short", 2, ".", "C", ("CTT",)), "CTT", genome, 6)
    assert (letters(pair.ref), letters(pair.alt)) == ("ACG", "ACTTG")


# -- scores against the truth ----------------------------------------------------------------------------------------

SHAPES = ["chr1 6 . C T", "chr1 6 . CA GT", "chr1 6 . C CGG", "chr1 5 . ACA A", "chr1 5 . ACAG TT"]


@pytest.mark.parametrize("method", ["mdlm", "sedd"])
def test_scores_are_differences_of_the_enumerated_bound(genome, tmp_path, method):
    lm = dna_lm(f"model.method={method}", scale=1.0)
    found = scored(lm, genome, tmp_path, SHAPES, window=6, draws=400)
    for effect in found:
        pair = pair_of(VcfRecord(1, effect.chrom, effect.pos, ".", effect.ref, ()), effect.alt, genome, 6)
        truth = [bound(lm, letters(window), method == "sedd") for window in (pair.ref, pair.alt)]
        assert effect.stderr < 0.25 * max(1, abs(truth[0] - truth[1]))
        assert abs(effect.score - (truth[0] - truth[1])) < 4 * effect.stderr, effect


def test_an_autoregressive_score_is_exact(genome, tmp_path):
    lm = dna_lm("model.method=ar")
    (effect,) = scored(lm, genome, tmp_path, ["chr1 6 . C T"], window=6, draws=3)
    backbone, nats = lm.model.backbone, []
    for window in ("TACAGA", "TATAGA"):
        x = ids(window)
        with torch.no_grad():
            hidden = backbone(torch.tensor([[3, *x]]))[0]
            log_p = log_softmax(backbone.head(hidden[0]).double().numpy())
        nats.append(-sum(log_p[i, token] for i, token in enumerate(x)))
    assert effect.score == pytest.approx(nats[0] - nats[1], abs=1e-5)
    assert effect.stderr == 0


def test_pll_and_masked_by_hand(genome, tmp_path):
    lm = dna_lm()
    ref, alt = ids("TACAGA"), ids("TATAGA")

    def pll(x):
        total = 0.0
        for i, token in enumerate(x):
            z = x.copy()
            z[i] = 3
            total += log_softmax(logits(lm, z))[i, token]
        return total

    (effect,) = scored(lm, genome, tmp_path, ["chr1 6 . C T"], window=6, method="pll")
    assert (effect.score, effect.stderr) == (pytest.approx(pll(alt) - pll(ref), abs=1e-5), 0)
    z = ref.copy()
    z[2] = 3
    log_x = log_softmax(logits(lm, z))[2]
    (effect,) = scored(lm, genome, tmp_path, ["chr1 6 . C T"], window=6, method="masked")
    assert effect.score == pytest.approx(log_x[alt[2]] - log_x[ref[2]], abs=1e-5)
    (effect,) = scored(lm, genome, tmp_path, ["chr1 6 . C CA"], window=6, method="masked")
    assert effect.score is None and "one length" in effect.reason


def test_a_method_that_draws_for_itself_agrees_with_its_own_bound(genome, tmp_path):
    lm = dna_lm("model.method=d3pm", "objective.bound=discrete", "objective.steps=4", scale=1.0)
    (effect,) = scored(lm, genome, tmp_path, ["chr1 6 . C T"], window=6, draws=100)
    tokens = torch.from_numpy(np.stack([ids("TACAGA"), ids("TATAGA")]))
    n, keys = 1500, Keys(5)
    with torch.no_grad():
        each = [lm.model.nats(Batch(x.expand(n, -1), torch.arange(n), n), keys).nats.double().sum(1) for x in tokens]
    truth = float(each[0].mean() - each[1].mean())
    error = float((each[0].var() + each[1].var()).sqrt()) / n**0.5
    assert abs(effect.score - truth) < 4 * (effect.stderr + error)


def test_paired_looks_have_a_fraction_of_the_noise(tmp_path):
    bases = random_bases(200, seed=3)
    genome, lm = genome_of(tmp_path, c=bases), dna_lm(length=64)
    other = {"A": "C", "C": "A", "G": "T", "T": "G"}
    rows = [f"c {pos} . {bases[pos - 1]} {other[bases[pos - 1]]}" for pos in range(60, 100, 5)]
    draws = 16
    paired = np.mean([effect.stderr for effect in scored(lm, genome, tmp_path, rows, draws=draws)])
    apart = []
    for row in rows:
        _, pos, _, ref, alt = row.split()
        pair = pair_of(VcfRecord(1, "c", int(pos), ".", ref, ()), alt, genome, 64)
        n = 3 * draws // 2  # as many looks: three a paired draw
        keys, index = eval_keys(1), torch.arange(n)
        with torch.no_grad():
            nats = [
                lm.model.nats(Batch(torch.from_numpy(x).expand(n, -1), index, n), keys.fork(str(i))).nats.sum(1)
                for i, x in enumerate((pair.ref, pair.alt))
            ]
        apart.append(float((nats[0] - nats[1]).std()) / n**0.5)
    assert paired < 0.2 * np.mean(apart)


def test_the_error_says_how_far_scores_are_spread(genome, tmp_path):
    lm = dna_lm()
    runs = [scored(lm, genome, tmp_path, SHAPES[:3], window=6, draws=32, seed=seed) for seed in range(30)]
    for effects in zip(*runs, strict=True):
        spread = np.std([effect.score for effect in effects], ddof=1)
        said = np.sqrt(np.mean([effect.stderr**2 for effect in effects]))
        assert 0.55 < spread / said < 1.35  # neighbouring strata: rather too large than too small


def test_errors_of_strata_by_hand():
    values = np.array([[1.0, 3.0, 10.0, 10.0, 16.0]])
    mean, error = summarise(values, stratified=True)  # pairs (1, 3) and (10, 10, 16): variances 2 and 12
    assert (mean[0], error[0]) == (8.0, pytest.approx(np.sqrt(2 * 2 + 3 * 12) / 5))
    assert summarise(values[:, :1], stratified=True)[1] is None


def test_the_other_strand_has_the_same_score(tmp_path):
    """With both strands a variant and its reverse complement are one question; with one strand they are not."""
    bases = random_bases(41, seed=2)
    there = {"plain": genome_of(tmp_path / "a", c=bases), "turned": genome_of(tmp_path / "b", c=turned(bases))}
    alt = "ACGT".replace(bases[20], "")[0]
    rows = {"plain": f"c 21 . {bases[20]} {alt}", "turned": f"c 21 . {turned(bases[20])} {turned(alt)}"}
    for method, lm in (
        ("masked", dna_lm(length=9)),
        ("pll", dna_lm(length=9)),
        ("bound", dna_lm("model.method=ar", length=9)),
    ):
        for both in (True, False):
            a, b = (
                scored(lm, there[name], tmp_path, [rows[name]], method=method, both_strands=both)[0].score
                for name in rows
            )
            assert (abs(a - b) < 1e-4) == both


def test_drawn_scores_of_both_strands_are_the_mean_of_the_two(genome, tmp_path):
    lm = dna_lm()
    (effect,) = scored(lm, genome, tmp_path, ["chr1 6 . CA GT"], window=6, draws=400, both_strands=True)
    truth = [(bound(lm, own) + bound(lm, turned(own))) / 2 for own in ("TACAGA", "TAGTGA")]
    assert abs(effect.score - (truth[0] - truth[1])) < 4 * effect.stderr


# -- files -----------------------------------------------------------------------------------------------------------


def test_scores_depend_on_nothing_else_in_the_file(genome, tmp_path):
    lm = dna_lm(length=16)
    rows = [f"chr2 {pos} . {base} {'A' if base != 'A' else 'C'}" for pos, base in enumerate(random_bases(30), 6)]
    together = scored(lm, genome, tmp_path, rows, batch_size=7)
    alone = [scored(lm, genome, tmp_path, [row])[0] for row in reversed(rows)][::-1]
    for a, b in zip(together, alone, strict=True):
        assert a.score == pytest.approx(b.score, abs=1e-4)
    assert [effect.pos for effect in together] == [int(row.split()[1]) for row in rows]


def test_lines_that_cannot_be_scored_say_why_and_the_rest_is_scored(genome, tmp_path):
    rows = [
        "chr1 6 ok C T,<DEL>,CG", "chr1 6 . A T", "1 6 . C T", "chr9 6 . C T", "chr1 12 . C T", "chr1 0 . C T",
        "chr1 11 . CA T", "chr2 5 . N A", "chr1 6 . C C", "chr1 6 . C .", "chr1 x . C T", "chr1 6 . c t",
        f"chr1 6 . C {'A' * 7}", "chr1 6 . C CN",
    ]  # fmt: skip
    found = scored(dna_lm(), genome, tmp_path, rows, draws=2)
    assert [effect.line for effect in found] == [3, 3, 3, *range(4, 17)]
    reasons = [effect.reason for effect in found]
    assert [i for i, reason in enumerate(reasons) if reason is None] == [0, 2, 4, 13]
    for i, says in {
        1: "symbolic",
        3: "REF is A, but the genome has C at chr1:6",
        5: "no record 'chr9'",
        6: "11 bases",
        7: "11 bases",
        8: "11 bases",
        9: "N",
        10: "is the reference",
        11: "no alternative",
        12: "POS 'x'",
        14: "window of 6",
        15: "N",
    }.items():
        assert says in reasons[i], reasons[i]
    assert all((effect.score is None) == (effect.reason is not None) for effect in found)
    assert found[0].score == found[13].score  # lower case is the same variant
    assert (found[0].score, found[4].chrom) == (found[4].score, "1")  # and so is the other name of the chromosome


def test_alleles_that_stand_for_any_other_are_left_out(genome, tmp_path):
    rows = ["chr1 2 . A <NON_REF>", "chr1 6 . C T,<NON_REF>", "chr1 7 . A <*>", "chr1 8 . G <X>", "chr1 9 . A *,<DEL>"]
    effects = scored(dna_lm(), genome, tmp_path, rows, draws=2)
    assert [(effect.line, effect.alt, effect.reason is None) for effect in effects] == [
        (4, "T", True),
        (7, "*", False),
        (7, "<DEL>", False),
    ]
    counted = survey(tmp_path / "v.vcf")
    assert (counted.lines, counted.alleles, counted.any_other) == (5, 3, 4)


@pytest.mark.slow
def test_thousands_of_variants_come_as_they_are_read(tmp_path, monkeypatch):
    bases = random_bases(2000)
    genome, lm = genome_of(tmp_path, c=bases), dna_lm(length=8)
    rows = [f"c {pos} . {bases[pos - 1]} {'A' if bases[pos - 1] != 'A' else 'C'}" for pos in range(1, 2001)]
    path = tmp_path / "v.vcf"
    path.write_text(HEAD + "".join(row.replace(" ", "\t") + "\n" for row in rows))
    read = itertools.count()
    monkeypatch.setattr(
        variants, "read_vcf", lambda path, old=variants.read_vcf: (next(read) * 0 or one for one in old(path))
    )
    stream = score_variants(lm, path, genome, VariantRequest(draws=2, batch_size=64))
    first = next(stream)
    assert next(read) < 1000  # the first scores are there long before the last line was read
    found = [first, *stream]
    assert [effect.pos for effect in found] == list(range(1, 2001))
    assert all(effect.score is not None for effect in found)


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("variants")
    dna_lm(length=8).save_pretrained(folder / "model")
    (folder / "g.fa").write_text(f">chr1\n{CHR}\n")
    rows = ["chr1 6 . C T", "chr1 3 rs . A", "chr1 2 . A C,<DEL>"]
    (folder / "v.vcf").write_text(HEAD + "".join(row.replace(" ", "\t") + "\n" for row in rows))
    (folder / "bad.vcf").write_text(HEAD + "chr1\t6\t.\tA\tT\n")
    return folder


def command(place, *more, vcf="v.vcf"):
    return ["variants", str(place / "model"), "--vcf", str(place / vcf), "--genome", str(place / "g.fa"), *more]


def test_the_table(place, monkeypatch):
    monkeypatch.setenv("UNMASK_CACHE", str(place / "cache"))
    ran = run(*command(place, "--draws", "2"))
    assert ran.code == 0
    head, *rows = [line.split("\t") for line in ran.out.splitlines()]
    assert head == ["chrom", "pos", "id", "ref", "alt", "score", "stderr", "reason"]
    assert [(row[1], row[4], row[5] != "") for row in rows] == [
        ("6", "T", True),
        ("3", "A", False),
        ("2", "C", True),
        ("2", "<DEL>", False),
    ]
    assert "not sorted (line 5)" in ran.err and "scored 2 alleles, skipped 2" in ran.err and "line 4" in ran.err


def test_json_and_a_file(place, monkeypatch):
    monkeypatch.setenv("UNMASK_CACHE", str(place / "cache"))
    out = place / "table.tsv"
    document = run(*command(place, "--json", "--out", str(out), "--method", "masked", "--both-strands")).json()
    assert document["protocol"]["method"] == "masked" and document["protocol"]["strands"] == "both, mean"
    table = [line.split("\t") for line in out.read_text().splitlines()[1:]]
    assert [float(row[5]) for row in table if row[5]] == pytest.approx(
        [own["score"] for own in document["variants"] if own["score"] is not None], rel=1e-4
    )
    assert json.dumps(document["variants"][1]["reason"])


def test_a_gvcf_with_other_names(place, monkeypatch):
    monkeypatch.setenv("UNMASK_CACHE", str(place / "cache"))
    rows = ["1\t2\t.\tA\t<NON_REF>", "1\t6\t.\tC\tT,<NON_REF>"]
    (place / "g.vcf.xz").write_bytes(lzma.compress((HEAD + "\n".join(rows) + "\n").encode()))
    ran = run(*command(place, "--draws", "2", "--json", vcf="g.vcf.xz"))
    assert ran.json()["protocol"]["records"] == {"1": "chr1"} and ran.json()["protocol"]["any_other_alleles"] == 2
    assert [(effect["chrom"], effect["alt"]) for effect in ran.json()["variants"]] == [("1", "T")]
    assert "with and without chr: 1 is chr1" in ran.err and "scored 1 alleles, skipped 0, left out 2" in ran.err
    (place / "blocks.vcf").write_text(HEAD + rows[0] + "\n")
    assert "names no alternative allele" in refused(*command(place, vcf="blocks.vcf"))


def test_a_vcf_of_another_assembly_is_suspected(place, monkeypatch):
    """Bases that happen to agree are scored all the same, so something must be said."""
    monkeypatch.setenv("UNMASK_CACHE", str(place / "cache"))
    right, wrong = "chr1\t6\t.\tC\tT\n", "chr1\t6\t.\tA\tT\n"
    (place / "half.vcf").write_text(HEAD + right + wrong)
    ran = run(*command(place, "--draws", "2", vcf="half.vcf"))
    assert ran.code == 0 and "1 of 2 alleles have a REF that the genome does not have there" in ran.err
    (place / "most.vcf").write_text(HEAD + right * 30 + wrong)
    assert "assembly" not in run(*command(place, "--draws", "2", vcf="most.vcf")).err


def test_what_the_command_refuses(place, monkeypatch, tmp_path):
    monkeypatch.setenv("UNMASK_CACHE", str(place / "cache"))
    ran = run(*command(place, vcf="bad.vcf"))
    assert ran.code == 2 and "none of the 1 alleles" in ran.err and "line 3: REF is A" in ran.err
    assert "at least 1" in refused(*command(place, "--draws", "0"))
    assert "choose one of" in refused(*command(place, "--method", "guess"))
    assert "no folder" in refused(*command(place, "--out", str(place / "none" / "t.tsv")))
    with pytest.raises(UserError, match="model of DNA"):
        VariantRequest().check(_text_model())


def _text_model():
    from support.helpers import random_lm
    from unmask.data.tokenization import bytes_tokenizer

    return random_lm(bytes_tokenizer())


def test_a_row_of_the_table():
    assert Effect(3, "c", 5, ".", "A", "T", -1.25, 0.5).row() == "c\t5\t.\tA\tT\t-1.25\t0.5\t"
