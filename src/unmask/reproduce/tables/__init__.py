"""The tables and figures of the paper, one module for each family of them; `TABLES` lists them.

A new table is a file that ends in a `PaperTable`, and a line below.
"""

from . import (
    block_sizes,
    caching,
    curves,
    data_limited,
    encoder_tuning,
    genome_ppl,
    genomic_benchmarks,
    glue_tables,
    learning,
    noise_schedules,
    perplexity,
    plan_laws,
    semi_ar,
    step_bounds,
    zero_shot,
)

TABLES = {
    table.name: table
    for table in (
        perplexity.ABLATION,
        noise_schedules.SCHEDULES_TABLE,
        step_bounds.STEPS_TABLE,
        perplexity.TIME_CONDITIONING,
        perplexity.LM1B,
        caching.CACHING,
        semi_ar.SEMI_AR,
        curves.VARIANCE_CURVE,
        zero_shot.ZERO_SHOT,
        glue_tables.BERT_TABLE,
        glue_tables.GLUE,
        encoder_tuning.ENCODER_TABLE,
        genome_ppl.DNA,
        genomic_benchmarks.GENOMICS,
        genome_ppl.DNA_CURVES,
        learning.LEARNING,
        block_sizes.BLOCKS,
        data_limited.DATA_LIMITED,
        plan_laws.LAWS,
    )
}
