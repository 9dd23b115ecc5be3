"""Image preprocessing for calibration, equal to what torchvision and Pillow do."""

from .base import Step
from .center_crop import CenterCrop
from .color_convert import ColorConvert
from .letterbox import Letterbox
from .normalize import Normalize
from .pipeline import STEPS, InputPreprocessing, Pipeline, Preprocessing
from .resize import Resize

__all__ = [
    "STEPS",
    "CenterCrop",
    "ColorConvert",
    "InputPreprocessing",
    "Letterbox",
    "Normalize",
    "Pipeline",
    "Preprocessing",
    "Resize",
    "Step",
]
