"""Muon against an SVD, a slow oracle and torch's own; which weights it moves; decay at the end; divergence."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import unmask
from networks.test_contract import SMALL
from oracles import muon as oracle
from support import runs
from support.helpers import random_model, random_rows, run, settings, tiny_config
from unmask.config import NETWORKS, Config, TrainConfig, parse
from unmask.data.loader import train_batch
from unmask.distributed import World
from unmask.models import registry
from unmask.recipes import recipe
from unmask.training.divergence import Divergence
from unmask.training.optimizers import Muon, build_optimizers, learning_rate, momentum, orthogonal, parameter_groups
from unmask.training.step import Trainer
from unmask.types import UserError, Vocab

VOCAB = Vocab(12, mask=11, pad=10)
HERE = World(0, 1, torch.device("cpu"))
SHAPES = [(24, 24), (16, 64), (64, 16), (20, 29), (1, 7), (7, 1)]


def random_matrix(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


# -- the orthogonal factor -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_factor_has_the_singular_vectors_of_the_matrix_and_values_near_one(shape: tuple[int, int]) -> None:
    matrix = random_matrix(*shape)
    u, s, v = oracle.polar(matrix)
    inside = u.T @ orthogonal(matrix[None])[0].double() @ v  # diagonal, if the singular spaces are right
    values = inside.diagonal()
    torch.testing.assert_close(inside, torch.diag(values), atol=1e-4, rtol=0)
    large = s > 0.02 * s.square().sum().sqrt()  # five steps do not lift the smallest to 1
    assert large.sum() > 0.8 * len(s)
    assert values[large].min() > 0.65 and values.max() < 1.25 and values.min() > 0
    torch.testing.assert_close(orthogonal(matrix[None])[0].double(), oracle.five_steps(matrix), atol=1e-4, rtol=0)


def test_weak_directions_do_not_spoil_the_strong() -> None:
    """Singular values over six orders of magnitude, square and wide: the two ways to compute agree with the SVD."""
    for shape in ((32, 32), (32, 128), (128, 32)):
        u, _, v = oracle.polar(random_matrix(*shape))
        matrix = u @ torch.diag(torch.logspace(0, -6, u.shape[1], dtype=torch.float64)) @ v.T
        found = orthogonal(matrix.float()[None])[0]
        torch.testing.assert_close(found.double(), oracle.five_steps(matrix), atol=1e-3, rtol=0)


def test_nothing_stays_nothing() -> None:
    assert not orthogonal(torch.zeros(2, 4, 6)).any()


def test_matrices_together_are_matrices_alone() -> None:
    many = torch.stack([random_matrix(12, 30, seed) * 10.0**seed for seed in range(4)])
    for one, factor in zip(many, orthogonal(many), strict=True):
        torch.testing.assert_close(factor, orthogonal(one[None])[0], atol=1e-5, rtol=1e-4)


# -- the step --------------------------------------------------------------------------------------------------------


def test_steps_against_the_oracle() -> None:
    """Parts of equal and of unequal rows, tall and wide, two rates, two decays, a momentum that changes."""
    weights = [nn.Parameter(random_matrix(*shape).double()) for shape in ((12, 6), (6, 20), (9, 5), (12, 6))]
    parts = [[4, 4, 4], [6], [2, 3, 4], [12]]
    groups = [
        {"params": weights[:2], "parts": parts[:2], "weight_decay": 0.3},
        {"params": weights[2:], "parts": parts[2:], "lr": 0.5},
    ]
    optimizer = Muon(groups, lr=0.02, momentum=0.9)
    slow = [(p.detach().clone(), torch.zeros_like(p)) for p in weights]
    for step in range(4):
        for group in optimizer.param_groups:
            group["momentum"] = momentum(TrainConfig(optimizer="muon", muon_momentum=0.9), step)
        for i, p in enumerate(weights):
            p.grad = random_matrix(*p.shape, seed=10 * step + i).double()
            own = {"lr": 0.02, "decay": 0.3} if i < 2 else {"lr": 0.5, "decay": 0.0}
            slow[i] = oracle.move(*slow[i], p.grad, parts[i], **own, momentum=oracle.momentum_of(step, 0.9))
        optimizer.step()
    for p, (want, mean) in zip(weights, slow, strict=True):
        torch.testing.assert_close(p.detach(), want, atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(optimizer.state[p]["momentum"], mean)


def test_a_training_step_is_the_oracle_on_the_clipped_gradient() -> None:
    """The Trainer's rates, its clipping and its split of queries, keys and values."""
    config = tiny_config(
        "train.batch_size=7", "model.dropout=0", "train.warmup=2", "train.optimizer=muon", "train.clip=0.1",
        "train.weight_decay=0.1", "train.muon_lr=0.05",
    )  # fmt: skip
    trainer = Trainer(config, random_model(config, VOCAB), HERE)
    data = random_rows(VOCAB, 20, 16, padded=True)
    name = "backbone.blocks.0.attn_qkv.weight"
    p = trainer.model.get_parameter(name)
    want, mean = p.detach().clone(), torch.zeros_like(p)
    for step in range(3):
        model = copy.deepcopy(trainer.model)
        batch = train_batch(data, False, seed=0, step=step, batch_size=7, slots=range(7))
        scored = model.nats(batch, trainer.keys.at(step))
        (scored.nats.sum() / scored.weight.sum()).backward()
        assert float(nn.utils.clip_grad_norm_(model.parameters(), 0.1)) > 0.1
        gradient = model.get_parameter(name).grad
        lr = 0.05 * min(1.0, (step + 1) / 2)
        want, mean = oracle.move(
            want, mean, gradient, [16] * 3, lr=lr, decay=0.1, momentum=oracle.momentum_of(step, 0.95)
        )
        trainer.step(data, step)
        torch.testing.assert_close(p.detach().double(), want, atol=1e-4, rtol=1e-4)


