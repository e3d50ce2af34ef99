"""``fast.accelerate`` changes classes and nothing else."""

import copy
import io

import pytest
import torch
from torch import nn

from captioner import fast
from captioner.fast import linear
from captioner.fast.replacements import REPLACEMENTS
from captioner.models import Additive, Annotations, Attention, MultiHead
from captioner.models.registry import find, names

pytestmark = pytest.mark.usefixtures("with_fast")

ANNOTATIONS = Annotations(torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0)), (2, 3))


def model(attention=Attention):
    torch.manual_seed(0)
    return nn.ModuleList([attention(query_dim=8, key_dim=5), nn.Linear(5, 3)]).eval()


def outputs(model):
    attention, layer = model
    query = torch.linspace(-1, 1, 16).view(2, 8).requires_grad_()
    output = attention(query, attention.prepare(ANNOTATIONS))
    result = layer(output.context)
    return result, *torch.autograd.grad(result.sum(), [query, *model.parameters()])


@pytest.mark.parametrize("attention", [Attention, MultiHead])
def test_the_same_model_with_other_classes(attention):
    plain = model(attention)
    faster = copy.deepcopy(plain)
    keys = list(plain.state_dict())
    replaced = fast.accelerate(faster)
    assert replaced
    assert list(faster.state_dict()) == keys
    for name, cls in replaced.items():
        part = faster.get_submodule(name)
        assert type(part) is not cls
        assert isinstance(part, cls)
        assert type(part).__name__ == cls.__name__  # shown to users
    assert faster[0].mechanism == plain[0].mechanism
    for one, other in zip(outputs(faster), outputs(plain), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    fast.restore(faster, replaced)
    assert [type(m) for m in faster.modules()] == [type(m) for m in plain.modules()]


@pytest.mark.filterwarnings("ignore")  # torch.compile's own
def test_copies_files_and_compilation_still_work():
    faster = model()
    fast.accelerate(faster)
    expected = outputs(faster)[0]
    stored = io.BytesIO()
    torch.save(faster, stored)
    stored.seek(0)
    for other in (copy.deepcopy(faster), torch.load(stored, weights_only=False)):
        torch.testing.assert_close(outputs(other)[0], expected)
    compiled = torch.compile(faster[0], backend="eager")
    query = torch.linspace(-1, 1, 16).view(2, 8)
    context = compiled(query, faster[0].prepare(ANNOTATIONS)).context
    torch.testing.assert_close(faster[1](context), expected)


def test_subclasses_and_the_switch(monkeypatch):
    class Special(nn.Linear):
        pass

    torchs = nn.MultiheadAttention(4, 2)  # its output layer is a subclass of nn.Linear
    special = nn.ModuleList([Special(2, 2), torchs])
    before = [type(m) for m in special.modules()]
    assert fast.accelerate(special) == {}
    assert [type(m) for m in special.modules()] == before
    monkeypatch.setenv("CAPTIONER_FAST", "0")
    assert fast.accelerate(model()) == {}


def test_no_configuration_can_name_a_faster_version():
    assert find("score", "Additive") is Additive
    known = {find(kind, name) for kind in ("score", "decoder", "encoder") for name in names(kind)}
    assert known.isdisjoint(REPLACEMENTS.values())


@pytest.mark.parametrize("vendor", ["GenuineIntel", "AuthenticAMD"])
def test_intels_processors_multiply_with_mkl(monkeypatch, vendor):
    monkeypatch.setattr(linear, "cpu_info", lambda: {"vendor_id": vendor})
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert linear.onednn_is_faster.__wrapped__() is (vendor == "AuthenticAMD")
