"""Train and export the two small networks ``digits_cnn.onnx`` and ``digits_vit.onnx``.

Run once by hand, not by the build; needs PyTorch 2.13 (``pip install torch==2.13.0``),
scikit-learn, onnx and onnxscript. See README.md for the recipe and what was reached.

    python tests/data/train_digits.py
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
EPOCHS = 150
BATCH = 64


def split() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training and test images [N, 1, 8, 8] in 0..1, and their labels."""
    data = load_digits()
    images = (data.images / 16.0).astype(np.float32)[:, None]
    return train_test_split(images, data.target, test_size=0.25, random_state=0)


class Block(nn.Module):
    """Depthwise 3x3 and pointwise convolution with an identity shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False),
            nn.BatchNorm2d(width),
            nn.Hardswish(),
            nn.Conv2d(width, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.layers(x))


class Cnn(nn.Module):
    """Stem, two residual depthwise blocks with max pooling between, global pooling, classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            Block(32),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU6(),
            Block(64),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 10),
        )

    def forward(self, image: Tensor) -> Tensor:
        return self.layers(image)


class Attention(nn.Module):
    """Multi-head self-attention written out, so that the export has each step."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        head = width // self.heads
        q, k, v = (
            part.reshape(batch, tokens, self.heads, head).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(head), dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, tokens, width))


class Encoder(nn.Module):
    """Pre-norm transformer encoder block with a Gelu feed-forward network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.ffn = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.ffn(self.norm2(x))


class Vit(nn.Module):
    """2x2 patches, width 48, 4 heads, 3 blocks, mean over the tokens, classifier."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.position = nn.Parameter(torch.randn(1, 16, width) * 0.02)
        self.blocks = nn.Sequential(*(Encoder(width, 4) for _ in range(3)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.blocks(x)).mean(dim=1))


def shifted(images: Tensor) -> Tensor:
    """Move each image by up to one pixel: the only augmentation."""
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    moves = torch.randint(0, 3, (len(images), 2)).tolist()
    return torch.stack(
        [p[:, y : y + 8, x : x + 8] for p, (y, x) in zip(padded, moves, strict=True)]
    )


def train(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """AdamW with one cosine cycle."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    steps = EPOCHS * math.ceil(len(images) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    model.train()
    for _ in range(EPOCHS):
        for part in torch.randperm(len(images)).split(BATCH):
            loss = nn.functional.cross_entropy(
                model(shifted(images[part])), labels[part], label_smoothing=0.05
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()


def main() -> None:
    """Train both, print their test accuracy, write the files."""
    train_x, test_x, train_y, test_y = split()
    x, y = torch.from_numpy(train_x), torch.from_numpy(train_y)
    for name, make in (("digits_cnn", Cnn), ("digits_vit", Vit)):
        torch.manual_seed(0)
        model = make()
        train(model, x, y)
        with torch.inference_mode():
            guess = model(torch.from_numpy(test_x)).argmax(dim=1).numpy()
        path = HERE / f"{name}.onnx"
        torch.onnx.export(
            model,
            (torch.from_numpy(test_x[:2]),),
            str(path),
            input_names=["image"],
            output_names=["logits"],
            opset_version=18,
            dynamo=True,
            external_data=False,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
        exported = onnx.load(path)
        # where a tensor came from in the training script is of no use to a reader
        graph = exported.graph
        for item in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info):
            del item.metadata_props[:]
        onnx.save(exported, path)
        print(f"{name}: {(guess == test_y).sum()} of {len(test_y)} test images right")


if __name__ == "__main__":
    main()
