"""MDLM in trainers of others: the masks, the weights, the normaliser, and transformers.Trainer itself."""

from __future__ import annotations

import itertools
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

from support.helpers import random_lm
from unmask.config import Config
from unmask.data.tokenization import bytes_tokenizer
from unmask.evaluation.likelihood import draw_nats
from unmask.hub.transformers import MDLM, MDLMCollator, mdlm_loss, unpack
from unmask.hub.transformers.collator import is_packed, pack
from unmask.process.keys import Keys
from unmask.types import Batch, UserError

TOKENIZER = bytes_tokenizer()
MASK, PAD = TOKENIZER.vocab.mask, TOKENIZER.vocab.pad
RAGGED = [{"input_ids": list(range(10, 10 + n))} for n in (16, 3, 9, 12, 1, 7, 14, 5)]


def rows(n: int, length: int = 16) -> list[dict]:
    return [{"input_ids": [(7 * i + j) % 200 for j in range(length)]} for i in range(n)]


def settings(folder: Path, **more) -> TrainingArguments:
    usual = {
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "prediction_loss_only": True,
        "logging_strategy": "no",
    }
    return TrainingArguments(str(folder), **{**usual, **more})


# -- labels and weights ------------------------------------------------------------------------------------------------


def test_packing_loses_nothing():
    tokens = torch.tensor([[0, 5, 2**31 - 1, 50257]])
    weights = torch.tensor([[0.0, 1e-30, 1000.123, 3.4e38]])
    counted = torch.tensor([[True, True, True, False]])
    labels = pack(tokens, weights, counted)
    assert labels.ne(-100).sum() == 3 and is_packed(labels)
    found, theirs = unpack(labels)
    assert found.tolist() == [[0, 5, 2**31 - 1, -100]]
    assert torch.equal(theirs, torch.where(counted, weights, 0.0))
    with pytest.raises(UserError, match="not from MDLMCollator"):
        unpack(torch.tensor([[3, -100]]))


def test_a_batch_is_what_it_says():
    apart, packed = (MDLMCollator(TOKENIZER, seed=3, packed=flag)(RAGGED) for flag in (False, True))
    for name in ("input_ids", "attention_mask"):
        assert torch.equal(apart[name], packed[name])
    z, present = packed["input_ids"], packed["attention_mask"].bool()
    assert (
        z.shape == (8, 16) and (z[~present] == PAD).all() and present.sum() == sum(len(r["input_ids"]) for r in RAGGED)
    )
    tokens, weights = unpack(packed["labels"])
    clean = torch.full_like(z, -100)
    for i, row in enumerate(RAGGED):
        clean[i, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
    assert torch.equal(tokens, clean)
    masked = present & (z == MASK)
    assert masked.any() and torch.equal(z[present & ~masked], clean[present & ~masked])
    assert torch.equal(apart["labels"], torch.where(masked, clean, -100))
    assert torch.equal(weights, torch.where(masked, apart["weights"][:, None], 0.0))
    assert packed["labels"].ne(-100).sum() == present.sum()  # what Trainer divides by


def test_times_are_stratified_and_weighted():
    collator = MDLMCollator(TOKENIZER, packed=False)
    for _ in range(5):
        batch = collator(rows(20, 400))
        t = 1 / batch["weights"].double()  # of the log-linear schedule
        assert sorted((t * 20).long().clamp(max=19).tolist()) == list(range(20))
        share = (batch["input_ids"] == MASK).double().mean(1)
        assert ((share - t).abs() < 5 * (t * (1 - t) / 400).sqrt() + 1e-3).all()


def test_another_schedule_and_a_network_that_is_told_the_time():
    config = Config().override(["schedule.name=cosine", "schedule.eps=0", "model.time_conditioning=true"])
    batch = MDLMCollator(TOKENIZER, config=config, packed=False)(rows(30, 300))
    alpha = torch.exp(-batch["timesteps"].double())
    t = torch.acos(alpha) * 2 / np.pi
    inner = (1 - alpha) > 2e-3
    rate = (np.pi / 2 * torch.sin(np.pi / 2 * t) / (1 - alpha))[inner]
    ratio = batch["weights"].double()[inner] / rate  # times are drawn on [t_low, 1], and the last step apart
    assert inner.sum() > 25 and (ratio - 1).abs().max() < 0.05
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio), rtol=1e-4, atol=0)
    share = (batch["input_ids"] == MASK).double().mean(1)
    assert ((share - (1 - alpha)).abs() < 5 * (0.25 / 300) ** 0.5).all()