def test_it_is_torchs_muon_up_to_the_rounding_of_bf16() -> None:
    first = [random_matrix(*shape) for shape in ((24, 24), (16, 64), (64, 16))]
    ours, theirs = ([nn.Parameter(each.clone()) for each in first] for _ in range(2))
    own = Muon([{"params": ours, "parts": [[p.shape[0]] for p in ours], "weight_decay": 0.1}], lr=0.1, momentum=0.95)
    other = torch.optim.Muon(theirs, lr=0.1, momentum=0.95, weight_decay=0.1)
    for step in range(3):
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            a.grad = random_matrix(*a.shape, seed=7 * step + i)
            b.grad = a.grad.clone()
        own.step()
        other.step()
    for a, b, start in zip(ours, theirs, first, strict=True):
        moved = (a - start).detach().norm()
        assert float((a - b).detach().norm() / moved) < 0.05
        assert float(moved) > 0.1


def test_parts_of_a_projection_do_not_affect_each_other() -> None:
    weight = nn.Parameter(random_matrix(12, 8))
    weight.grad = random_matrix(12, 8, seed=1)
    weight.grad[4:8] = 0
    alone = nn.Parameter(weight.detach()[:4].clone())
    alone.grad = weight.grad[:4].clone()
    before = weight.detach().clone()
    Muon([{"params": [weight], "parts": [[4, 4, 4]]}], lr=0.1, momentum=0.95).step()
    Muon([{"params": [alone], "parts": [[4]]}], lr=0.1, momentum=0.95).step()
    assert torch.equal(weight[4:8], before[4:8])
    torch.testing.assert_close(weight[:4], alone)
    gram = (weight - before)[8:].double()
    values = torch.linalg.svdvals(gram) / 0.1
    assert values.min() > 0.6 and values.max() < 1.25


