"""How one bucket of gradients becomes global; one file per exchange, one import line here."""

from gpucomm.exchange.base import Exchange, Handle, Part, create, names, register
from gpucomm.exchange.dense import Dense

__all__ = ["Dense", "Exchange", "Handle", "Part", "create", "names", "register"]
