"""What the paper prints: the figures of its tables on likelihood and speed, with their labels and protocols.

Numbers are as printed (`decimals`). A `±` of the paper is a standard deviation over five evaluations of one model; it
contains the noise of the estimate but not that of training. Figures of the paper that are plots have no numbers here.
`remarks` says where the paper contradicts itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .figures import Figure

PPL = "PPL"  # the one column that most of the tables have


@dataclass(frozen=True)
class Printed:
    """A table of the paper: `rows[row name][column]`."""

    label: str
    title: str
    columns: list[str]
    rows: Mapping[str, dict[str, Figure | str]]
    protocol: str
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Picture:
    """A figure of the paper that is a plot: what it shows, and with which settings. Its curves have no numbers."""

    label: str
    title: str
    x_label: str
    y_label: str
    curves: tuple[str, ...]
    settings: Mapping[str, tuple[int, ...]]
    protocol: str
    remarks: tuple[str, ...] = ("the paper shows these curves as a picture only: there are no numbers to compare with",)


def _bound(value: float, error: float | None = None) -> Figure:
    return Figure(value, error, bound=True, decimals=2)


def _plain(value: float, decimals: int = 2) -> Figure:
    return Figure(value, decimals=decimals)


def log_ratio(table: Printed, less: str, more: str, column: str = PPL) -> float:
    """The logarithm of how many times more one row has than another: of perplexities, nats a token."""
    over, under = table.rows[more][column], table.rows[less][column]
    assert isinstance(over, Figure) and isinstance(under, Figure)
    return math.log(over.value / under.value)


_TRAINING = (
    "DiT of 12 layers, width 768, 12 heads, dropout 0.1; AdamW, rate 3e-4 after 2500 steps of warm-up, batch 512; "
    "log-linear schedule with one t per sequence from the low-discrepancy sampler"
)
_LM1B = (
    f"LM1B, detokenized, bert-base-uncased tokens, padded and cut to 128; {_TRAINING}; 1M steps are 33B tokens, "
    "counted as steps x 512 x 128 x 0.5, for half of the tokens are masked on average; perplexity on the test split"
)
_OWT = (
    f"OpenWebText, GPT-2 tokens, wrapped to 1024 with eos between documents; {_TRAINING}; 1M steps are 262B tokens, "
    "counted as steps x 512 x 1024 x 0.5; perplexity on the last 100K documents, which are held out"
)

LM1B_ABLATION = Printed(
    "tab:lm1b-ablation",
    "Ablation of MDLM on LM1B",
    [PPL],
    {
        "MDLM": {PPL: _bound(27.04, 0.01)},
        "w/o continuous time": {PPL: _bound(27.19, 0.07)},
        "& w/o carry-over": {PPL: _bound(28.56, 0.15)},
        "& w/o zero masking": {PPL: _bound(28.51, 0.15)},
    },
    f"{_LM1B}; each row is a model of its own; the models in discrete time have T = 1000; standard deviation over 5 "
    "seeds of the evaluation",
    (
        "the last row is D3PM's absorbing diffusion, with the paper's network and recipe",
        "the text says that discrete time costs 0.1; the rows say 0.15",
    ),
)

NOISE_SCHEDULES = Printed(
    "tab:var_ns",
    "Likelihood and its variance for four noise schedules",
    ["mean", "variance"],
    {
        "log-linear": {"mean": _plain(3.30), "variance": _plain(1.81)},
        "cosine": {"mean": _plain(3.30), "variance": _plain(3.30)},
        "cosine squared": {"mean": _plain(3.30), "variance": _plain(3.30)},
        "linear": {"mean": _plain(3.30), "variance": _plain(7.57)},
    },
    "one trained model, evaluated under four schedules: mean and variance per data point; the caption says bits per "
    "dimension on OpenWebText; the linear schedule is sigma = 1e8 t",
    (
        "3.30 equals ln 27.04, so it looks like nats on LM1B; a perplexity of 23.05 is 3.14 nats or 4.53 bits",
        "the two cosine schedules are printed with t running backwards; cos(pi t / 2) is meant",
    ),
)

DISCRETE_TIME = Printed(
    "supp:fig:subs-ablation",
    "Discrete against continuous time at evaluation",
    [PPL],
    {
        "∞": {PPL: _bound(23.05)},
        "10": {PPL: _bound(42.18)},
        "20": {PPL: _bound(30.70)},
        "50": {PPL: _bound(25.77)},
        "100": {PPL: _bound(24.35)},
        "200": {PPL: _bound(23.66)},
        "500": {PPL: _bound(23.26)},
        "1000": {PPL: _bound(23.15)},
    },
    f"{_OWT}; one MDLM without time conditioning, trained with T = ∞, evaluated with T steps; a row is a T",
    ("the paper puts this table under the heading of the LM1B ablations, but it is on OpenWebText",),
)

TIME_CONDITIONING = Printed(
    "tab:time-cond-abl",
    "Ablation of time conditioning on OpenWebText",
    [PPL],
    {
        "MDLM w/ time conditioning": {PPL: _bound(23.21)},
        "MDLM w/o time conditioning": {PPL: _bound(23.05)},
    },
    f"{_OWT}; two models, 1M steps each",
    (
        "printed without ≤, but both are bounds",
        "the text counts these 1M steps as 524B tokens, the main text as 262B (without and with the factor 0.5)",
    ),
)

LM1B = Printed(
    "tab:lm1b-ppl",
    "Test perplexity on LM1B",
    ["parameters", PPL],
    {
        "Transformer-X Base": {"parameters": "0.46B", PPL: _plain(23.5, 1)},
        "OmniNet_T": {"parameters": "100M", PPL: _plain(21.5, 1)},
        "BERT-Mouth": {"parameters": "110M", PPL: _bound(142.89)},
        "D3PM (absorb)": {"parameters": "70M", PPL: _bound(76.90)},
        "Diffusion-LM": {"parameters": "80M", PPL: _bound(118.62)},
        "DiffusionBert": {"parameters": "110M", PPL: _bound(63.78)},
        "SEDD (33B tokens)": {"parameters": "110M", PPL: _bound(32.79)},
        "AR (33B tokens)": {"parameters": "110M", PPL: _plain(22.32)},
        "AR (327B tokens)": {"parameters": "110M", PPL: _plain(20.86)},
        "MDLM (33B tokens)": {"parameters": "110M", PPL: _bound(27.04)},
        "MDLM (327B tokens)": {"parameters": "110M", PPL: _bound(23.00)},
    },
    f"{_LM1B}; AR is the same network with a causal mask, trained for half as many steps (0.5M and 5M) to see as many "
    "tokens; the first seven rows are quoted from other papers",
    ("110M is nominal: with two untied matrices of 30522 tokens the diffusion network has 139M parameters",),
)

BD3LM = Printed(  # of another paper, which has the same network, text and steps
    "BD3-LM",
    "Test perplexity by block size (Arriola et al. 2025: LM1B, 1M steps)",
    [PPL],
    {
        "AR": {PPL: _plain(22.83)},
        "MDLM": {PPL: _bound(31.78)},
        "blocks of 16": {PPL: _bound(30.60)},
        "blocks of 8": {PPL: _bound(29.83)},
        "blocks of 4": {PPL: _bound(28.23)},
    },
    "LM1B wrapped to 128 tokens, bert-base-uncased, 1M steps; a block model is 850K steps of MDLM and 150K of its own",
    ("the table of BD3-LM is of rows that are wrapped, so its MDLM is not that of tab:lm1b-ppl",),
)

OWT = Printed(
    "owt-ppl",
    "Test perplexity on OpenWebText",
    [PPL],
    {
        "AR": {PPL: _plain(17.54)},
        "SEDD": {PPL: _bound(24.10)},
        "MDLM": {PPL: _bound(23.21)},
    },
    f"{_OWT}; all three retrained by the authors, AR for 0.5M steps; MDLM with time conditioning",
)

CACHING = Printed(
    "tab:caching-wall-clock",
    "Minutes to generate 64 samples",
    ["T=5k", "T=10k"],
    {
        "SEDD": {"T=5k": _plain(85.3, 1), "T=10k": _plain(155.2, 1)},
        "MDLM": {"T=5k": _plain(70.3, 1), "T=10k": _plain(127.9, 1)},
        "MDLM + caching": {"T=5k": _plain(40.1, 1), "T=10k": _plain(60.4, 1)},
    },
    "wall clock in minutes, 64 samples of 1024 tokens by the OpenWebText models on one A5000; batch 16 without "
    "caching, 1 with caching",
    ("the length and the batch sizes are from the text and from fig:caching-wall-clock, not from this table",),
)

SEMI_AR = Printed(
    "tab:semi-ar",
    "Semi-autoregressive generation of 2048 tokens",
    ["Gen. PPL", "Sec/Seq"],
    {
        "SSD-LM": {"Gen. PPL": _plain(35.43), "Sec/Seq": _plain(2473.9, 1)},
        "MDLM": {"Gen. PPL": _plain(27.18), "Sec/Seq": _plain(89.3, 1)},
    },
    "200 sequences of 2048 tokens on one 3090; generative perplexity under a pre-trained GPT-2; SSD-LM writes blocks "
    "of 25 tokens, MDLM strides of L' = 512",
    ("the paper does not name the size of GPT-2, nor T; the authors' code uses gpt2-large and 1000 steps a stride",),
)

ZERO_SHOT = Printed(
    "zeroshot-ppl",
    "Zero-shot perplexity on seven sets",
    ["AR", "SEDD", "MDLM"],
    {
        name: {"AR": _plain(ar), "SEDD": _bound(sedd), "MDLM": _bound(mdlm)}
        for name, ar, sedd, mdlm in (
            ("PTB", 82.05, 100.09, 95.26),
            ("Wikitext", 25.75, 34.28, 32.83),
            ("LM1B", 51.25, 68.20, 67.01),
            ("Lambada", 51.28, 49.86, 47.52),
            ("AG News", 52.09, 62.09, 61.15),
            ("Pubmed", 49.01, 44.53, 41.89),
            ("Arxiv", 41.73, 38.48, 37.37),
        )
    },
    f"models of OpenWebText ({_OWT}), on the validation splits of seven sets; detokenized as by Lou et al., AG News, "
    "Pubmed and Arxiv with the rules of Wikitext and then of LM1B; wrapped to 1024 without eos between documents",
    ("the caption counts the training as 524B tokens, the main text as 262B (without and with the factor 0.5)",),
)

_GLUE = ("MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE", "Avg")
_BERT = (
    "MosaicBERT of 137M parameters on C4, bert-base-uncased tokens, padded and cut to 128; 70k steps of 4096 rows, "
    "rate 5e-4 with a linear decay to 0.02 of it after 6 % of warm-up, decoupled AdamW; AR is its causal variant; "
    "MDLM-FT is 5k steps of 512 rows, rate 5e-5 after 2500 steps of warm-up"
)

GLUE = Printed(
    "tbl:glue",
    "GLUE, dev sets",
    list(_GLUE),
    {
        name: dict(zip(_GLUE, (_plain(value) for value in values), strict=True))
        for name, values in (
            ("AR", (80.94, 80.78, 86.98, 86.16, 90.14, 33.43, 84.32, 83.88, 47.29, 74.88)),
            ("BERT", (84.43, 85.35, 88.41, 90.46, 92.20, 54.81, 88.41, 89.16, 61.37, 81.62)),
            ("BERT + MDLM-FT", (84.76, 85.07, 88.49, 90.30, 92.20, 57.69, 87.48, 90.53, 62.09, 82.06)),
        )
    },
    f"{_BERT}; transformers' run_glue: 3 epochs, rate 2e-5, batch 16",
    (
        "the caption says accuracy for CoLA; the values are Matthews correlations, as the script gives",
        "Avg is the mean of nine numbers: MNLI-m and MNLI-mm count separately",
    ),
)

BERT_PPL = Printed(
    "section 5.1, text",
    "Perplexity of BERT before and after MDLM fine-tuning, on C4",
    [PPL],
    {
        "AR": {PPL: _plain(22, 0)},
        "BERT": {PPL: Figure(78, bound=True, decimals=0)},
        "BERT + MDLM-FT": {PPL: Figure(35, bound=True, decimals=0)},
    },
    f"{_BERT}; validation split of C4; BERT by the bound of MDLM",
    (
        "the text counts the fine-tuning as 327M tokens and the pre-training as 37B, the appendix as 32M and 36B; "
        "5k x 512 x 128 is 327.7M",
    ),
)

WALL_CLOCK = Picture(
    "fig:caching-wall-clock",
    "Generative perplexity against wall clock",
    "wall clock to generate 64 samples",
    "generative perplexity",
    ("AR", "SEDD", "MDLM", "MDLM + caching"),
    {"T": (100, 500, 1000, 5000, 10000)},
    "64 samples by the OpenWebText models on one A5000 of 32 GB; batch 16 for AR, SEDD and MDLM without caching; with "
    "caching the batch size varies",
)

TRAIN_NLL = Picture(
    "fig:nll_owt",
    "Train NLL on OpenWebText",
    "steps",
    "nats per token",
    ("MDLM", "SEDD"),
    {"steps": (1_000_000,), "logged every": (1000,)},
    f"{_OWT}; the loss of single batches, every 1000 steps, not smoothed",
)

TABLES = {
    table.label: table
    for table in (
        LM1B_ABLATION,
        NOISE_SCHEDULES,
        DISCRETE_TIME,
        TIME_CONDITIONING,
        LM1B,
        OWT,
        CACHING,
        SEMI_AR,
        ZERO_SHOT,
        GLUE,
        BERT_PPL,
    )
}
PICTURES = {picture.label: picture for picture in (WALL_CLOCK, TRAIN_NLL)}