def test_momentum_grows_by_hand() -> None:
    spec = TrainConfig()
    assert [momentum(spec, n) for n in (0, 75, 150, 9000)] == pytest.approx([0.85, 0.90, 0.95, 0.95])
    low = TrainConfig(optimizer="muon", muon_momentum=0.5)
    assert [momentum(low, n) for n in (0, 75, 9000)] == [0.5] * 3


# -- which weights ---------------------------------------------------------------------------------------------------


def test_every_network_has_a_line_below() -> None:
    made = {type(make()).__module__ for name, make in SMALL.items() if name != "encoder"}
    built = {settings.implementation.partition(":")[0] for settings in NETWORKS.values()}
    assert built - {"unmask.networks.encoder"} <= made


@pytest.mark.parametrize("name", SMALL)
def test_matrices_and_others_are_all_weights_once(name: str) -> None:
    if name == "encoder":
        pytest.importorskip("transformers")
    model = nn.Module()
    model.backbone = SMALL[name]()
    groups = parameter_groups(model, TrainConfig(optimizer="muon", weight_decay=0.1))
    found = [id(p) for group in groups for p in group["params"]]
    assert sorted(found) == sorted(id(p) for p in model.parameters() if p.requires_grad)
    named = {id(p): own for own, p in model.named_parameters()}
    ours = [group for group in groups if group["parts"]]
    matrices = [
        (named[id(p)], p, rows) for group in ours for p, rows in zip(group["params"], group["parts"], strict=True)
    ]
    assert matrices, "a network without matrices would train with AdamW alone"
    for own, p, rows in matrices:
        assert p.ndim == 2 and sum(rows) == p.shape[0], own
        assert not any(word in own for word in ("embed", "adaLN", "norm", "conv1d", "filter_fn", "decoder")), own
    others = [named[id(p)] for group in groups if not group["parts"] for p in group["params"]]
    assert not any("qkv" in own and own.endswith("weight") for own in others)


def test_fused_projections_by_hand() -> None:
    names = ("dit", "causal", "mosaicbert", "mamba", "caduceus ps", "hyena")
    parts = {name: SMALL[name]().matrices() for name in names}
    assert parts["dit"]["blocks.1.attn_qkv.weight"] == parts["causal"]["blocks.0.attn_qkv.weight"] == 3
    assert parts["dit"]["blocks.0.mlp.0.weight"] == parts["dit"]["blocks.0.attn_out.weight"] == 1
    assert len(parts["dit"]) == len(parts["causal"]) == 2 * 4
    bert = parts["mosaicbert"]
    assert bert["bert.encoder.layer.0.attention.self.Wqkv.weight"] == 3
    assert bert["bert.encoder.layer.0.mlp.gated_layers.weight"] == 2
    assert parts["mamba"]["layers.0.mixer.in_proj.weight"] == 2
    assert parts["mamba"]["layers.0.mixer.x_proj.weight"] == (1, 4, 4)
    assert parts["caduceus ps"]["layers.1.mixer.mamba_rev.x_proj.weight"] == (1, 4, 4)
    assert parts["hyena"]["layers.1.mixer.in_proj.weight"] == 3


def test_a_foreign_encoder_with_fused_projections() -> None:
    pytest.importorskip("transformers")
    from unmask.networks.encoder import Encoder

    tree = {
        "model_type": "modernbert", "vocab_size": 12, "hidden_size": 16, "num_hidden_layers": 2, "pad_token_id": 4,
        "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 32,
    }  # fmt: skip
    net = Encoder.from_architecture(tree, Vocab(12, mask=3, pad=4), 0.0)
    found = {name.partition("layers.1.")[2]: parts for name, parts in net.matrices().items() if "layers.1." in name}
    assert found == {"attn.Wqkv.weight": 3, "attn.Wo.weight": 1, "mlp.Wi.weight": 2, "mlp.Wo.weight": 1}


def test_adamw_alone_is_one_optimizer_of_all_weights() -> None:
    model = registry.model(recipe("tiny"), VOCAB)
    [adam] = build_optimizers(model, TrainConfig(), fused=True)
    assert type(adam) is torch.optim.AdamW
    assert sum(len(group["params"]) for group in adam.param_groups) == len(list(model.parameters()))


