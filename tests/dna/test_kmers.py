"""Composition by counting letters one at a time, and the report."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from itertools import groupby, product
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy.spatial.distance
import scipy.stats

from support.dna_models import random_bases, turned
from support.helpers import refused, run
from unmask.dna.compare import compare
from unmask.dna.kmers import Counts, by_k, codes_of, distances, divergence, gc_distance, other_strand, pieces
from unmask.types import UserError

TEXTS = ["ACGTNACGCGCGATTTTTTT", "NNNN", "GGGGGGNGG", "A", random_bases(300), random_bases(77, seed=1)]


def counted(texts, k=3):
    counts = Counts(k)
    for rows in pieces([(str(i), text) for i, text in enumerate(texts)]):
        counts.add(rows)
    return counts


def markov(n, length, seed, stay=0.5):
    """Sequences in which a base tends to repeat."""
    rng, out = np.random.default_rng(seed), []
    for _ in range(n):
        text = [rng.integers(4)]
        for _ in range(length - 1):
            text.append(text[-1] if rng.random() < stay else rng.integers(4))
        out.append("".join("ACGT"[int(i)] for i in text))
    return out


def test_kmers_are_those_of_a_slow_count():
    counts = counted(TEXTS)
    for k in (1, 2, 3):
        slow = Counter(text[i : i + k] for text in TEXTS for i in range(len(text) - k + 1))
        expected = [slow["".join(word)] for word in product("ACGT", repeat=k)]
        assert counts.kmers[k - 1].tolist() == expected
    assert counts.unknown == sum(text.count("N") for text in TEXTS)
    assert (counts.sequences, counts.letters) == (6, sum(map(len, TEXTS)))


def test_figures_by_hand():
    counts = counted(TEXTS)
    whole = "".join(TEXTS)
    bases = len(whole) - whole.count("N")
    c, g = whole.count("C") / bases, whole.count("G") / bases
    pairs = [text[i : i + 2] for text in TEXTS for i in range(len(text) - 1) if "N" not in text[i : i + 2]]
    facts = counts.facts()
    assert facts["gc"] == pytest.approx(c + g)
    assert facts["cpg_observed_expected"] == pytest.approx(pairs.count("CG") / len(pairs) / (c * g))
    runs = [len(list(run)) for text in TEXTS for base, run in groupby(text) if base != "N"]
    assert facts["mean_run"] == pytest.approx(np.mean(runs))
    assert facts["longest_run"] == max(runs) == 7
    assert facts["runs_of_5_and_more"] == pytest.approx(np.mean([run >= 5 for run in runs]))
    known = [text.replace("N", "") for text in TEXTS if set(text) != {"N"}]
    shares = [(text.count("C") + text.count("G")) / len(text) for text in known]
    assert facts["gc_of_a_sequence"] == pytest.approx(np.mean(shares), abs=1e-3)
    assert facts["gc_spread"] == pytest.approx(np.std(shares, ddof=1), abs=1e-3)
    assert facts["unknown"] == pytest.approx(whole.count("N") / len(whole))


def test_lower_case_and_other_letters():
    assert codes_of("x", "acgtuNRy\n").tolist() == [0, 1, 2, 3, 3, 4, 4, 4]
    with pytest.raises(UserError, match="'x' has 'E'"):
        codes_of("x", "ACE")


def test_distances_are_those_of_other_libraries():
    a, b = counted(markov(20, 200, 0)), counted(markov(20, 200, 1, stay=0.1))
    for k in (1, 2, 3):
        p, q = a.spectrum(k), b.spectrum(k)
        assert divergence(p, q) == pytest.approx(scipy.spatial.distance.jensenshannon(p, q, base=2) ** 2)
    ends = [np.repeat(np.arange(1001), counts.gc) / 1000 for counts in (a, b)]
    assert gc_distance(a, b) == pytest.approx(scipy.stats.wasserstein_distance(*ends))
    for row in by_k(a):
        p = a.spectrum(row["k"])
        assert row["bits_per_base"] == pytest.approx(scipy.stats.entropy(p, base=2) / row["k"])
    assert by_k(a)[2]["bits_of_next_base"] == pytest.approx(
        scipy.stats.entropy(a.spectrum(3), base=2) - scipy.stats.entropy(a.spectrum(2), base=2)
    )


def test_equal_sets_are_nowhere_apart_and_disjoint_ones_fully():
    a = counted(["ACACAC"])
    assert distances(a, a) == {"jsd_1": 0, "jsd_2": 0, "jsd_3": 0, "gc": 0, "runs": 0}
    assert divergence(counted(["AAAA"]).spectrum(2), counted(["CCCC"]).spectrum(2)) == 1


def test_the_spectrum_of_the_other_strand():
    texts = markov(5, 100, 2)
    for k in (1, 2, 3):
        np.testing.assert_allclose(
            other_strand(counted(texts).spectrum(k)), counted([turned(text) for text in texts]).spectrum(k)
        )
    assert by_k(counted([*texts, *map(turned, texts)]))[2]["strand_asymmetry"] == pytest.approx(0, abs=1e-12)


def test_real_sequences_are_cut_and_nothing_counts_twice():
    text = random_bases(1000)
    parts = list(pieces([("a", text), ("b", "ACGTACG"), ("c", "AC" * 6)], 10))
    assert [rows.shape for rows in parts] == [(100, 10), (1, 7), (1, 10)]  # the two last letters of c are left out
    assert "".join("ACGT"[code] for code in parts[0].ravel()) == text


def test_the_floor_is_what_equal_laws_differ_by():
    generated, real = markov(40, 100, 0), markov(400, 100, 1)
    other = markov(40, 100, 2, stay=0.3)

    def reads(texts):
        return lambda: [(str(i), text) for i, text in enumerate(texts)]

    same = compare(reads(generated), reads(real), 3).results()
    assert same["protocol"]["floor_sets"] == 5 and same["protocol"]["floor_sequences"] == 40
    for name in ("jsd_2", "jsd_3"):
        row = same["distances"][name]
        assert abs(row["generated"] - row["floor"]) < 6 * row["floor_spread"]
        far = compare(reads(other), reads(real), 3).results()["distances"][name]
        assert far["generated"] > far["floor"] + 20 * far["floor_spread"]
    alone = compare(reads(generated), reads(real[:1]), 2).results()
    assert alone["distances"]["jsd_1"]["floor"] is None


def test_a_genome_is_cut_to_the_length_of_the_generated():
    genome = "".join(markov(1, 5000, 3))
    found = compare(lambda: [(str(i), text) for i, text in enumerate(markov(7, 50, 0))], lambda: [("chr", genome)], 2)
    assert found.length == 50 and found.real.sequences == 50 and found.whole["sequences"] == 100
    assert [floor.sequences for floor in found.floors] == [7] * 7


def test_the_report(tmp_path):
    (tmp_path / "gen.fa").write_text("".join(f">s{i}\n{text}\n" for i, text in enumerate(markov(30, 120, 0))))
    (tmp_path / "real.txt").write_text("\n".join(markov(200, 120, 1)) + "\n")
    out = tmp_path / "report"
    ran = run("compare", str(tmp_path / "gen.fa"), str(tmp_path / "real.txt"), "--k", "4", "--out", str(out), "--json")
    printed = ran.json()
    kept = json.loads((out / "results.json").read_text())
    assert kept["distances"] == printed["distances"] and kept["generated"]["sequences"] == 30
    page = (out / "report.md").read_text()
    for name in ("gc.svg", "kmers.svg", "runs.svg"):
        assert f"({name})" in page
        ElementTree.fromstring((out / name).read_text())  # well-formed
    (gc,) = [line.split("|")[1:-1] for line in page.splitlines() if re.match(r"\| GC +\|", line)]
    assert [cell.strip() for cell in gc] == ["GC", f"{kept['generated']['gc']:.3g}", f"{kept['real']['gc']:.3g}"]
    texts = {path.name: path.read_text() for path in (tmp_path / "gen.fa", tmp_path / "real.txt")}
    words = ["".join(word) for word in product("ACGT", repeat=4)]
    assert (out / "kmers.svg").read_text().count("h0") == sum(
        any(word in text for text in texts.values()) for word in words
    )
    ran = run("compare", str(tmp_path / "gen.fa"), str(tmp_path / "real.txt"), "--out", str(out))
    assert "report:" in ran.err
    heads = [line.split("  ") for line in ran.out.splitlines() if "generated" in line]
    assert [[cell.strip() for cell in head if cell.strip()] for head in heads] == [
        ["generated", "real"],
        ["distance from real DNA", "generated", "floor"],
    ]
    assert "Jensen-Shannon divergence (bits)" in ran.out and "floor: how far real sequences" in ran.out


def test_what_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("ACGT\n")
    (tmp_path / "n.txt").write_text("NNN\n")
    (tmp_path / "p.fa").write_text(">a\nMKLE\n")
    a, out = str(tmp_path / "a.txt"), str(tmp_path / "out")
    assert "between 1 and 8" in refused("compare", a, a, "--k", "9", "--out", out)
    assert "no base" in refused("compare", str(tmp_path / "n.txt"), a, "--out", out)
    assert "protein" in refused("compare", str(tmp_path / "p.fa"), a, "--out", out)
    assert "no file" in refused("compare", str(tmp_path / "none.fa"), a, "--out", out)
    assert "is a file" in refused("compare", a, a, "--out", a)
    assert math.isfinite(run("compare", a, a, "--out", out, "--json").json()["distances"]["jsd_6"]["generated"])
