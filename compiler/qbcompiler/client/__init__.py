"""The client of the compile server: the same build, made elsewhere.

``connection`` speaks HTTP and turns problems into the compiler's typed errors, ``credentials``
finds the token, ``samples`` gathers calibration data, ``uploads`` sends what the server does not
hold, ``follow`` shows a job live, ``fetch`` brings its files, ``build`` puts these in order.
"""

from .build import remote_build
from .connection import Server, ServerError
from .credentials import SERVER_VARIABLE, TOKEN_VARIABLE, connect, forget_token, save_token
from .fetch import Wanted, fetch_artifacts
from .follow import follow_job, raise_if_failed

__all__ = [
    "SERVER_VARIABLE",
    "TOKEN_VARIABLE",
    "Server",
    "ServerError",
    "Wanted",
    "connect",
    "fetch_artifacts",
    "follow_job",
    "forget_token",
    "raise_if_failed",
    "remote_build",
    "save_token",
]
