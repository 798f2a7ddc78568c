"""Turning any encoder into a generator: its bound, samples and GLUE before and after MDLM fine-tuning.

The paper does this with its MosaicBERT (section 5.1). Here it is any masked LM or encoder of transformers; one without
a masked-LM head gets a new one, tied to its embeddings.
"""

from __future__ import annotations

from dataclasses import replace

from ...lm import LM
from ...models import registry
from ...sampling.params import SamplingParams
from .. import paper
from ..bench import Bench
from ..bert_models import AFTER, BEFORE, ENCODER, encoder_sizes
from ..claims import Claim
from ..report import Report, Row, Table
from ..scored import ScoredModel, mean_perplexity
from ..specs import PaperTable
from .glue_tables import GLUE_CLAIMS, available, glue_table, learned, task_protocol
from .perplexity import LOWER

SAMPLES, SAMPLE_LENGTH, SAMPLE_STEPS = 4, 40, 128
ROWS = 256  # of the split that perplexities are of
CLAIMS = (
    Claim(
        "MDLM fine-tuning lowers the bound",
        AFTER,
        BEFORE,
        paper=paper.log_ratio(paper.BERT_PPL, "BERT + MDLM-FT", "BERT"),
    ),
    replace(GLUE_CLAIMS[1], left=AFTER, right=BEFORE),
)


def encoder(bench: Bench) -> Report:
    """The encoder before and after: bound, samples, GLUE."""
    sizes = encoder_sizes(bench.scale)
    known = available(sizes.names, bench.local)
    bench.need([AFTER])
    both, length = (BEFORE, AFTER), min(SAMPLE_LENGTH, sizes.length)
    scored = {name: _bound(bench, name) for name in both}
    values = {name: learned(bench, name, known, sizes.tasks) for name in both}
    texts = [
        Row(f"{name}, seed {seed}", {}, {"text": text})
        for name in both
        for seed, text in enumerate(_samples(bench.lm(name), length))
    ]
    bounds = [Row(name, {}, {paper.PPL: mean_perplexity(model)}) for name, model in scored.items()]
    return bench.report(
        "encoder",
        paper.BERT_PPL.label,
        [
            Table("Perplexity by the bound of MDLM", paper.BERT_PPL.label, [paper.PPL], bounds),
            glue_table(values, {}, "GLUE, dev sets, before and after"),
            Table("Samples", "here", ["text"], texts),
        ],
        checks=[CLAIMS[0].check(scored), CLAIMS[1].check(values)],
        protocol={
            "encoder": bench.encoder,
            "test_rows": min(len(bench.rows()), ROWS),
            "±": "perplexity: standard error over draws; GLUE: standard deviation over seeds",
            "samples": f"{SAMPLES} of {length} tokens, T = {SAMPLE_STEPS}, seeds from 0 on, not chosen",
            **task_protocol(bench, sizes.tasks),
        },
        notes=[f"{LOWER}."],
    )


def _bound(bench: Bench, name: str) -> list[ScoredModel]:
    """The bound of the fine-tuning's objective, before and after."""
    config = bench.config(AFTER)
    law, schedule = registry.law(config.objective, config.schedule), registry.schedule(config.schedule)
    return bench.scores(name, lambda model: model.under(schedule, law), limit=ROWS, what=f"{name} by the bound of MDLM")


def _samples(lm: LM, length: int) -> list[str]:
    """The samples, one line each."""
    options = SamplingParams(steps=SAMPLE_STEPS, seed=0)
    return [" ".join(sample.text.split()) for sample in lm.write([lm.prompt_canvas("", length)] * SAMPLES, options)]


ENCODER_TABLE = PaperTable("encoder", encoder, ENCODER, "c4", local=True, encoder=True, claims=CLAIMS)
