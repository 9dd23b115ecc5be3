"""The HTTP process: uvicorn with the service's application."""

from __future__ import annotations

import argparse
import logging
import socket

from service.logs import set_up_logging
from service.settings import Settings, get_settings

__all__ = ["bind", "run_http"]

_GRACEFUL_SECONDS = 5


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        OSError: the address is in use or not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host.strip("[]"), port))
        sock.listen(1024)
    except OSError:
        sock.close()
        raise
    return sock


def run_http(settings: Settings, sock: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT."""
    import uvicorn

    from service.api import create_app

    config = uvicorn.Config(
        create_app(settings),
        log_config=None,
        access_log=settings.log_level == "debug",
        timeout_graceful_shutdown=_GRACEFUL_SECONDS,
        server_header=False,
        h11_max_incomplete_event_size=64 << 10,
        lifespan="on",
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    uvicorn.Server(config).run(sockets=[sock])


def main() -> None:
    """Serve on an inherited socket: ``python -m worker.http --fd N``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    args = parser.parse_args()
    settings = get_settings()
    set_up_logging("http", settings)
    run_http(settings, socket.socket(fileno=args.fd))


if __name__ == "__main__":
    main()