def test_a_model_without_matrices_to_train_is_refused() -> None:
    model = registry.model(recipe("tiny"), VOCAB)
    model.backbone.requires_grad_(False)
    with pytest.raises(UserError, match=r"set train\.optimizer=adamw"):
        build_optimizers(model, TrainConfig(optimizer="muon"), fused=True)


def test_rates_of_a_model_multiply_those_of_both() -> None:
    config = tiny_config("model.method=plaid", "train.optimizer=muon", "plaid.lr_factor=5", "train.warmup=0")
    trainer = Trainer(config, random_model(config, VOCAB), HERE)
    trainer.step(random_rows(VOCAB, 20, 16), 0)
    muon, adam = trainer.optimizers
    assert {group["lr"] for group in muon.param_groups} == {0.03}
    assert sorted(group["lr"] / config.train.lr for group in adam.param_groups) == pytest.approx([1.0, 5.0])


# -- runs ------------------------------------------------------------------------------------------------------------

RUN = [
    "train.optimizer=muon", "train.muon_lr=0.05", "model.dropout=0.2", "train.batch_size=4", "train.steps=12",
    "train.ema=0.9", "train.checkpoint_every=5", "train.keep_last=9", "eval.every=0", "eval.rows=4", "train.warmup=3",
]  # fmt: skip


def test_a_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for out, steps in ((whole, 12), (cut, 7), (cut, 12)):
        ran = run("train", "tiny", *settings(*RUN, f"train.steps={steps}"), "--out", str(out), "--quiet")
        assert ran.code == 0, ran.err
    for name in ("model", "ema", "optimizer"):
        ours, theirs = (out / "checkpoints/step-00000012" / f"{name}.safetensors" for out in (whole, cut))
        assert ours.read_bytes() == theirs.read_bytes(), name
    kept = load_file(whole / "checkpoints/step-00000012/optimizer.safetensors")
    matrix, bias = "backbone.blocks.0.attn_qkv.weight", "backbone.output_layer.linear.bias"
    assert f"momentum.{matrix}" in kept and f"exp_avg.{matrix}" not in kept
    assert f"exp_avg.{bias}" in kept and f"momentum.{bias}" not in kept
    last = whole / "checkpoints/step-00000012"
    raw, average = (load_file(last / f"{name}.safetensors")[matrix] for name in ("model", "ema"))
    assert 0 < float((raw - average).norm()) < float(raw.norm()), "the average follows Muon's weights"


def test_another_optimizer_is_another_run(tmp_path: Path) -> None:
    quick = settings(*RUN, "train.steps=1")
    assert run("train", "tiny", *quick, "--out", str(tmp_path), "--quiet").code == 0
    other = [each for each in quick if "muon" not in each]
    said = run("train", "tiny", *other, "--out", str(tmp_path), "--quiet")
    assert said.code and "train.optimizer=muon" in said.err


def test_it_learns() -> None:
    config = tiny_config("train.optimizer=muon", "train.batch_size=8", "train.warmup=2", "model.dropout=0")
    losses = {}
    for lr in (0.05, 1e-9):
        own = config.changed(train={"muon_lr": lr, "lr": 1e-9})
        trainer = Trainer(own, random_model(own, VOCAB), HERE)
        data = random_rows(VOCAB, 8, 16)
        losses[lr] = [trainer.step(data, step)[0]["loss"] for step in range(60)]
    assert sum(losses[0.05][-10:]) < 0.9 * sum(losses[1e-9][-10:]), "the matrices alone learn these few rows"


# -- several processes -----------------------------------------------------------------------------------------------

