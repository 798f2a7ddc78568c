"""Settings: what is wrong is said by name, what is typed is what is meant, recipes hold the paper's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import yaml
from pydantic import ValidationError

from unmask import config as config_module
from unmask.config import Config, MambaConfig, ModelConfig, differences, known_keys, load_yaml, parse
from unmask.recipes import RECIPES, recipe
from unmask.types import UserError


def one_sentence(error: pytest.ExceptionInfo[UserError]) -> str:
    said = str(error.value)
    assert said and "\n" not in said
    return said


# -- overrides -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("train.step=3", "train.steps"),
        ("train.batchsize=3", "train.batch_size"),
        ("trian.lr=3", "train.lr"),
        ("model.hiden_dim=3", "model.hidden_dim"),
        ("checkpoint_every=3", "train.checkpoint_every"),  # the right name without its section
        ("model.draws=3", "eval.draws"),  # ... or in the wrong one
        ("Seed=1", "seed"),
    ],
)
def test_unknown_keys_name_the_nearest(wrong: str, meant: str) -> None:
    with pytest.raises(UserError) as error:
        Config().override([wrong])
    said = one_sentence(error)
    assert wrong.split("=")[0] in said and repr(meant) in said


def test_unknown_keys_of_a_file_name_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for content, pieces in (
        ("train: {step: 5}", ["train.step", "train.steps"]),
        ("trian: {steps: 5}", ["trian"]),
        ("data: {sources: [a]}", ["data.sources", "data.source"]),
    ):
        path.write_text(content)
        with pytest.raises(UserError) as error:
            load_yaml(path)
        said = one_sentence(error)
        assert all(repr(piece) in said for piece in pieces)


def test_names_that_scripts_rely_on() -> None:
    wanted = (
        "train.steps",
        "train.batch_size",
        "train.checkpoint_every",
        "eval.batch_size",
        "eval.draws",
        "model.time_conditioning",
        "data.length",
        "seed",
    )
    assert set(wanted) <= set(known_keys())


def test_values_are_read_as_they_are_meant() -> None:
    made = Config().override(
        [
            "train.steps=1e5",
            "train.lr=3e-4",
            "train.betas=[0.5, 0.25]",
            "train.clip=null",
            "eval.rows=7",
            "model.time_conditioning=true",
            "train.sinks=[tensorboard]",
            "train.decay=cosine",
            "sample.length=null",
            "train.warmup=1_000",
            "train.final_lr=.5",
            "train.adam_eps=1E-6",
            "seed=-3",
        ]
    )
    assert made.train.steps == 100_000 and isinstance(made.train.steps, int)
    assert made.train.lr == 3e-4 and made.train.betas == (0.5, 0.25) and made.train.clip is None
    assert made.eval.rows == 7 and made.model.time_conditioning is True
    assert made.train.sinks == ["tensorboard"] and made.train.decay == "cosine" and made.sample.length is None
    assert made.train.warmup == 1000 and made.train.final_lr == 0.5 and made.train.adam_eps == 1e-6
    assert made.seed == -3


@pytest.mark.parametrize(
    "text",
    [
        "/a/b c.txt",
        "~/x.txt",
        "./2024",
        "2024",
        "1984.5",
        "1e5",
        "nan",
        "inf",
        "on",
        "12:30",
        "a: b",
        "[x]",
        "{x}",
        "a=b.txt",
        "C:\\texts\\x.txt",
        "ein café.txt",
        "#1.txt",
        "x # y",
        "'quoted'",
        "*",
        "%20",
        "@home",
        "-",
    ],
)
def test_names_and_paths_stay_as_typed(text: str) -> None:
    assert Config().override([f"data.source={text}"]).data.source == text
    assert Config().override([f"data.subset={text}"]).data.subset == text


def test_text_can_be_unset() -> None:
    assert Config().override(["data.subset=x", "data.subset=null"]).data.subset is None


def test_the_last_override_counts_and_nothing_else_changes() -> None:
    base = Config()
    made = base.override(["train.lr=1", "train.lr=2"])
    assert differences(base, made) == [("train.lr", base.train.lr, 2.0)]
    assert base == Config()
    with pytest.raises(ValidationError):
        base.train.lr = 5.0  # type: ignore[misc]


@pytest.mark.parametrize("wrong", ["train.steps", "=3", "", "train", "train.steps:3"])
def test_what_is_no_override(wrong: str) -> None:
    with pytest.raises(UserError) as error:
        Config().override([wrong])
    assert "key=value" in one_sentence(error)


BAD = [
    "train.steps=0", "train.steps=-5", "train.steps=1.5", "train.steps=", "train.steps=many", "train.batch_size=0",
    "train.batch_size=-8", "train.micro_batch_size=0", "train.lr=0", "train.lr=nan", "train.lr=inf", "train.warmup=-1",
    "train.betas=[0.9]", "train.betas=[0.9, 1.0]", "train.ema=1", "train.clip=0", "train.checkpoint_every=0",
    "train.keep_last=0", "train.decay=sudden", "train.precision=float8", "train.sinks=[paper]", "train.final_lr=2",
    "data.length=1", "data.length=-1", "data.vocab_size=0", "data.valid_fraction=1", "data.test_fraction=-0.1",
    "data.source=", "data.tokenizer=", "data.layout=heap", "data.document=page", "model.hidden_dim=0",
    "model.hidden_dim=7", "model.n_heads=5", "model.n_blocks=-1", "model.dropout=1", "model.dropout=-0.1",
    "model.network=lstm", "schedule.name=linar", "schedule.eps=1", "schedule.sigma_max=0", "schedule.power=0",
    "objective.bound=tight", "objective.bound=discrete", "objective.steps=5", "objective.cutoff=0", "eval.draws=0",
    "eval.batch_size=0", "eval.rows=0", "sample.n=0", "sample.steps=0", "sample.length=0", "seed=9223372036854775808",
    "seed=x", "model.time_conditioning=maybe", "model.method=mdml", "schedule.low=0", "schedule.low=1",
    "objective.proposal=flat", "objective.loss=mse", "objective.clip=[0.8,0.3]", "objective.clip=[0,0.5]",
    "objective.clip=[0.5]", "objective.times=sobol", "objective.start_token=perhaps",
]  # fmt: skip


@pytest.mark.parametrize("wrong", BAD)
def test_bad_values_name_their_key(wrong: str) -> None:
    with pytest.raises(UserError) as error:
        Config().override([wrong])
    key = wrong.partition("=")[0]
    said = one_sentence(error)
    assert key.rsplit(".", 1)[-1] in said
    assert len(said) < 250


def test_settings_that_contradict_each_other() -> None:
    for wrong, piece in (
        (["data.valid_fraction=0.6", "data.test_fraction=0.5"], "valid_fraction"),
        (["data.block_ends=true", "data.length=2"], "data.length"),
        (["model.hidden_dim=36", "model.n_heads=12"], "hidden_dim=36"),
    ):
        with pytest.raises(UserError) as error:
            Config().override(wrong)
        assert piece in one_sentence(error)


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_goes_through_yaml(name: str, tmp_path: Path) -> None:
    made = recipe(name)
    path = tmp_path / "copy.yaml"
    path.write_text(made.to_yaml())
    assert recipe(str(path)) == made
    assert parse(yaml.safe_load(made.to_yaml())) == made
    assert made.override([]) == made


def test_a_file_need_not_say_everything(tmp_path: Path) -> None:
    path = tmp_path / "short.yml"
    path.write_text("train: {steps: 7, lr: 1e-2}\ndata:\n  source: 'x.txt'\n")
    made = recipe(str(path))
    assert made.train.steps == 7 and made.train.lr == 0.01 and made.data.source == "x.txt"
    assert made.model == Config().model


def test_files_that_are_no_config(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    for content in (b"", b"- a\n- b\n", b"just words", b"a: [1", b"\xff\xfe", b"train: 5", b"train:\n"):
        path.write_bytes(content)
        with pytest.raises(UserError) as error:
            recipe(str(path))
        assert "bad.yaml" in one_sentence(error) or "train" in one_sentence(error)
    for name in ("missing.yaml", "folder.yaml"):
        (tmp_path / "folder.yaml").mkdir(exist_ok=True)
        with pytest.raises(UserError) as error:
            recipe(str(tmp_path / name))
        assert name in one_sentence(error)


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    path = tmp_path / "evil.yaml"
    path.write_text(f"seed: !!python/object/apply:os.mkdir ['{tmp_path / 'made'}']")
    with pytest.raises(UserError):
        recipe(str(path))
    assert not (tmp_path / "made").exists()


def test_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(UserError) as error:
        recipe("lm1")
    said = one_sentence(error)
    assert "'lm1b'" in said and all(name in said for name in RECIPES)


# -- the paper -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lm1b", "owt", "text8"])
def test_the_papers_network_and_optimizer(name: str) -> None:
    """Appendix D.4, typed from there."""
    c = recipe(name)
    assert (c.model.n_blocks, c.model.hidden_dim, c.model.n_heads, c.model.cond_dim) == (12, 768, 12, 128)
    assert c.model.dropout == 0.1 and c.model.mlp_ratio == 4 and c.model.time_conditioning is False
    assert c.train.steps == 1_000_000 and c.train.batch_size == 512
    assert c.train.lr == 3e-4 and c.train.warmup == 2500 and c.train.decay == "constant"
    assert c.train.betas == (0.9, 0.999) and c.train.adam_eps == 1e-8 and c.train.weight_decay == 0
    assert c.train.clip == 1.0 and c.train.ema == 0.9999 and c.train.precision == "bf16"
    assert c.schedule.name == "log-linear" and c.schedule.eps == 1e-3
    assert c.objective.bound == "continuous" and c.objective.cutoff == 1e-3


def test_the_papers_data() -> None:
    lm1b, owt, text8 = (recipe(name).data for name in ("lm1b", "owt", "text8"))
    assert (lm1b.tokenizer, lm1b.length, lm1b.layout) == ("bert-base-uncased", 128, "pad")
    assert lm1b.attend_pads and lm1b.block_ends, "[CLS] ... [SEP], padding noised and seen"
    assert (owt.tokenizer, owt.length, owt.layout) == ("gpt2", 1024, "wrap")
    assert owt.eos_between and owt.block_ends
    assert (text8.tokenizer, text8.length, text8.layout) == ("chars", 256, "wrap")
    assert not text8.eos_between and not text8.block_ends


def test_a_setting_of_another_network_is_an_error_that_names_it() -> None:
    with pytest.raises(UserError, match=r"state_dim is a setting of mamba and caduceus, not of model\.network=dit"):
        Config().override(["model.state_dim=8"])
    with pytest.raises(UserError, match=r"n_heads is a setting of .*, not of model\.network=mamba"):
        Config().override(["model.network=mamba", "model.dropout=0", "model.n_heads=2"])


def test_old_words_for_the_network_are_read(caplog: pytest.LogCaptureFixture) -> None:
    """A config that has all settings of all networks, as it was written once; and old command lines."""
    config_module.note.cache_clear()
    tree = Config().model_dump(mode="json")
    others = {"state_dim": 9, "strands": "ph", "filter_length": 7, "architecture": None, "n_heads": 4, "cond_dim": 8}
    tree["model"] = {"method": "ar", "backbone": "mamba", "hidden_dim": 32, "dropout": 0.0, **others}
    with caplog.at_level("INFO"):
        config = parse(tree)
        parse(tree)
    assert isinstance(config.model, MambaConfig) and config.model.state_dim == 9 and config.model.network == "mamba"
    assert config.model == ModelConfig(method="ar", network="mamba", hidden_dim=32, state_dim=9)
    assert [record.message for record in caplog.records if "model.network" in record.message] == caplog.messages[:1]
    assert "backbone" not in config.to_yaml() and "n_heads" not in config.to_yaml()
    assert parse(yaml.safe_load(config.to_yaml())) == config
    old = ["model.backbone=mamba", "model.dropout=0", "model.cond_dim=16", "model.state_dim=3", "model.n_heads=2"]
    assert Config().override(old) == Config().override(["model.state_dim=3", "model.dropout=0", "model.network=mamba"])


def test_a_network_is_added_with_one_class_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Toy(ModelConfig):
        """A network of someone else's."""

        network: Literal["toy"] = "toy"
        wheels: int = 4

    monkeypatch.setitem(config_module.NETWORKS, "toy", Toy)
    config = Config().override(["model.network=toy", "model.wheels=3", "model.hidden_dim=8"])
    assert config.model == Toy(wheels=3, hidden_dim=8) and "model.wheels" in known_keys()
    assert ("model.wheels", 3, None) in differences(config, Config())
    assert parse(yaml.safe_load(config.to_yaml())) == config
