"""Target devices: one data file each, and the small model that reads them.

Light to import: no NumPy, no ONNX. Adding a device adds a file and touches no code.
"""

from .load import DEVICE_PATH, list_devices, load_device, resolve_schemes
from .model import CORES_OF_SCHEME, SCHEMES, Assumption, Device, Scheme

__all__ = [
    "CORES_OF_SCHEME",
    "DEVICE_PATH",
    "SCHEMES",
    "Assumption",
    "Device",
    "Scheme",
    "list_devices",
    "load_device",
    "resolve_schemes",
]
