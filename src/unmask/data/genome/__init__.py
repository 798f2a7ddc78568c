"""DNA, base by base: the paper's vocabulary, FASTA files, BED intervals, a 2-bit store, windows (section 5.2, D.7)."""