# -- randomness --------------------------------------------------------------------------------------------------------


def test_draws_come_again_for_a_seed_and_differ_between_steps_seeds_and_processes(monkeypatch):
    def first_two(**how) -> list[torch.Tensor]:
        collator = MDLMCollator(TOKENIZER, **how)
        return [collator(rows(4))["input_ids"] for _ in range(2)]

    one, again = first_two(seed=1), first_two(seed=1)
    copy = pickle.loads(pickle.dumps(MDLMCollator(TOKENIZER, seed=1)))  # as it goes to the workers of a data loader
    assert torch.equal(copy(rows(4))["input_ids"], one[0])
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    monkeypatch.setenv("RANK", "1")
    others = [one[1], first_two(seed=2)[0], first_two(seed=1)[0], first_two(seed=1, rank=7)[0]]
    for a, b in itertools.combinations([one[0], *others], 2):
        assert not torch.equal(a, b)


def test_workers_and_epochs_have_draws_of_their_own():
    loader = DataLoader(
        [rows(1)[0]] * 8, batch_size=2, collate_fn=MDLMCollator(TOKENIZER), num_workers=2, shuffle=False
    )

    def epochs() -> list[torch.Tensor]:
        torch.manual_seed(5)
        return [batch["input_ids"] for _ in range(2) for batch in loader]

    one, again = epochs(), epochs()
    assert len(one) == 8 and all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(one, 2))


def test_a_frozen_set_stays_and_is_stratified_as_a_whole():
    collator = MDLMCollator(TOKENIZER, packed=False)
    frozen = collator.freeze(rows(40), draws=2)
    assert len(frozen) == 80
    for part in (frozen[:40], frozen[40:]):
        assert sorted(int(40 / float(row["weights"])) for row in part) == list(range(40))
    collator(rows(3))  # draws of training change nothing
    for again in (collator.freeze(rows(40), draws=2), [dict(row) for row in frozen]):
        a, b = collator(frozen[5:9]), collator(again[5:9])
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# -- the loss ----------------------------------------------------------------------------------------------------------


def exact_bound(logits_of, x: list[int], cutoff: float) -> float:
    """The bound of the log-linear schedule by all 2^L masks: mask rates from cutoff on, and a last step there."""
    length = len(x)
    hidden = torch.tensor(list(itertools.product([False, True], repeat=length)))
    z = torch.where(hidden, MASK, torch.tensor(x))
    nll = -torch.log_softmax(logits_of(z).double(), -1)[:, torch.arange(length), x]
    cost, m = (nll * hidden).sum(1).numpy(), hidden.sum(1).numpy()

    def mean(p: float) -> float:
        return float((p**m * (1 - p) ** (length - m) * cost).sum())

    nodes, weights = np.polynomial.legendre.leggauss(30)
    half = (1 - cutoff) / 2
    inner = sum(w * half * mean(p) / p for p, w in zip(cutoff + half * (nodes + 1), weights, strict=True))
    return float(inner + mean(cutoff))


def test_its_mean_is_the_bound():
    lm = random_lm(TOKENIZER, "objective.cutoff=0.05", scale=2.0)
    model = MDLM.from_lm(lm).eval()
    texts = [[10, 200, 31, 64], [99, 5, 64]]

    def logits_of(z: torch.Tensor) -> torch.Tensor:
        net = lm.model.backbone
        with torch.no_grad():
            logits = net.head(net(z, condition=net.condition(torch.zeros(len(z))))[0])
        logits[..., MASK] = float("-inf")
        return logits

    want = sum(exact_bound(logits_of, x, 0.05) for x in texts) / 7
    collator = MDLMCollator(TOKENIZER, config=model.config)
    batch = [{"input_ids": x} for x in texts] * 150
    with torch.no_grad():
        losses = np.array([float(model(**collator(batch)).loss) for _ in range(16)])
    error = losses.std(ddof=1) / 4
    assert abs(losses.mean() - want) < 4 * error and error < 0.02 * want

    tokens = torch.tensor([texts[0]] * 300)  # and what evaluation says of the first
    nats, _ = draw_nats(lm.model, Batch(tokens, torch.arange(300), 300), 10, Keys(0))
    mean, error = nats.mean(0).mean(), nats.mean(0).std(ddof=1) / 10**0.5
    assert abs(mean - exact_bound(logits_of, texts[0], 0.05)) < 4 * error