MUON = ["train.optimizer=muon", "train.weight_decay=0.1", "model.n_blocks=3", "train.lr=1e-3"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("\n\n".join(f"{i} bottles of beer on the wall, take {i % 7} down." for i in range(400)))
    return f"data.source={path}"


@pytest.fixture(scope="module")
def alone(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    out = tmp_path_factory.mktemp("alone") / "run"
    return out, runs.run(out, 1, corpus, *MUON)


def same(one: tuple[Path, list[dict]], out: Path, journal: list[dict]) -> None:
    for key in ("loss", "valid_nats"):
        torch.testing.assert_close(runs.figures(one[1], key), runs.figures(journal, key), rtol=2e-5, atol=2e-5)
    assert len(runs.figures(journal, "loss")) == 4
    ours, theirs = (unmask.load(path, weights="raw").model.state_dict() for path in (one[0], out))
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("own", [["train.micro_batch_size=2"], ["train.strategy=fsdp"]])
def test_two_processes_give_the_losses_and_weights_of_one(
    corpus: str, alone: tuple[Path, list[dict]], tmp_path: Path, own: list[str]
) -> None:
    same(alone, tmp_path / "two", runs.run(tmp_path / "two", 2, corpus, *MUON, *own))


@pytest.mark.parametrize(
    ("first", "second"),
    [((2, "fsdp"), (1, "ddp")), pytest.param((1, "ddp"), (2, "fsdp"), marks=pytest.mark.slow)],
)
def test_a_run_goes_on_with_other_processes(
    corpus: str, alone: tuple[Path, list[dict]], tmp_path: Path, first: tuple[int, str], second: tuple[int, str]
) -> None:
    out = tmp_path / "run"
    runs.run(out, first[0], corpus, *MUON, f"train.strategy={first[1]}", "train.steps=2")
    same(alone, out, runs.run(out, second[0], corpus, *MUON, f"train.strategy={second[1]}"))


@pytest.mark.slow
@pytest.mark.parametrize("network", ["caduceus", "mamba", "hyena"])
def test_matrices_with_unequal_parts_are_sharded_and_put_together(network: str, tmp_path: Path) -> None:
    path = tmp_path / "toy.fa"
    path.write_text(">chr1\n" + "".join(random.Random(0).choices("ACGT", k=9_000)) + "\n")
    method = "mdlm" if network == "caduceus" else "ar"
    own = [f"data.source={path}", "data.tokenizer=dna", f"model.network={network}", f"model.method={method}", *MUON]
    one = runs.run(tmp_path / "one", 1, *own)
    two = runs.run(tmp_path / "two", 2, *own, "train.strategy=fsdp")
    torch.testing.assert_close(runs.figures(one, "loss"), runs.figures(two, "loss"), rtol=5e-5, atol=5e-5)


# -- decay at the end ------------------------------------------------------------------------------------------------


def test_wsd_by_hand() -> None:
    spec = TrainConfig(steps=100, lr=0.8, warmup=10, decay="wsd", decay_share=0.2, final_lr=0.25)
    found = [learning_rate(spec, n) for n in (0, 4, 9, 10, 50, 80, 90, 95, 100)]
    assert found == pytest.approx([0.08, 0.4, 0.8, 0.8, 0.8, 0.8, 0.5, 0.35, 0.2])
    assert learning_rate(spec, 79) == 0.8, "exactly"
    assert learning_rate(spec, 90, peak=8.0) == pytest.approx(5.0)
    late = spec.model_copy(update={"warmup": 90, "final_lr": 0.0})
    assert [learning_rate(late, n) for n in (89, 90, 95)] == pytest.approx([0.8, 0.8, 0.4])
    whole = spec.model_copy(update={"decay_share": 1.0})
    linear = spec.model_copy(update={"decay": "linear"})
    assert [learning_rate(whole, n) for n in range(101)] == [learning_rate(linear, n) for n in range(101)]


def test_a_stable_run_can_be_prolonged() -> None:
    """Up to where the decay of the shorter one begins, both are the same run."""
    short = TrainConfig(steps=100, warmup=5, decay="wsd")
    long = short.model_copy(update={"steps": 200})
    assert [learning_rate(short, n) for n in range(81)] == [learning_rate(long, n) for n in range(81)]
    assert learning_rate(short, 90) < learning_rate(long, 90)


@pytest.mark.parametrize(
    ("wrong", "piece"),
    [
        (["train.optimizer=muno"], "did you mean 'muon'?"),
        (["train.optimizer=muon", "train.muon_lr=0"], "muon_lr"),
        (["train.optimizer=muon", "train.muon_momentum=1"], "muon_momentum"),
        (["train.decay=wsd", "train.decay_share=0"], "decay_share"),
        (["train.decay=wsd", "train.decay_share=1.5"], "decay_share"),
    ],
)
def test_bad_settings(wrong: list[str], piece: str) -> None:
    with pytest.raises(UserError) as error:
        Config().override(wrong)
    assert piece in str(error.value) and "\n" not in str(error.value)


def test_configs_of_before_are_adamw() -> None:
    tree = Config().model_dump(mode="json")
    for name in ("optimizer", "muon_lr", "muon_momentum", "decay_share"):
        del tree["train"][name]
    assert parse(tree) == Config()


# -- divergence ------------------------------------------------------------------------------------------------------


def seen(losses: list[float], start: int = 0, **spec: object) -> None:
    watch = Divergence(TrainConfig(steps=1000, warmup=20, **spec))
    for step, loss in enumerate(losses, start):
        watch.check(step, loss)


def test_a_loss_that_stays_high_ends_the_run_with_what_to_do() -> None:
    with pytest.raises(UserError) as error:
        seen([5.0] * 30 + [16.0] * 20, lr=0.5)
    assert "step 49" in str(error.value) and "16" in str(error.value) and "lower train.lr (now 0.5)" in str(error.value)
    with pytest.raises(UserError, match=r"lower train\.muon_lr \(now 3\) or train\.lr \(now 0\.0003\)"):
        seen([5.0] * 30 + [16.0] * 20, optimizer="muon", muon_lr=3.0)


@pytest.mark.parametrize(
    "losses",
    [
        [5.0] * 30 + [16.0] * 19 + [5.0] + [16.0] * 19,  # a stretch is not long enough
        [5.0] * 30 + [14.9] * 50,  # below three times
        [0.01] * 30 + [2.9] * 50,  # a classifier that knows all: hundreds of times, but few nats
        [5.0, 0.0, 900.0, 5.0, 0.0, 4.0, 5.0, 0.1, 6.0, 7.0] + [8.0] * 50,  # noise in the first steps
        [5.0] * 30 + [5000.0, 2.0] * 50,  # rare rows of a large weight
    ],
)
def test_noise_is_no_divergence(losses: list[float]) -> None:
    seen(losses)
    seen(losses, start=500)


def test_the_warmup_does_not_count() -> None:
    seen([5.0] * 10 + [16.0] * 29 + [5.0])
    with pytest.raises(UserError, match="diverges"):
        seen([5.0] * 10 + [16.0] * 29 + [5.0], start=500)


def test_a_continued_run_is_compared_with_itself() -> None:
    seen([300.0] * 60, start=500)


def test_a_rate_that_is_far_too_high_is_said_at_once(tmp_path: Path) -> None:
    """With the command that did it, whichever comes first: no number any more, or a loss that stays high."""
    own = settings("model.method=ar", "train.lr=5", "train.warmup=10", "train.steps=200", "train.batch_size=4")
    said = run("train", "tiny", *own, "eval.every=0", "--out", str(tmp_path), "--quiet")
    assert said.code and "lower train.lr (now 5)" in said.err and "Traceback" not in said.err


def test_a_run_that_diverges_at_once_is_compared_with_its_very_first_loss() -> None:
    check = Divergence(TrainConfig(steps=100, warmup=1))
    check.check(0, 6.9)
    for step in range(1, 29):
        check.check(step, 4e5)
    with pytest.raises(UserError, match=r"the loss of step 29 is 4e\+05; it was 6.9 .* lower train.lr"):
        check.check(29, 4e5)
