"""VCF files: what is read, what is named by its line, and what is refused as a whole."""

from __future__ import annotations

import gzip
import lzma

import pytest

from unmask.dna.vcf import BadVariant, VcfRecord, no_sequence, read_vcf, survey
from unmask.types import UserError

HEAD = "##fileformat=VCFv4.2\n##contig=<ID=chr1>\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"


def written(tmp_path, text, name="a.vcf"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_every_column_and_every_alternative(tmp_path):
    path = written(tmp_path, HEAD + "chr1\t7\trs1\tac\tA,acg\t.\tPASS\tX=1\n\nchrM\t1\t.\tN\t.\n")
    assert list(read_vcf(path)) == [
        VcfRecord(4, "chr1", 7, "rs1", "AC", ("A", "ACG")),
        VcfRecord(6, "chrM", 1, ".", "N", (".",)),
    ]


def test_windows_line_ends_gzip_and_bgzip(tmp_path):
    text = HEAD + "chr1\t7\trs1\tA\tC\nchr1\t9\t.\tG\tT\n"
    plain = list(read_vcf(written(tmp_path, text)))
    assert [record.pos for record in plain] == [7, 9]
    assert list(read_vcf(written(tmp_path, text.replace("\n", "\r\n"), "crlf.vcf"))) == plain
    assert list(read_vcf(written(tmp_path, gzip.compress(text.encode()), "a.vcf.gz"))) == plain
    half = len(text) // 2  # bgzip is several gzip members one after the other
    members = gzip.compress(text[:half].encode()) + gzip.compress(text[half:].encode()) + gzip.compress(b"")
    assert list(read_vcf(written(tmp_path, members, "b.vcf.gz"))) == plain
    assert list(read_vcf(written(tmp_path, lzma.compress(text.encode()), "a.vcf.xz"))) == plain


def test_a_file_without_a_header_is_read(tmp_path):
    assert [record.pos for record in read_vcf(written(tmp_path, "chr1\t7\t.\tA\tC\n"))] == [7]


def test_wrong_lines_are_named_and_the_others_stay(tmp_path):
    rows = ["chr1\tseven\t.\tA\tC", "chr1\t3", "chr1\t4\t.\tAXE\tC", "chr1\t5\t.\tA\tC", "chr1\t5\t.\t-\tC"]
    found = list(read_vcf(written(tmp_path, HEAD + "\n".join(rows) + "\n")))
    assert [type(one) for one in found] == [BadVariant, BadVariant, BadVariant, VcfRecord, BadVariant]
    assert [one.line for one in found] == [4, 5, 6, 7, 8] and "REF is empty" in found[4].reason
    assert "POS 'seven'" in found[0].reason and "2 columns" in found[1].reason and "'AXE'" in found[2].reason


@pytest.mark.parametrize(
    ("alt", "says"),
    [
        (".", "no alternative"),
        ("*", "deletion"),
        ("<*>", "any other allele"),
        ("<NON_REF>", "any other allele"),
        ("<DEL>", "symbolic"),
        ("<INS:ME:ALU>", "symbolic"),
        ("G]17:198982]", "breakend"),
        ("[13:123457[C", "breakend"),
        (".A", "breakend"),
        ("-", "with the base before it"),
        ("ANC", "N"),
        ("AR", "letters"),
    ],
)
def test_what_is_no_sequence(alt, says):
    assert says in no_sequence(alt)


def test_sequences_are_sequences():
    assert [no_sequence(alt) for alt in ("A", "ACGT")] == [None, None]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (gzip.compress(HEAD.encode() * 500, mtime=0)[:-9], "cut short"),
        (lzma.compress(HEAD.encode() * 500)[:-9], "cut short"),
        (b"", "not a VCF"),
        (b"just some words\n", "not a VCF"),
        (b">chr1\nACGT\n", "not a VCF"),
        (b"chr1 5 . A C\n", "tabs"),
        (b"\xff\xfe\x00\x01", "not text"),
        (HEAD.encode(), "no variants"),
    ],
)
def test_what_is_refused(tmp_path, content, says):
    with pytest.raises(UserError, match=says) as caught:
        survey(written(tmp_path, content, "x.vcf.gz"))
    assert "x.vcf.gz" in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(UserError, match="no file"):
        survey(tmp_path / "none.vcf")
    with pytest.raises(UserError, match="folder"):
        survey(tmp_path)


def test_a_survey_counts_and_finds_the_first_line_out_of_order(tmp_path):
    rows = ["chr1\t7\t.\tA\tC,G", "chr1\t9\t.\tA\tC", "chr2\t1\t.\tA\tC", "chr2\t1\t.\tA\tG", "chr1\tx\t.\tA\tC"]
    found = survey(written(tmp_path, HEAD + "\n".join(rows) + "\n"))
    assert (found.lines, found.alleles, found.unsorted) == (5, 6, None)
    back = survey(written(tmp_path, HEAD + "\n".join([*rows, "chr2\t3\t.\tA\tC", "chr2\t2\t.\tA\tC"]) + "\n"))
    assert back.unsorted == 10
    again = survey(written(tmp_path, HEAD + "\n".join([*rows, "chr1\t99\t.\tA\tC"]) + "\n"))
    assert again.unsorted == 9  # a chromosome that had ended
