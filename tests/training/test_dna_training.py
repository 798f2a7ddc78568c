"""Training on DNA: groups of weights, fine-tuning from one method to another, going on, and a cache that is a state."""

from __future__ import annotations

import functools
import json
import random
import shutil
from pathlib import Path

import pytest
import torch

from support.drawing import generate
from support.helpers import once, refused, run, train_once
from unmask import load
from unmask.config import TrainConfig
from unmask.data.genome.bases import VOCAB, N
from unmask.data.tokenization import bytes_tokenizer
from unmask.hub.checkpoint import steps
from unmask.models import registry
from unmask.models.autoregressive import AutoRegressive
from unmask.networks.interface import NetworkInput
from unmask.networks.mamba import Mamba
from unmask.process.keys import Keys
from unmask.recipes import dna_finetuning, recipe, with_overrides
from unmask.sampling import LeftToRight
from unmask.training import adapt
from unmask.training.optimizers import parameter_groups
from unmask.types import Batch, UserError

NETWORK = ["model.hidden_dim=8", "model.n_blocks=2", "model.state_dim=4"]
QUICK = ["train.batch_size=4", "train.lr=1e-3", "train.warmup=1", "train.steps=6", "train.checkpoint_every=3"]
JUDGED = ["eval.every=0", "eval.rows=8", "eval.draws=2", "train.precision=float32", "train.micro_batch_size=null"]


@functools.cache
def fasta() -> Path:
    bases = "".join(random.Random(1).choices("ACGTN", weights=[9, 6, 6, 9, 0.3], k=12_000))
    text = ">one\n" + "\n".join(bases[i : i + 50] for i in range(0, len(bases), 50)) + "\n"
    return once("toy.fa", lambda path: path.write_text(text))


@functools.cache
def made(name: str, *more: str) -> str:
    own = [f"data.source={fasta()}", "data.length=32", *NETWORK, *QUICK, *JUDGED, *more]
    return str(train_once("-".join(["dna", name, *(word.replace("=", "-") for word in more)]), name, *own))


# -- groups of weights -----------------------------------------------------------------------------------------------


