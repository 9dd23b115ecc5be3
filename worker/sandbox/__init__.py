"""Confine an engine: no network, and no file outside its scratch folder and the installation.

``launch.py`` is the program that a worker starts in the engine's place; it confines itself and
then becomes the engine. The modules beside it need the standard library only, and none imports
what lies outside this folder, so that the program starts without site-packages.
"""

from .plan import Sandbox, SandboxMode, device_paths, installation_of, system_paths, without
from .support import Support, kernel_support

__all__ = [
    "Sandbox",
    "SandboxMode",
    "Support",
    "device_paths",
    "installation_of",
    "kernel_support",
    "system_paths",
    "without",
]