def test_the_sum_is_divided_by_all_tokens_that_are_no_padding():
    model = MDLM.from_lm(random_lm(TOKENIZER)).eval()
    collator, other = (MDLMCollator(TOKENIZER, seed=2, packed=flag) for flag in (True, False))
    packed, apart = collator(RAGGED), other(RAGGED)
    logits = model(packed["input_ids"], packed["attention_mask"]).logits
    total, tokens = 0.0, sum(len(row["input_ids"]) for row in RAGGED)
    for i, row in enumerate(RAGGED):
        for j, token in enumerate(row["input_ids"]):
            if packed["input_ids"][i, j] == MASK:
                total += float(apart["weights"][i]) * -logits[i, j].log_softmax(-1)[token].item()
    for loss in (
        model(**packed).loss,
        model(**apart).loss,
        mdlm_loss(logits, packed["labels"]),
        mdlm_loss(logits, apart["labels"], weights=apart["weights"], tokens=tokens),
        model(**packed, num_items_in_batch=torch.tensor(2 * tokens)).loss * 2,
    ):
        assert loss.item() == pytest.approx(total / tokens, rel=1e-5)
    with pytest.raises(UserError, match=r"packed=True"):
        model(**apart, num_items_in_batch=tokens)
    with pytest.raises(UserError, match=r"tokens=\.\.\."):
        mdlm_loss(logits, apart["labels"], weights=apart["weights"])


def test_mask_is_taken_out_of_the_prediction_of_any_network():
    logits = torch.randn(2, 4, TOKENIZER.vocab.size)
    logits[..., MASK] = 50.0
    labels = pack(torch.tensor([[1, 2, 3, 4]] * 2), torch.tensor([[2.0, 0, 0, 1.0]] * 2), torch.ones(2, 4).bool())
    others = [token for token in range(TOKENIZER.vocab.size) if token != MASK]
    log_p = torch.log_softmax(logits[..., others], -1)
    want = -(2 * log_p[:, 0, 1] + log_p[:, 3, 4]).sum() / 8
    collator = MDLMCollator(TOKENIZER)
    torch.testing.assert_close(collator.loss({"logits": logits}, labels), want)
    assert mdlm_loss(logits, labels) > want + 10


def test_a_batch_without_masks_has_no_gradient_and_no_nan():
    model = MDLM.from_lm(random_lm(TOKENIZER))
    labels = pack(torch.tensor([[1, 2]]), torch.zeros(1, 2), torch.ones(1, 2).bool())
    loss = model(input_ids=torch.tensor([[1, 2]]), labels=labels).loss
    loss.backward()
    assert loss == 0 and not any(p.grad.any() for p in model.parameters() if p.grad is not None)


# -- Trainer -----------------------------------------------------------------------------------------------------------


def step(folder: Path, network: torch.nn.Module, size: int, accumulate: int, collator: MDLMCollator, **how) -> dict:
    """The gradient of one step of Trainer over frozen rows: SGD with lr 1 moves by it."""
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    args = settings(
        folder,
        max_steps=1,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulate,
        optim="sgd",
        learning_rate=1.0,
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
    )
    Trainer(network, args, train_dataset=collator.freeze(RAGGED), data_collator=collator, **how).train()
    return {name: before[name] - p.detach() for name, p in network.named_parameters()}


