"""A classifier on every backbone, against transformers and against sums by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from support.helpers import random_model, tiny_config
from unmask.models.classifier import Classifier
from unmask.networks.interface import Network
from unmask.process.keys import Keys
from unmask.types import Batch, Vocab

VOCAB = Vocab(20, mask=19, pad=18, bos=17, eos=16)
NETWORKS = {
    "dit": [],
    "dit told the time": ["model.time_conditioning=true"],
    "causal": ["model.method=ar"],
    "mosaicbert": ["model.backbone=mosaicbert"],
    "causal mosaicbert": ["model.backbone=mosaicbert", "model.method=ar"],
}


def backbone(name: str) -> Network:
    return random_model(tiny_config("model.dropout=0.1", *NETWORKS[name]), VOCAB).backbone


def classifier(name: str, n_outputs: int = 3) -> Classifier:
    torch.manual_seed(1)
    found = Classifier(backbone(name), n_outputs).eval()
    for p in (found.pooler, found.classifier):  # larger than they begin, so that what is wrong shows
        nn.init.normal_(p.weight, std=0.5)
        nn.init.normal_(p.bias, std=0.5)
    return found


def rows(lengths: tuple[int, ...] = (7, 4, 1), width: int = 7, scores: bool = False) -> Batch:
    rng = np.random.default_rng(2)
    present = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
    tokens = torch.where(present, torch.from_numpy(rng.integers(0, 16, (len(lengths), width))), 18)
    label = torch.tensor([0.5, -2.0, 3.25][: len(lengths)]) if scores else torch.tensor([2, 0, 1][: len(lengths)])
    types = (torch.arange(width)[None] >= 2).long() * present
    return Batch(tokens, torch.arange(len(lengths)), len(lengths), present=present, label=label, types=types)


def hidden_of(model: Classifier, batch: Batch, row: int) -> np.ndarray:
    """Hidden states of one row alone, without its padding."""
    assert batch.present is not None and batch.types is not None
    n = int(batch.present[row].sum())
    net, tokens = model.backbone, batch.tokens[row : row + 1, :n]
    told = {"types": batch.types[row : row + 1, :n]} if "types" in net.takes else {}
    return net(tokens, condition=net.condition(torch.zeros(1)), **told)[0][0].detach().double().numpy()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("scores", [False, True])
def test_the_loss_is_what_a_hand_computes(name: str, scores: bool) -> None:
    """Each row alone and without padding, in float64: first token, or last real one of a causal network."""
    model, batch = classifier(name, 1 if scores else 3), rows(scores=scores)
    assert batch.label is not None
    want = 0.0
    weights = {k: v.double().numpy() for k, v in model.state_dict().items()}
    for row in range(len(batch)):
        states = hidden_of(model, batch, row)
        state = states[-1] if "causal" in name else states[0]
        pooled = np.tanh(weights["pooler.weight"] @ state + weights["pooler.bias"])
        out = weights["classifier.weight"] @ pooled + weights["classifier.bias"]
        label = batch.label[row].item()
        want += (out[0] - label) ** 2 if scores else np.log(np.exp(out).sum()) - out[int(label)]
    loss, weight = model(batch, Keys(0))
    assert weight.item() == 3
    assert loss.item() == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_padding_changes_nothing(name: str) -> None:
    model = classifier(name)
    narrow, wide = rows(), rows(width=12)
    wide = Batch(
        torch.full_like(wide.tokens, 3), wide.index, 3, present=wide.present, label=wide.label, types=wide.types
    )  # what stands in the padding does not matter either
    wide.tokens[:, :7] = torch.where(narrow.present, narrow.tokens, 5)
    torch.testing.assert_close(model.outputs(wide), model.outputs(narrow), rtol=1e-5, atol=1e-6)


def test_a_causal_network_answers_with_its_last_real_token() -> None:
    """It hears of every token of the row; the first alone would hear only itself."""
    model, batch = classifier("causal"), rows((5,))
    before = model.outputs(batch)
    for column in range(7):
        tokens = batch.tokens.clone()
        tokens[0, column] = (tokens[0, column] + 1) % 16
        after = model.outputs(Batch(tokens, batch.index, 1, present=batch.present))
        assert torch.equal(after, before) == (column >= 5), column


def test_types_reach_the_networks_that_know_them() -> None:
    for name, told in {"mosaicbert": True, "dit": False, "causal": False}.items():
        model, batch = classifier(name), rows()
        plain = Batch(batch.tokens, batch.index, 3, present=batch.present)
        assert torch.equal(model.outputs(plain), model.outputs(batch)) is not told, name


def test_all_is_transformers_own_classifier() -> None:
    """A BERT of transformers through our seam: outputs, loss and gradients of BertForSequenceClassification."""
    transformers: Any = pytest.importorskip("transformers")
    from unmask.networks.encoder import Encoder

    spec = transformers.BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
        num_labels=3,
        pad_token_id=18,
    )
    torch.manual_seed(0)
    theirs = transformers.BertForSequenceClassification(spec).eval()
    whole = transformers.BertForMaskedLM(spec)
    whole.bert.load_state_dict({k: v for k, v in theirs.bert.state_dict().items() if "pooler" not in k})
    ours = Classifier(Encoder(whole, VOCAB), 3).eval()
    ours.pooler.load_state_dict(theirs.bert.pooler.dense.state_dict())
    ours.classifier.load_state_dict(theirs.classifier.state_dict())
    batch = rows()
    want = theirs(input_ids=batch.tokens, attention_mask=batch.present, token_type_ids=batch.types, labels=batch.label)
    torch.testing.assert_close(ours.outputs(batch), want.logits)
    loss, weight = ours(batch, Keys(0))
    torch.testing.assert_close(loss / weight, want.loss)
    (loss / weight).backward()
    want.loss.backward()
    for a, b in ((ours.pooler, theirs.bert.pooler.dense), (whole.bert.encoder, theirs.bert.encoder)):
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_only_what_matters_takes_gradients(name: str) -> None:
    """The head of the language model is left alone, and all the rest is not."""
    model = classifier(name)
    frozen = set(model.freeze_unused())
    heads = ("backbone.output_layer.linear.", "backbone.cls.")
    assert frozen == {n for n, _ in model.named_parameters() if n.startswith(heads)}
    assert len(frozen) == (5 if "mosaicbert" in name else 2)
    model(rows(), Keys(0))[0].backward()
    for n, p in model.named_parameters():
        assert p.requires_grad is (n not in frozen) and (p.grad is None) is (n in frozen), n


def test_it_begins_as_berts_does() -> None:
    torch.manual_seed(0)
    model = Classifier(random_model(tiny_config("model.hidden_dim=128"), VOCAB).backbone, 3)
    assert model.pooler.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.classifier.weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert not model.pooler.bias.any() and not model.classifier.bias.any()


def test_dropout_stands_before_the_classifier() -> None:
    """With nothing else random, the mean over many draws is the output without dropout."""
    torch.manual_seed(0)
    model = Classifier(random_model(tiny_config("model.dropout=0"), VOCAB).backbone, 2, dropout=0.4)
    nn.init.normal_(model.classifier.weight, std=0.5)
    nn.init.normal_(model.pooler.weight, std=0.5)
    batch = rows((7,))
    want = model.eval().outputs(batch)
    with torch.no_grad():
        draws = torch.stack([model.train().outputs(batch) for _ in range(500)])
    assert draws.std(0).min() > 0.05
    error = draws.std(0) / 500**0.5
    assert ((draws.mean(0) - want).abs() < 4 * error).all()
