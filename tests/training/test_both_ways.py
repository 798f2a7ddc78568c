"""`unmask finetune CAUSAL mdlm|block`: a causal model becomes a diffusion model; against transformers, any mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import unmask
from support.families import reference, tensors_of, write
from support.helpers import refused, run
from unmask.config import load_yaml
from unmask.data.tokenization import bytes_tokenizer
from unmask.lm import LM
from unmask.models import registry
from unmask.process.keys import Keys
from unmask.recipes import with_overrides
from unmask.training import adapt
from unmask.types import Batch, UserError

pytest.importorskip("transformers")
TOKENS = 258  # of the tokenizer; [MASK] is the next one
SHORT = ["train.steps=4", "train.batch_size=4", "train.warmup=1", "train.lr=0.002", "train.checkpoint_every=2"]
SHORT += ["eval.rows=8", "eval.draws=1", "eval.every=0", "data.length=16"]
IDS = torch.tensor([[70, 71, 200, 40, 3, 7, 101, 32], [9, 11, 250, 40, 33, 70, 1, 2]])


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("seven eight nine ten.\n" * 300)
    return str(path)


@pytest.fixture(scope="module")
def full_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal model whose embedding has no row for [MASK]."""
    cut = {
        name: tensor[:TOKENS] if name in ("model.embed_tokens.weight", "lm_head.weight") else tensor
        for name, tensor in tensors_of("llama").items()
    }
    return write(tmp_path_factory.mktemp("m") / "llama", "llama", tensors=cut, vocab_size=TOKENS)


def turned(folder: Path, kind: str = "mdlm", *changes: str) -> LM:
    lm = unmask.load(folder)
    return adapt.turned(lm, adapt.language_config(lm, str(folder), kind, "x.txt", None, ["data.length=8", *changes]))


@torch.no_grad()
def theirs(family: str, tokens: Tensor, seen: Tensor, rows: int) -> Tensor:
    """Logits of transformers where [MASK] is the mean of all tokens, and query i sees key j if seen[i, j]."""
    net = reference(family)
    table = net.get_input_embeddings().weight[:TOKENS]
    embedded = torch.cat([table, table.mean(0, keepdim=True)])[tokens]
    hidden = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    mask = hidden.expand(len(tokens), 1, *seen.shape)
    return net(inputs_embeds=embedded, attention_mask=mask, use_cache=False).logits[..., :rows]


def shifted(logits: Tensor) -> Tensor:
    return torch.cat([logits[:, :1], logits[:, :-1]], 1)


@torch.no_grad()
def ours(lm: LM, tokens: Tensor) -> Tensor:
    model: Any = lm.model
    return model.backbone.head(model.hidden(tokens, torch.ones(len(tokens), dtype=torch.float64)))[..., :TOKENS]


def masked_ids() -> Tensor:
    tokens = IDS.clone()
    tokens[:, ::3] = TOKENS
    return tokens