@pytest.mark.parametrize("foreign", [False, True])
def test_accumulation_gives_the_gradient_of_the_whole_batch(tmp_path, foreign):
    collator = MDLMCollator(TOKENIZER, seed=4)

    def fresh() -> torch.nn.Module:
        return bert() if foreign else MDLM.from_lm(random_lm(TOKENIZER, "model.dropout=0"))

    how = {"compute_loss_func": collator.loss} if foreign else {}
    whole, parts = (step(tmp_path, fresh(), *cut, collator, **how) for cut in ((8, 1), (2, 4)))
    network, batch = fresh(), collator(collator.freeze(RAGGED))
    logits = network(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    tokens, weights = unpack(batch["labels"])
    hidden = batch["input_ids"] == MASK
    others = [token for token in range(TOKENIZER.vocab.size) if token != MASK]  # it is the last one: ids stay
    nll = F.cross_entropy(logits[hidden][:, others], tokens[hidden], reduction="none")
    ((weights[hidden] * nll).sum() / sum(len(row["input_ids"]) for row in RAGGED)).backward()
    moved = 0.0
    for name, parameter in network.named_parameters():
        want = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for found in (whole, parts):
            torch.testing.assert_close(found[name], want, rtol=1e-3, atol=2e-6)
        moved += float(want.abs().sum())
    assert moved > 1


def bert() -> BertForMaskedLM:
    torch.manual_seed(0)
    return BertForMaskedLM(
        BertConfig(
            vocab_size=TOKENIZER.vocab.size,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=32,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def test_a_bert_learns_with_it(tmp_path):
    ids = TOKENIZER.encode("one two three four.\n" * 200)
    data = [{"input_ids": ids[i : i + 20]} for i in range(0, len(ids), 20)]
    collator = MDLMCollator(TOKENIZER)
    args = settings(tmp_path, max_steps=40, per_device_train_batch_size=32, learning_rate=7e-3)
    trainer = Trainer(
        bert(),
        args,
        train_dataset=data,
        eval_dataset=collator.freeze(data[:64]),
        data_collator=collator,
        compute_loss_func=collator.loss,
    )
    before = trainer.evaluate()["eval_loss"]
    assert before == pytest.approx(trainer.evaluate()["eval_loss"])  # the masks are the same
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    assert 4.5 < before < 6.5 and after < 0.5 * before


def test_the_documented_example_runs(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "transformers.md").read_text(encoding="utf-8")
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "max_steps" in block]
    monkeypatch.chdir(tmp_path)
    space: dict = {}
    exec(compile(code, "docs/transformers.md", "exec"), space)
    assert space["after"] < 0.5 * space["before"]
    assert space["lm"].score("one two three four.\n", draws=8).perplexity < 20


# -- what a user gets wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([], "at least one row"),
        ([{"text": "a"}], "need input_ids"),
        ([{"input_ids": []}], "list of tokens"),
        ([{"input_ids": [1, MASK]}], "mask token"),
        ([{"input_ids": [1, 2], "attention_mask": [1]}], "attention_mask of shape"),
    ],
)
def test_rows_that_do_not_fit(data, says):
    with pytest.raises(UserError, match=says):
        MDLMCollator(TOKENIZER)(data)


def test_tokenizers_and_settings_that_do_not_fit():
    class Without:
        mask_token_id, pad_token_id = None, 0

    class Same:
        mask_token_id = pad_token_id = 3

    class NoPad:
        mask_token_id, pad_token_id = 3, None

    with pytest.raises(UserError, match="no mask token"):
        MDLMCollator(Without())
    with pytest.raises(UserError, match="also its pad token"):
        MDLMCollator(Same())
    with pytest.raises(UserError, match="no pad token"):
        MDLMCollator(NoPad())([{"input_ids": [1]}, {"input_ids": [1, 2]}])
    with pytest.raises(UserError, match="pad_to_multiple_of"):
        MDLMCollator(TOKENIZER, pad_to_multiple_of=0)
    with pytest.raises(UserError, match="bound of MDLM"):
        MDLMCollator(TOKENIZER, config=Config().override(["objective.loss=cross-entropy"]))
    with pytest.raises(UserError, match="config must be"):
        MDLMCollator(TOKENIZER, config=BertConfig())
    assert MDLMCollator(TOKENIZER, pad_to_multiple_of=8)(RAGGED[1:2])["input_ids"].shape == (1, 8)


def test_padding_that_is_given_is_neither_masked_nor_counted():
    row = {"input_ids": [5, 6, 7, PAD, PAD], "attention_mask": [1, 1, 1, 0, 0]}
    batch = MDLMCollator(TOKENIZER)([row] * 50)
    assert (batch["input_ids"][:, 3:] == PAD).all() and (batch["labels"][:, 3:] == -100).all()
    assert (batch["input_ids"][:, :3] == MASK).any() and batch["labels"].ne(-100).sum() == 150
