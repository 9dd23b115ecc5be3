"""The HTTP API. ``create_app(settings)`` returns the application."""

from .app import create_app

__all__ = ["create_app"]