def named_groups(model: torch.nn.Module, spec: TrainConfig) -> dict[str, tuple[float, float]]:
    """(rate, decay) by name."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        names[id(p)]: (group["rate"], group["weight_decay"])
        for group in parameter_groups(model, spec)
        for p in group["params"]
    }


@pytest.mark.parametrize("name", ["dna-mdlm", "dna-mamba"])
def test_biases_embeddings_a_and_d_are_not_decayed_norms_and_convolutions_are(name: str) -> None:
    found = named_groups(registry.model(recipe(name), VOCAB), TrainConfig(weight_decay=0.1))
    spared = {own for own, (_, decay) in found.items() if decay == 0}
    assert {own.rpartition(".")[2] for own in spared} == {"bias", "A_log", "D", "weight"}
    assert all("embeddings" in own for own in spared if own.endswith("weight"))
    for word in ("norm", "conv1d.weight", "in_proj.weight", "x_proj.weight", "dt_proj.weight"):
        assert any(word in own and decay == 0.1 for own, (_, decay) in found.items()), word
    assert {rate for rate, _ in found.values()} == {1.0}


def test_a_transformer_has_one_group() -> None:
    model = registry.model(recipe("tiny").override(["model.network=dit"]), VOCAB)
    assert len(parameter_groups(model, TrainConfig(weight_decay=0.1))) == 1


def test_embeddings_and_schedule_of_plaid_learn_faster() -> None:
    model = registry.model(with_overrides("tiny", ["model.method=plaid", "plaid.lr_factor=5"]), VOCAB)
    found = named_groups(model, TrainConfig())
    fast = {own for own, (rate, _) in found.items() if rate == 5}
    assert fast == {own for own in found if own.startswith(("embedding_matrix", "noise_schedule", "gamma_bounds"))}
    assert len(fast) == 5  # one embedding matrix, three weights of the schedule, its ends


# -- fine-tuning -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mdlm", "sedd", "d3pm", "plaid", "mlm"])
def test_an_mlm_goes_on_as_every_method(kind: str, tmp_path: Path) -> None:
    start = made("dna-caduceus")
    own = [*QUICK, *JUDGED, "train.steps=1", "train.lr=1e-12", "train.weight_decay=0"]
    ran = run("finetune", start, kind, *own, "--data", str(fasta()), "--out", str(tmp_path / "run"), "--quiet")
    assert ran.code == 0, ran.err
    before, after = load(start), load(tmp_path / "run")
    assert after.config.model.method == ("mdlm" if kind == "mlm" else kind)
    assert after.config.objective.loss == ("mlm" if kind == "mlm" else "bound")
    for name, tensor in before.model.backbone.state_dict().items():  # the network is that of the start
        torch.testing.assert_close(after.model.backbone.state_dict()[name], tensor, rtol=0, atol=1e-8)
    figures = json.loads((tmp_path / "run" / "before.json").read_text())
    assert 3 < figures["perplexity"] < 30 and figures["protocol"]["method"] == "mdlm"


def test_a_causal_model_goes_on_left_to_right_only(tmp_path: Path) -> None:
    start = made("dna-mamba")
    out = tmp_path / "run"
    ran = run("finetune", start, "ar", *QUICK, *JUDGED, "--data", str(fasta()), "--out", str(out), "--quiet")
    assert ran.code == 0, ran.err
    assert steps(out)[-1] == 6
    assert "looks to the left only" in refused("finetune", start, "mdlm", "--data", str(fasta()))
    both = made("dna-caduceus")
    assert "looks both ways, and ar needs a model" in refused("finetune", both, "ar", "--data", str(fasta()))


def test_the_paper_s_rates_of_fine_tuning() -> None:
    lm = load(made("dna-mamba"))
    config = adapt.language_config(lm, "m", "ar", str(fasta()))
    assert (config.train.lr, config.train.steps, config.train.betas) == (1e-3, 50_000, (0.9, 0.95))
    hyena = lm.config.override(["model.backbone=hyena"])
    assert dna_finetuning(hyena, "ar").train.lr == 5e-5


def test_networks_refuse_what_they_cannot_be() -> None:
    for more, words in (
        (["model.backbone=mamba"], "looks to the left only; set model.method=ar"),
        (["model.backbone=hyena"], "looks to the left only; set model.method=ar"),
        (["model.backbone=caduceus", "model.method=ar"], "looks both ways; set model.method=mdlm"),
        (["model.backbone=caduceus", "model.dropout=0.1"], "has no dropout; set model.dropout=0"),
        (["model.backbone=caduceus", "model.time_conditioning=true"], "does not take a time"),
        (["model.backbone=caduceus", "model.strands=ph", "model.swap_strands=true"], "belongs to model.strands=ps"),
        (["model.backbone=caduceus"], None),
    ):
        if words is None:
            registry.model(recipe("tiny").override(more), VOCAB)
            continue
        with pytest.raises(UserError, match=words):
            registry.model(recipe("tiny").override(more), VOCAB)
    with pytest.raises(UserError, match=r"set data.tokenizer=dna, or model.strands=ph"):
        registry.model(recipe("tiny").override(["model.backbone=caduceus"]), bytes_tokenizer().vocab)


@pytest.mark.parametrize("method", ["mdlm", "plaid"])
def test_a_run_on_either_strand_goes_on_bit_for_bit(method: str, tmp_path: Path) -> None:
    """Rows that are turned over, groups with rates of their own: all of it is a function of the step."""
    more = [f"model.method={method}", "model.strands=ph", "data.reverse_complement=true", "train.ema=0.9"]
    more += ["plaid.bias_warmup=1"]  # its length may follow train.steps, which differ here
    own = [f"data.source={fasta()}", "data.length=32", *NETWORK, *QUICK, *JUDGED, *more]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for out, n in ((whole, 6), (parts, 3), (parts, 6)):
        ran = run("train", "dna-mdlm", *own, "train.decay=constant", f"train.steps={n}", "--out", str(out), "--quiet")
        assert ran.code == 0, ran.err
    for kind in ("model", "ema", "optimizer"):
        first, second = (out / "checkpoints" / "step-00000006" / f"{kind}.safetensors" for out in (whole, parts))
        assert first.read_bytes() == second.read_bytes(), kind
    shutil.rmtree(whole)


def test_n_is_never_hidden_and_never_scored() -> None:
    model = registry.model(recipe("dna-tiny"), VOCAB)
    tokens = torch.randint(7, 11, (64, 20))
    known = torch.rand(64, 20) > 0.3
    tokens[~known] = N
    seen: list[torch.Tensor] = []
    inner = model.backbone.forward

    def watched(inputs: NetworkInput) -> object:
        seen.append(inputs.content)
        return inner(inputs)

    model.backbone.forward = watched  # type: ignore[method-assign, assignment]
    batch = Batch(tokens, torch.arange(64), 64, scored=known, given=~known)
    found = model.nats(batch, Keys(0))
    (z,) = seen
    assert (z[~known] == N).all()
    assert 0.3 < (z[known] == VOCAB.mask).float().mean() < 0.7
    assert (found.nats[~known] == 0).all() and torch.equal(found.weight, known)


# -- a cache that is a state -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_mixed_prompts_give_the_chances_of_a_network_without_memory(batch_size: int) -> None:
    torch.manual_seed(0)
    model = AutoRegressive(Mamba(VOCAB, 12, 2, 4).double()).eval()
    canvases = []
    for given, length in ((0, 9), (3, 7), (6, 12), (1, 2), (8, 11)):
        canvas = torch.full((length,), VOCAB.mask)
        canvas[:given] = torch.randint(7, 11, (given,))
        canvases.append(canvas)
    written: dict[tuple[int, int], float] = {}
    final: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        keys = [Keys(i) for i in range(len(canvases))]
        for state in generate(model, canvases, LeftToRight(1), keys, batch_size=batch_size):
            final[state.row] = state.canvas
            for place, chance in zip(state.positions.tolist(), state.probs.tolist(), strict=True):
                written[state.row, place] = chance
        for (row, place), chance in written.items():
            before = torch.cat((torch.tensor([VOCAB.mask]), final[row][:place]))[None]
            logits = model.backbone.head(model.backbone(before)[0][0, -1:])[0]
            logits[VOCAB.mask] = -torch.inf
            assert chance == pytest.approx(float(logits.softmax(-1)[final[row][place]]), rel=1e-5)
    assert len(written) == sum(int((canvas == VOCAB.mask).sum()) for canvas in canvases)
    for canvas, row in zip(canvases, range(len(canvases)), strict=True):
        given = canvas != VOCAB.mask
        assert torch.equal(final[row][given], canvas[given])


def test_one_more_base_costs_one_column() -> None:
    """The network reads every token once."""
    model = AutoRegressive(Mamba(VOCAB, 8, 1, 4)).eval()
    read = []
    inner = model.backbone.forward

    def counted(inputs: NetworkInput) -> object:
        read.append(inputs.content.shape[1])
        return inner(inputs)

    model.backbone.forward = counted  # type: ignore[method-assign, assignment]
    canvas = torch.full((40,), VOCAB.mask)
    with torch.no_grad():
        list(generate(model, [canvas], LeftToRight(1), [Keys(0)]))
    assert read == [1] * 40
