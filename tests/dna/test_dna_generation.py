"""DNA that is written: only bases, around what is given, and alike on both strands."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch

from support.dna_models import IDS, MASK, complemented, dna_lm, ids, log_softmax, logits, random_bases, turned
from support.helpers import random_lm, refused, run
from unmask.cli.templates import write_template
from unmask.data.genome.bases import COMPLEMENT
from unmask.data.tokenization import bytes_tokenizer
from unmask.dna.strands import complement_of, conjoined
from unmask.networks.conjoined import Conjoined, backwards
from unmask.process.keys import Keys
from unmask.sampling import GivenOrder
from unmask.sampling.batcher import replay
from unmask.sampling.params import SamplingParams
from unmask.types import UserError

# -- bases only ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["mdlm", "sedd", "d3pm", "ar"])
def test_only_bases_are_written(method):
    more = ["objective.bound=discrete", "objective.steps=8"] if method == "d3pm" else []
    lm = dna_lm(f"model.method={method}", *more, length=24)
    texts = lm.sample(12, steps=None if method == "ar" else 8)
    assert {len(text) for text in texts} == {24} and set("".join(texts)) <= set("ACGT")


def test_more_letters_where_they_are_asked_for():
    lm = dna_lm(length=64)
    assert "N" in "".join(lm.sample(8, only=["A", "N"])) and set("".join(lm.sample(8, only=["A", "N"]))) <= {"A", "N"}
    assert set("".join(lm.sample(4, ban=["A", "C"]))) == {"G", "T"}
    with pytest.raises(UserError, match="every token is banned"):
        lm.sample(1, only=[])


def test_a_text_model_may_be_held_to_some_tokens_too():
    lm = random_lm(bytes_tokenizer())
    assert set(lm.sample(1, only=["a", "b"])[0]) <= {"a", "b"}
    assert SamplingParams().control(lm.prompt_canvas("x"), lm.prompt_builder) is None  # and else writes what it likes


def test_flanks_and_gaps():
    lm = dna_lm(length=30)
    for text in lm.sample(4, prompt="ACGTN", suffix="TTTT"):
        assert len(text) == 30 and text.startswith("ACGTN") and text.endswith("TTTT")
    for text in lm.infill("acgt{{10}}GG{{3}}N", 4):
        assert text.startswith("acgt") and text[14:16] == "GG" and text.endswith("N") and len(text) == 20
        assert set(text[4:14] + text[16:19]) <= set("ACGT")
    (text,) = lm.infill("ACGT{{2-4}}GGGG")
    assert 10 <= len(text) <= 12


def test_unrelated_loci_of_one_call_get_independent_insertions():
    """A network that says almost nothing of the flanks: with shared random numbers all insertions would be alike."""
    lm = dna_lm(length=16, scale=0.05)
    loci = [f'"{random_bases(4, seed=i)}{{{{8}}}}{random_bases(4, seed=99 + i)}"' for i in range(60)]
    rows = list(write_template(lm, list(enumerate(loci, 1)), SamplingParams()))
    inserted = [row["text"][4:12] for row in rows]
    assert len(set(inserted)) == 60
    alike = sum(a == b for first, second in itertools.pairwise(inserted) for a, b in zip(first, second, strict=True))
    assert alike / (59 * 8) == pytest.approx(1 / 4, abs=4 * np.sqrt(3 / 16 / (59 * 8)))
    one_seed = {lm.infill(json.loads(locus))[0][4:12] for locus in loci}  # calls of their own share their numbers
    assert len(one_seed) < 30


def test_what_is_no_base_is_named():
    lm = dna_lm()
    for text in ("ACX", "AC GT", "ACé"):
        with pytest.raises(UserError, match="not a base"):
            lm.sample(prompt=text)
    with pytest.raises(UserError, match="not a base"):
        lm.infill("MKLE{{3}}")


# -- both strands ----------------------------------------------------------------------------------------------------


def masked_row(text):
    return np.where(ids(text) == IDS["N"], MASK, ids(text))


@pytest.mark.parametrize("backbone", ["dit", "ph"])
def test_a_conjoined_network_is_equivariant_and_the_network_itself_is_not(backbone):
    more = [] if backbone == "dit" else ["model.backbone=caduceus", "model.strands=ph", "model.state_dim=4"]
    plain = dna_lm(*more, length=16)
    if backbone == "ph":  # the DiT computes its norms in float32, and is as exact: a sum of the same two numbers
        plain.model.double()
    both = conjoined(plain)
    for seed in range(3):
        z = masked_row(random_bases(8, seed) + "NN" + random_bases(5, seed + 9))
        other = COMPLEMENT[z][::-1].copy()
        assert np.abs(logits(plain, z) - complemented(logits(plain, other))).max() > 1e-2
        np.testing.assert_allclose(logits(both, z), complemented(logits(both, other)), rtol=0, atol=1e-10)


def test_the_mean_of_both_strands():
    plain = dna_lm(length=16)
    z = masked_row("ACGNTTGNA")
    other = complemented(logits(plain, COMPLEMENT[z][::-1].copy()))
    np.testing.assert_allclose(logits(conjoined(plain), z), (logits(plain, z) + other) / 2, atol=1e-5)


def test_the_bound_is_at_most_the_mean_of_the_strands():
    plain = dna_lm(length=16)
    z = masked_row("ACGNTTGNANN")
    here = log_softmax(logits(plain, z))
    there = log_softmax(complemented(logits(plain, COMPLEMENT[z][::-1].copy())))
    both, clean = log_softmax(logits(conjoined(plain), z)), [token for token in range(12) if token != MASK]
    assert (both[:, clean] >= (here[:, clean] + there[:, clean]) / 2 - 1e-5).all()


def test_padding_stays_where_it_is_and_changes_nothing():
    both = conjoined(dna_lm(length=16))
    backbone, z = both.model.backbone, ids("ACGTTG")
    padded = torch.tensor([[*z, 4, 4, 4]])
    valid = torch.arange(9)[None] < 6
    cond = backbone.condition(torch.zeros(1))
    with torch.no_grad():
        hidden = backbone(padded, condition=cond, valid=valid)[0][0, :6]
        found = backbone.head(hidden).numpy()
    np.testing.assert_allclose(found, logits(both, z), atol=1e-5)
    assert backwards(padded, valid).tolist() == [[5, 4, 3, 2, 1, 0, 6, 7, 8]]
    holes = torch.tensor([[True, False, True, True, False]])
    assert backwards(torch.zeros(1, 5), holes).tolist() == [[3, 1, 2, 0, 4]]
    assert backwards(torch.zeros(1, 4)).tolist() == [[3, 2, 1, 0]]


def test_block_ends_change_places():
    lm = dna_lm("data.block_ends=true")
    table = complement_of(lm)
    assert (table[table] == torch.arange(12)).all() and table[2] == 1
    row = torch.tensor([2, *ids("ACG"), 1])
    assert table[row].flip(0).tolist() == [2, *ids("CGT"), 1]


def law(lm, canvas, order):
    """{what was written: log p} of all ways to fill a canvas in a given order, for a model of A, C, G and T only."""
    gaps = [i for i, token in enumerate(canvas.tolist()) if token == MASK]
    targets = []
    for bases in itertools.product("ACGT", repeat=len(gaps)):
        x = canvas.clone()
        x[gaps] = torch.tensor([IDS[base] for base in bases])
        targets.append(x)
    control = SamplingParams().control(lm.gap_canvas("A{{1}}"), lm.prompt_builder)
    n = len(targets)
    found = replay(lm.model, [canvas] * n, targets, GivenOrder(order), [Keys(0)] * n, 64, control)
    return {
        "".join("ACGT"[t - 7] for t in x.tolist()): float(log_p.sum()) for x, log_p in zip(targets, found, strict=True)
    }


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_what_is_written_on_one_strand_is_what_is_written_on_the_other(order):
    plain = dna_lm(length=8)
    here = torch.from_numpy(masked_row("ANGNTNA"))
    there = torch.from_numpy(masked_row("TNANCNT"))
    mirrored = tuple(2 - i for i in order)  # gaps are counted from the left
    both = conjoined(plain)
    own, other = law(both, here, order), law(both, there, mirrored)
    assert sum(map(np.exp, own.values())) == pytest.approx(1, abs=1e-5)
    assert all(other[turned(text)] == pytest.approx(log_p, abs=1e-5) for text, log_p in own.items())
    own, other = law(plain, here, order), law(plain, there, mirrored)
    assert max(abs(other[turned(text)] - log_p) for text, log_p in own.items()) > 0.1


def test_what_cannot_be_conjoined():
    with pytest.raises(UserError, match="masked diffusion"):
        conjoined(dna_lm("model.method=ar"))
    with pytest.raises(UserError, match="model of DNA"):
        conjoined(random_lm(bytes_tokenizer()))
    ps = dna_lm("model.backbone=caduceus", "model.strands=ps", "model.state_dim=4")
    assert conjoined(ps) is ps
    both = conjoined(dna_lm())
    assert isinstance(both.model.backbone, Conjoined) and conjoined(both) is both


# -- the command -----------------------------------------------------------------------------------------------------


def test_fasta_records(tmp_path):
    dna_lm(length=70).save_pretrained(tmp_path / "model")
    model, out = str(tmp_path / "model"), tmp_path / "out.fa"
    ran = run("sample", model, "-n", "3", "--seed", "5", "--steps", "4", "--fasta", str(out), "--both-strands")
    assert (ran.code, ran.out) == (0, "") and "3 sequences" in ran.err
    lines = out.read_text().splitlines()
    assert lines[::3] == [f">sample_{i} seed={5 + i} model={model}" for i in range(3)]
    assert [len(line) for line in lines] == [len(lines[0]), 60, 10] * 3
    document = run("sample", model, "-n", "3", "--seed", "5", "--steps", "4", "--both-strands", "--json").json()
    assert [s["text"] for s in document["samples"]] == ["".join(lines[i + 1 : i + 3]) for i in (0, 3, 6)]
    assert document["protocol"]["strands"] == "both"
    shown = run("sample", model, "--steps", "4", "--with", "only=[N]", "--jsonl")
    assert json.loads(shown.out)["text"] == "N" * 70


def test_what_the_command_refuses(tmp_path):
    dna_lm().save_pretrained(tmp_path / "model")
    random_lm(bytes_tokenizer()).save_pretrained(tmp_path / "text")
    model, text = str(tmp_path / "model"), str(tmp_path / "text")
    assert "model of DNA" in refused("sample", text, "--fasta", str(tmp_path / "x.fa"))
    assert "model of DNA" in refused("sample", text, "--both-strands")
    assert "no folder" in refused("sample", model, "--fasta", str(tmp_path / "none" / "x.fa"))
    assert "'Q'" in refused("sample", model, "--prompt", "AQ")
    assert "--template" in refused("sample", model, "--template", "x.jsonl", "--fasta", "x.fa")
