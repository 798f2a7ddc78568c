"""Masked language models of transformers as backbones, against transformers itself on tiny random networks."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

from support.encoders import KINDS, MASK, PAD, SIZE, TINY, VOCAB, tree
from unmask.models.masked import MaskedDiffusion
from unmask.networks.architectures import fresh, plain, settings
from unmask.networks.encoder import Encoder
from unmask.process import keys as streams
from unmask.process.schedule import Polynomial
from unmask.types import Batch, UserError, Vocab

pytest.importorskip("transformers")


def encoder(kind: str, vocab: Vocab = VOCAB, **more) -> Encoder:
    """A network whose every weight matters: at their initial sizes, attention is nearly uniform."""
    torch.manual_seed(0)
    net = Encoder.from_architecture(tree(kind, **more), vocab).eval()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if "norm" not in name.lower():
                parameter.normal_(std=0.3)
    return net


@pytest.fixture(scope="module", params=KINDS)
def net(request) -> Encoder:
    return encoder(request.param)


def tokens(rows: int = 3, length: int = 10) -> torch.Tensor:
    return torch.randint(5, SIZE, (rows, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits(net: Encoder, ids: torch.Tensor, **more) -> torch.Tensor:
    return net.head(net(ids, **more)[0])


# -- the two halves --------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_both_halves_are_the_whole(net):
    ids = tokens()
    ids[:, 3:6] = MASK
    whole = net.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    assert torch.equal(logits(net, ids), whole[..., :SIZE])
    hidden = net(ids)[0]
    assert hidden.shape == (3, 10, net.hidden_dim)
    some = net.head(hidden[[0, 2], [4, 5]])
    assert torch.allclose(some, whole[[0, 2], [4, 5], :SIZE], atol=1e-5, rtol=0)
    assert net.head(hidden[:0, 0]).shape == (0, SIZE)
    net.probe("it")


@torch.no_grad()
def test_padding_is_not_there(net):
    """Ragged rows: each as alone, whatever stands in its padding; and as transformers has it where that is [PAD]."""
    ids, lengths = tokens(3, 12), [12, 7, 1]
    valid = torch.arange(12)[None] < torch.tensor(lengths)[:, None]
    ids[1, 2] = MASK
    padded = ids.masked_fill(~valid, PAD)
    ours = logits(net, padded, valid=valid)
    theirs = net.model(input_ids=padded, attention_mask=valid.long()).logits[..., :SIZE]
    assert torch.allclose(ours[valid], theirs[valid], atol=1e-5, rtol=0)
    for other in (MASK, 9):
        assert torch.equal(logits(net, ids.masked_fill(~valid, other), valid=valid)[valid], ours[valid])
    for row, length in enumerate(lengths):
        alone = logits(net, ids[row : row + 1, :length])
        assert torch.allclose(ours[row, :length], alone[0], atol=2e-5, rtol=0)


@torch.no_grad()
def test_a_pad_token_that_is_looked_at_shifts_nobody(net):
    """RoBERTa counts positions by tokens that are not [PAD]; ours are the columns."""
    ids = tokens(1, 6)
    ids[0, 2] = PAD
    known = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if net.first:
        known["position_ids"] = torch.arange(6)[None] + net.first
    assert torch.equal(logits(net, ids), net.model(**known).logits[..., :SIZE])


@torch.no_grad()
def test_rows_of_nothing_but_masks_or_padding_are_finite(net):
    """ESM divides by the share of tokens that are no masks."""
    ids = torch.full((2, 5), MASK)
    valid = torch.tensor([[True] * 5, [False] * 5])
    assert logits(net, ids, valid=valid).isfinite().all()
    if net.model.config.model_type == "esm":  # masks are zero vectors there, scaled or not
        net.model.esm.embeddings.token_dropout, before = False, net.model.esm.embeddings.token_dropout
        zeros = torch.zeros(1, 5, net.hidden_dim)
        blind = net.model.esm(inputs_embeds=zeros)[0]
        net.model.esm.embeddings.token_dropout = before
        assert torch.allclose(net(ids[:1])[0], blind, atol=1e-6)


@torch.no_grad()
def test_positions_are_data():
    net = encoder("roberta")
    ids = tokens(2, 5)
    places = torch.tensor([[3, 4, 5, 6, 7], [0, 1, 2, 3, 4]])
    theirs = net.model(input_ids=ids, position_ids=places + 2).logits[..., :SIZE]
    assert torch.equal(logits(net, ids, positions=places), theirs)
    with pytest.raises(UserError, match="33 tokens are more than the 32 positions"):
        net(ids, positions=places + 25)


@torch.no_grad()
def test_inputs_are_embeddings():
    net = encoder("bert")
    ids = tokens()
    assert torch.equal(net(embeddings=net.model.get_input_embeddings()(ids))[0], net(ids)[0])


@torch.no_grad()
def test_types_reach_those_that_know_them(net):
    ids, types = tokens(), torch.zeros(3, 10, dtype=torch.int64)
    types[:, 5:] = 1
    assert ("types" in net.takes) == (net.model.config.model_type in ("bert", "albert", "electra", "xlm-roberta"))
    if "types" in net.takes:
        theirs = net.model(input_ids=ids, token_type_ids=types).logits[..., :SIZE]
        assert torch.equal(net.head(net(ids, types=types)[0]), theirs)
    else:
        with pytest.raises(ValueError, match="does not take types"):
            net(ids, types=types)


def test_what_it_refuses(net):
    with pytest.raises(UserError, match=f"{net.longest + 1} tokens are more than the {net.longest} positions"):
        net(tokens(1, net.longest + 1))
    assert net(tokens(1, net.longest))[0].shape[1] == net.longest


def test_its_layers_for_fsdp(net):
    count = 1 if net.model.config.model_type == "albert" else 2  # ALBERT's layers are one
    assert len(net.blocks) == count and all(list(block.parameters()) for block in net.blocks)


# -- weights ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_from_meta_to_memory(net):
    """As `hub.assemble` does it: ties and the buffers that no file holds are right after it."""
    kind = net.model.config.model_type
    with torch.device("meta"):
        other = Encoder.from_architecture(tree(kind), VOCAB)
    assert all(tensor.is_meta for tensor in other.state_dict().values())
    other = other.to_empty(device="cpu").eval()
    state = net.state_dict()
    assert list(other.state_dict()) == list(state) and other.ties == net.ties
    for name, target in other.state_dict().items():
        target.copy_(state[name])
    ids = tokens()
    assert torch.equal(logits(other, ids), logits(net, ids))
    for name, source in net.ties.items():
        assert other.get_parameter(name) is other.get_parameter(source)
    again = copy.deepcopy(other)
    again.load_state_dict(state)  # strict, though tied tensors are there once
    assert torch.equal(logits(again.to(torch.float64).float(), ids), logits(net, ids))


def test_no_two_tensors_share_memory(net, tmp_path):
    from safetensors.torch import load_file, save_file

    state = net.state_dict()
    save_file(dict(state), tmp_path / "x.safetensors")
    assert load_file(tmp_path / "x.safetensors").keys() == state.keys()
    assert state.keys() == dict(net.named_parameters()).keys()  # what the average of the weights goes by
    assert all(name.startswith("model.") for name in state)


def test_gradients_are_those_of_transformers():
    """The loss of a denoiser on the network, and one by hand on transformers' logits."""
    net = encoder("bert").train()
    for module in net.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    ids = tokens()
    masked = torch.zeros(3, 10, dtype=torch.bool)
    masked[:, ::3] = True
    z = ids.masked_fill(masked, MASK)
    F.cross_entropy(net.head(net(z)[0][masked]), ids[masked]).backward()
    ours = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
    net.zero_grad()
    F.cross_entropy(net.model(input_ids=z).logits[masked][:, :SIZE], ids[masked]).backward()
    theirs = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    assert ours.keys() == theirs.keys() == dict(net.named_parameters()).keys()
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in ours)


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_that_can_learn_does(kind):
    """DDP waits for the gradient of every parameter that can have one."""
    net = encoder(kind, num_hidden_layers=1)
    model = MaskedDiffusion(net, Polynomial(1.0, 1e-3)).train()
    ids = tokens(8, 12)
    total, weight = model(Batch(ids, torch.arange(8), 8), streams.Keys(0))
    (total / weight).backward()
    grads = {name: p.grad for name, p in net.named_parameters() if p.requires_grad}
    assert all(grad is not None and grad.isfinite().all() for grad in grads.values())