@pytest.mark.parametrize("prediction", ["shifted", "same"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_the_network_is_theirs_under_a_full_mask(family: str, prediction: str, tmp_path: Path) -> None:
    lm = turned(write(tmp_path / family, family), "mdlm", f"model.prediction={prediction}")
    truth = theirs(family, masked_ids(), torch.ones(8, 8, dtype=torch.bool), TOKENS)
    truth = shifted(truth) if prediction == "shifted" else truth
    torch.testing.assert_close(ours(lm, masked_ids()), truth, rtol=1e-4, atol=1e-4)


def test_a_row_for_the_mask_is_added_or_an_unused_one_taken(full_table: Path, tmp_path: Path) -> None:
    for folder, rows in ((full_table, TOKENS + 1), (write(tmp_path / "padded", "llama"), 264)):
        before, lm = unmask.load(folder), turned(folder)
        table = lm.model.state_dict()["backbone.embed_tokens.weight"]
        assert table.shape[0] == rows and lm.model.vocab.mask == TOKENS
        torch.testing.assert_close(table[TOKENS], table[:TOKENS].mean(0))
        assert table[:TOKENS].equal(before.model.state_dict()["backbone.embed_tokens.weight"][:TOKENS])
        assert lm.model.log_x(torch.randn(3, 24))[:, TOKENS].eq(-torch.inf).all()  # type: ignore[operator]


def test_blocks_of_one_token_begin_as_the_autoregressive_law(full_table: Path) -> None:
    batch = Batch(IDS, torch.arange(2), 2)
    with torch.no_grad():
        truth = unmask.load(full_table).model.nats(batch, Keys(0)).nats[:, 1:]
        got = turned(full_table, "block", "block.size=1").model.nats(batch, Keys(0)).nats[:, 1:]
    torch.testing.assert_close(got, truth, rtol=1e-4, atol=1e-4)


def test_sight_grows_from_causal_to_full(full_table: Path) -> None:
    lm, batch = turned(full_table), Batch(IDS, torch.arange(2), 2)
    model: Any = lm.model
    causal = torch.ones(8, 8, dtype=torch.bool).tril()
    seen = []
    for share, truth in ((0.0, causal), (0.5, None), (1.0, torch.ones_like(causal))):
        partly = model.partly_causal(share, batch, Keys(0))
        assert partly.sight.equal(model.partly_causal(share, batch, Keys(0)).sight)
        seen.append(int((partly.sight & ~causal).sum()))
        if truth is not None:
            logits = shifted(theirs("llama", masked_ids(), truth, TOKENS))
            changed = LM(partly, lm.tokenizer, lm.config)
            torch.testing.assert_close(ours(changed, masked_ids()), logits, rtol=1e-4, atol=1e-4)
    assert seen[0] == 0 < seen[1] < seen[2] == 28
    assert model.sight is None


def test_a_hidden_column_is_not_read_in_either_stream(full_table: Path) -> None:
    """In blocks, too: with no sight to the right, a change there changes no prediction before it."""
    model: Any = turned(full_table, "block", "block.size=4").model
    partly = model.in_blocks(4).partly_causal(0.0, Batch(IDS, torch.arange(2), 2), Keys(0))
    t, z = torch.ones(2, dtype=torch.float64), torch.full_like(IDS, TOKENS)
    other = z.clone()
    other[:, 7] = 5
    with torch.no_grad():
        for law, same in ((partly, True), (model.in_blocks(4), False)):
            one, two = (law.hidden(noisy, t, clean=IDS)[:, 4:7] for noisy in (z, other))
            assert torch.allclose(one, two, atol=1e-6) is same


def test_the_loss_is_that_of_the_step(full_table: Path) -> None:
    batch, keys = Batch(IDS, torch.arange(2), 2), Keys(0)
    slow: Any = turned(full_table, "mdlm", "train.anneal=4", "train.steps=8").model
    plain: Any = turned(full_table).model
    with torch.no_grad():
        for step, share in ((0, 0.0), (2, 0.5), (4, None), (7, None)):
            at = keys.at(step)
            law = plain if share is None else plain.partly_causal(share, batch, at)
            assert slow.loss(batch, at)[0] == law.loss(batch, at)[0]
        assert slow.nats(batch, keys).nats.equal(plain.nats(batch, keys).nats)  # which is judged as it will be used
    assert slow.describe()["training"] == "from causal attention to full attention in 4 steps"


@pytest.mark.parametrize("kind", ["mdlm", "block"])
def test_it_learns_stops_goes_on_and_loads(kind: str, full_table: Path, text: str, tmp_path: Path) -> None:
    words = ["finetune", str(full_table), kind, *SHORT, "--anneal", "2", "--data", text, "--quiet", "--json", "--out"]
    straight, halted = tmp_path / "a", tmp_path / "b"
    done = run(*words, str(straight), "--from-causal").json()
    assert done["after"]["nats_per_token"] < done["before"]["nats_per_token"]
    assert run(*words, str(halted), "train.steps=2").json()["step"] == 2
    resumed = run(*words, str(halted), "--from-causal").json()
    assert resumed["step"] == 4 and resumed["before"] == done["before"] and resumed["after"] == done["after"]
    one, two = unmask.load(straight), unmask.load(halted)
    assert all(a.equal(b) for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True))
    config = load_yaml(straight / "config.yaml")
    assert (config.model.method, config.model.prediction, config.train.start) == (kind, "shifted", str(full_table))  # type: ignore[attr-defined]
    again = unmask.load(one.save_pretrained(tmp_path / "folder"))
    how = {"length": 16, "seed": 3, "steps": 4}
    assert again.sample(2, **how) == one.sample(2, **how)
    assert "{{" not in again.infill("se{{3}}n", seed=1)[0]


def test_only_the_last_blocks_move(full_table: Path, text: str, tmp_path: Path) -> None:
    out = tmp_path / "r"
    words = [*SHORT, "train.last_blocks=1", "train.weight_decay=0.1"]
    assert run("finetune", str(full_table), "mdlm", *words, "--data", text, "--out", str(out), "--quiet").code == 0
    before, after = turned(full_table).model.state_dict(), unmask.load(out).model.state_dict()
    moved = {name for name in before if not before[name].equal(after[name])}
    assert {name.split(".")[1] for name in moved} == {"blocks", "norm", "lm_head"}
    assert all(".1." in name for name in moved if "blocks" in name) and len(moved) > 5


def test_adapters_stand_beside_the_turned_weights(full_table: Path, text: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    out, straight = tmp_path / "r", tmp_path / "s"
    words = ["finetune", str(full_table), "mdlm", *SHORT, "--lora", "2", "--data", text, "--quiet", "--json", "--out"]
    done = run(*words, str(straight)).json()
    assert run(*words, str(out), "train.steps=2").code == 0
    again = run(*words, str(out)).json()
    assert again["after"] == done["after"] and done["after"] != done["before"]
    assert run("convert", str(out), str(tmp_path / "adapter"), "--to", "adapter").code == 0
    ids = masked_ids()
    one, two = ours(unmask.load(out), ids), ours(unmask.load(tmp_path / "adapter"), ids)
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(one, ours(turned(full_table), ids), atol=1e-4)


def test_bad_settings_are_one_sentence(full_table: Path, text: str, tmp_path: Path) -> None:
    data = ["--data", text, "--out", str(tmp_path / "r")]
    name = str(full_table)
    assert "looks to the left only, and sedd needs a masked LM" in refused("finetune", name, "sedd", *data)
    assert "model.prediction" in refused("finetune", name, "mdlm", "model.prediction=left", *data)
    assert "model.n_blocks=2 belongs to the weights" in refused("finetune", name, "mdlm", "model.n_blocks=3", *data)
    assert "model.prediction=same belongs" in refused("finetune", name, "ar", "model.prediction=shifted", *data)
    assert "train.anneal" in refused("finetune", name, "mdlm", "--anneal", "-3", *data)
    assert "method ar does not use train.anneal" in refused(
        "finetune", name, "ar", "--anneal", "3", *SHORT, *data, "--quiet"
    )
    assert "tiny-en looks both ways; leave it out" in refused("finetune", "tiny-en", "mdlm", "--from-causal", *data)
    said = refused("finetune", name, "mdlm", "train.last_blocks=3", *SHORT, *data, "--quiet")
    assert "train.last_blocks=3 is more than the 2 blocks of the network" in said


def test_networks_that_see_all_are_not_annealed() -> None:
    config = with_overrides("tiny", ["model.network=caduceus", "train.anneal=3"])
    with pytest.raises(UserError, match=r"the caduceus network sees all; leave it out"):
        registry.model(config, bytes_tokenizer().vocab)
