"""A classifier trained in this process, without the command line, on images that a test makes up."""

from functools import partial
from types import SimpleNamespace

import lightning as L
import torch
from loop import QUIET, Rows
from torch import nn

from datamodules.images import ImageDataModule
from sgrpo_lightning.axes import NO_LABEL, ImageBatch
from sgrpo_lightning.modules import ClassificationModule, StepPlan, small_cnn

NETWORK = partial(small_cnn, widths=(8, 16), norm="group")


class Images:
    """Noise around a pattern for each class; image `broken` cannot be read."""

    def __init__(self, size, *, classes=4, seed=0, broken=()):
        generator = torch.Generator().manual_seed(seed)
        patterns = torch.randint(0, 200, (classes, 1, 16, 16), generator=torch.Generator().manual_seed(99))
        self.labels = torch.arange(size) % classes
        noise = torch.randint(0, 56, (size, 1, 16, 16), generator=generator)
        self.images = (patterns[self.labels] + noise).to(torch.uint8)
        self.broken = set(broken)

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, draws):
        index = torch.tensor([index for index, _ in draws])
        images, labels = self.images[index].clone(), self.labels[index].clone()
        missing = torch.tensor([i == NO_LABEL or i in self.broken for i in index.tolist()])
        images[missing], labels[missing] = 0, NO_LABEL
        return ImageBatch(images, labels, tuple(f"image-{i}" for i in index.tolist() if i in self.broken))


def made_up(size=32, *, classes=4, broken=(), held_out=10):
    return SimpleNamespace(
        train=Images(size, classes=classes, broken=broken),
        held_out={"eval": Images(held_out, classes=classes, seed=1)},
        num_classes=classes,
        channels=1,
        mean=(0.4,),
        std=(0.2,),
    )


def network(seed=0, model=NETWORK, data=None):
    torch.manual_seed(seed)
    data = data or made_up()
    return model(num_classes=data.num_classes, channels=data.channels)


def train(loss, *, data=None, model=None, optimizer=None, callbacks=(), trainer=None, scheduler=None, **plan):
    """Train and return the module and a row for each iteration."""
    data = data or made_up()
    sizes = {"total_steps": 2, "steps": 1, "batch_size": 8, "micro_batch_size": None, "seed": 0} | plan
    start = model or network(data=data)
    module = ClassificationModule(
        data,
        model=lambda num_classes, channels: start,
        loss=loss,
        plan=StepPlan(**sizes),
        optimizer=optimizer or partial(torch.optim.SGD, lr=0.1),
        scheduler=scheduler,
    )
    rows = Rows()
    loop = L.Trainer(callbacks=[*callbacks, rows], max_epochs=-1, **QUIET | (trainer or {}))
    loop.fit(module, datamodule=ImageDataModule(data, plan=module.plan, evaluation_batch_size=4))
    return module, rows.rows


def vector(module: nn.Module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])