def test_dropout_is_set_everywhere():
    net = Encoder.from_architecture(tree("bert"), VOCAB, dropout=0.25)
    assert {m.p for m in net.modules() if isinstance(m, torch.nn.Dropout)} == {0.25}
    assert net.model.config.attention_probs_dropout_prob == 0.25


# -- what is refused -------------------------------------------------------------------------------------------------


def test_more_tokens_than_rows():
    with pytest.raises(UserError, match="has 40 tokens and its tokenizer 41"):
        Encoder.from_architecture(tree("bert"), Vocab(41, MASK))


WRONG = {
    "a causal model": ({"model_type": "gpt2"}, "'gpt2' is not a masked language model"),
    "a decoder": ({"is_decoder": True}, "is a decoder"),
    "both": ({"model_type": "bart"}, "decoder; unmask reads encoders"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, "is quantised"),
    "a bad number": ({"hidden_size": "wide"}, "not described correctly"),
    "heads that do not divide": ({"num_attention_heads": 3}, "cannot be built"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_architecture_is_one_sentence(what):
    change, sentence = WRONG[what]
    with pytest.raises(UserError, match=sentence) as caught:
        Encoder.from_architecture(tree("bert") | change, VOCAB)
    assert "\n" not in str(caught.value)


def test_settings_that_would_fetch_code_are_dropped():
    evil = {"auto_map": {"AutoModel": "evil--m.M"}, "attn_implementation": "evil/kernel", "_name_or_path": "evil/x",
            "_attn_implementation": "evil/kernel", "sub": {"auto_map": 1, "kept": [{"dtype": 1, "a": 2}]}}  # fmt: skip
    assert plain({"hidden_size": 3} | evil) == {"hidden_size": 3, "sub": {"kept": [{"a": 2}]}}
    spec = settings(tree("bert") | {k: v for k, v in evil.items() if k != "sub"})
    assert spec._attn_implementation != "evil/kernel" and not hasattr(spec, "auto_map")
    assert fresh(spec).config._attn_implementation == "sdpa"


def test_a_network_that_cannot_be_cut_is_found_out():
    from transformers.modeling_outputs import MaskedLMOutput

    net = encoder("bert")

    class PastTheBase(type(net.model)):
        """Its head sees the embeddings too."""

        def forward(self, input_ids, **more):
            hidden = self.bert(input_ids=input_ids)[0] + self.bert.embeddings(input_ids=input_ids)
            return MaskedLMOutput(logits=self.cls(hidden))

    net.probe("it")
    net.model.__class__ = PastTheBase
    with pytest.raises(UserError, match="is a PastTheBase, whose logits are not a function of its last hidden states"):
        net.probe("it")


SEEING = {"fnet": {}, "convbert": {"conv_kernel_size": 3, "embedding_size": 16},
          "mobilebert": {"embedding_size": 8, "intra_bottleneck_size": 16, "true_hidden_size": 16}}  # fmt: skip


@pytest.mark.parametrize("kind", SEEING)
@torch.no_grad()
def test_networks_that_see_padding(kind):
    """Rows of one length at a time, without their padding: as each alone."""
    net = Encoder.from_architecture(TINY | {"model_type": kind} | SEEING[kind], VOCAB).eval()
    net.probe("it")
    ids, valid = tokens(3, 6), torch.ones(3, 6, dtype=torch.bool)
    assert torch.equal(logits(net, ids, valid=valid), net.model(input_ids=ids).logits[..., :SIZE])
    valid[1, 5] = valid[2, 2:] = False
    found = logits(net, ids, valid=valid)
    for row, length in enumerate((6, 5, 2)):
        alone = net.model(input_ids=ids[row : row + 1, :length]).logits[0, :, :SIZE]
        torch.testing.assert_close(found[row, :length], alone, rtol=1e-5, atol=1e-5)
    valid[1, 2] = False
    with pytest.raises(UserError, match=r"cannot ignore padding, and here it is not at the end of rows"):
        net(ids, valid=valid)


@torch.no_grad()
def test_networks_in_which_padding_counts_are_refused():
    deaf = encoder("bert")
    deaf._mask = lambda *args: None
    with pytest.raises(UserError, match="in which padding changes the predictions for other tokens"):
        deaf.probe("it")
