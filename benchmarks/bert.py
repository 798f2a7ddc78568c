"""What does BERT cost? Training steps of MosaicBERT and of transformers' BERT, 6 x 384, V = 30522, L = 128, float32.

MLM (15 %) and MDLM with logits of the masked rows only, against the textbook: the forward of transformers'
BertForMaskedLM with logits of all rows, and its cross-entropy. Forward and backward; medians of turns in one run.

    python benchmarks/bert.py [--turns 7]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from measure import sgemm_peak
from unmask.models.masked import MaskedDiffusion, Objective
from unmask.networks.encoder import Encoder
from unmask.networks.interface import Network
from unmask.networks.mosaicbert import MosaicBert
from unmask.process.keys import Keys
from unmask.process.masking import corrupt
from unmask.process.schedule import Polynomial, strata
from unmask.types import Batch, Vocab

VOCAB = Vocab(30_522, mask=103, pad=0, bos=101, eos=102)
BATCH, LENGTH, DIM, LAYERS, HEADS = 8, 128, 384, 6, 12
BERT = {
    "model_type": "bert",
    "vocab_size": VOCAB.size,
    "hidden_size": DIM,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 4 * DIM,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def batch() -> Batch:
    tokens = torch.randint(1000, 30_000, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
    return Batch(tokens, torch.arange(BATCH), BATCH)


def textbook(encoder: Encoder, model: MaskedDiffusion, data: Batch, keys: Keys) -> Tensor:
    """Logits of every position, then the mask."""
    draw = model.law.draw(strata(data.index, data.total, keys), model.schedule)
    z = corrupt(data.tokens, draw.keep[:, None], keys.uniform("mask", data.index, LENGTH), VOCAB.mask)
    logits = encoder.model(input_ids=z).logits  # (B, L, V)
    nll = F.cross_entropy(logits.flatten(0, 1), data.tokens.flatten(), reduction="none").view(BATCH, LENGTH)
    return torch.where(z == VOCAB.mask, nll * draw.scale[:, None].float(), 0.0).sum()


def flops(net: Network, rows: int) -> float:
    """Matrix products of forward and backward that the loss depends on; the transform of the head is a small rest."""
    layers = sum(p.numel() for block in net.blocks for p in block.parameters() if p.dim() == 2)  # type: ignore[union-attr]
    attention = 3 * LAYERS * 4 * LENGTH**2 * DIM * BATCH
    return 6 * layers * BATCH * LENGTH + 6 * (DIM * VOCAB.size + DIM**2) * rows + attention


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=7)
    turns = parser.parse_args().turns
    torch.manual_seed(0)
    encoder = Encoder.from_architecture(BERT, VOCAB).train()
    mosaic = MosaicBert(VOCAB, DIM, LAYERS, HEADS, dropout=0.0).train()
    data = batch()
    models = {name: MaskedDiffusion(net, Polynomial()) for name, net in (("encoder", encoder), ("mosaic", mosaic))}
    mlm = MaskedDiffusion(mosaic, Polynomial(), objective=Objective(mask_rate=0.15))
    steps: dict[str, Callable[[Keys], Tensor]] = {
        "BERT, MDLM, all rows (textbook)": lambda keys: textbook(encoder, models["encoder"], data, keys),
        "BERT, MDLM, masked rows": lambda keys: models["encoder"].loss(data, keys)[0],
        "MosaicBERT, MDLM, masked rows": lambda keys: models["mosaic"].loss(data, keys)[0],
        "MosaicBERT, MLM 15 %, chosen rows": lambda keys: mlm.loss(data, keys)[0],
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    rates: list[float] = []
    peak = sgemm_peak()
    for turn in range(turns + 1):
        keys = Keys(0, turn)
        for name, step in steps.items():
            start = time.perf_counter()
            step(keys).backward()
            seconds = time.perf_counter() - start
            for net in (encoder, mosaic):
                net.zero_grad(set_to_none=True)
            if turn:
                times[name].append(seconds)
            if turn and name == "MosaicBERT, MDLM, masked rows":
                draw = models["mosaic"].law.draw(strata(data.index, BATCH, keys), Polynomial())
                rows = int((keys.uniform("mask", data.index, LENGTH) >= draw.keep[:, None]).sum())
                rates.append(flops(mosaic, rows) / seconds)
        peak = max(peak, sgemm_peak(0.4))
    slow = statistics.median(times["BERT, MDLM, all rows (textbook)"])
    print(f"threads {torch.get_num_threads()}, torch {torch.__version__}, {turns} turns, medians of forward + backward")
    for name, found in times.items():
        print(f"{name:36} {statistics.median(found):7.3f} s   textbook / this = {slow / statistics.median(found):.2f}")
    rate = statistics.median(rates)
    print(f"MosaicBERT, MDLM: {rate / 1e9:.1f} of {peak / 1e9:.1f} GFLOP/s (sgemm peak) = {rate / peak:.2f}")


if __name__ == "__main__":
    main()
