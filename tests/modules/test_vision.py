import pytest
import torch
from torch import nn

from sgrpo_lightning.modules import cosine_with_warmup, resnet, small_cnn


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("size", [28, 32, 64])
def test_the_small_network(norm, size):
    """Widths 8, 16 and 10 classes: 72 c + 1152 weights of convolutions, 2 (8 + 16) of norms, 16 16 10 + 10."""
    model = small_cnn(10, channels=3, widths=[8, 16], norm=norm)
    assert sum(p.numel() for p in model.parameters()) == 72 * 3 + 1152 + 48 + 2570
    assert model(torch.zeros(2, 3, size, size)).shape == (2, 10)
    assert [m.stride for m in model if isinstance(m, nn.Conv2d)] == [(1, 1), (2, 2)]


def test_group_norm_looks_at_one_image_alone():
    torch.manual_seed(0)
    images = torch.randn(4, 1, 32, 32)
    for norm, alone in (("group", True), ("batch", False)):
        model = small_cnn(10, channels=1, norm=norm)
        torch.testing.assert_close(model(images)[:1], model(images[:1])) if alone else None
        assert torch.allclose(model(images)[:1], model(images[:1]), atol=1e-4) == alone


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("stem", ["imagenet", "small"])
def test_residual_networks(stem, channels):
    """torchvision's ResNet-18 has 11,689,512 weights for 1000 classes; each 32-pixel stem keeps the resolution."""
    model = resnet(18, 1000, channels=channels, stem=stem)
    first = {"imagenet": 7 * 7, "small": 3 * 3}[stem] * 64
    assert sum(p.numel() for p in model.parameters()) == 11_689_512 - 7 * 7 * 64 * 3 + first * channels
    seen = {}
    model.layer1.register_forward_hook(lambda module, args, output: seen.update(size=output.shape[-1]))
    assert model(torch.zeros(2, channels, 32, 32)).shape == (2, 1000)
    assert seen["size"] == {"imagenet": 8, "small": 32}[stem]
    fan_out = first / 64 * 64
    assert model.conv1.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.1)  # 576 to 9408 normals


def test_what_cannot_be():
    with pytest.raises(ValueError, match=r"model.norm must be one of batch, group, got 'layer'"):
        small_cnn(10, norm="layer")
    with pytest.raises(ValueError, match=r"model.depth must be one of 18, 34, 50, 101, 152, got 51"):
        resnet(51, 10)
    with pytest.raises(ValueError, match=r"model.stem must be one of imagenet, small, got 'tiny'"):
        resnet(18, 10, stem="tiny")


def test_the_schedule_step_by_step():
    """Warm-up from half to the whole, then (1 + cos(pi t)) / 2 at t = 0, 1/4, 1/2, 3/4, and 0 at the end."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.2)
    schedule = cosine_with_warmup(optimizer, num_training_steps=6, num_warmup_steps=2)
    rates = []
    for _ in range(8):
        rates.append(optimizer.param_groups[0]["lr"] / 0.2)
        optimizer.step()
        schedule.step()
    half = 2**-0.5
    assert rates == pytest.approx([0.5, 1, 1, (1 + half) / 2, 0.5, (1 - half) / 2, 0, 0], abs=1e-12)


def test_a_warm_up_longer_than_the_run():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.2)
    with pytest.raises(ValueError, match="warm-up must be shorter than the 5 steps, got 5"):
        cosine_with_warmup(optimizer, num_training_steps=5, num_warmup_steps=5)
