"""An entry of ``QB_ENGINES``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

__all__ = ["EngineSettings"]


class EngineSettings(BaseModel):
    """An engine: a command that speaks the compiler's JSONL protocol."""

    model_config = ConfigDict(extra="forbid")

    command: Annotated[list[str], Field(min_length=1)] = Field(
        description="The command in front of `compile`, `parse` or `quantize`."
    )
    version: Annotated[str, Field(min_length=1, max_length=200)] = Field(
        description="Its version; part of the build key."
    )
    queue: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] | None = Field(
        default=None, description="Queue that its workers listen on; by default one of its own."
    )
    description: str = Field(default="", description="One line for people.")
    readable: list[Path] = Field(
        default_factory=list,
        description="Files and folders that it reads beyond its installation, such as a licence.",
    )
    writable: list[Path] = Field(
        default_factory=list,
        description="Files and folders that it writes beyond its scratch folder, such as a device.",
    )
    network: bool = Field(default=False, description="Whether it may open sockets.")

    @field_validator("readable", "writable", mode="after")
    @classmethod
    def _absolute_paths(cls, value: list[Path]) -> list[Path]:
        for path in value:
            if not path.is_absolute():
                raise ValueError(f"{path} is not an absolute path")
        return value
