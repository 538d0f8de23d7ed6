"""How one bucket of gradients becomes global; one file per exchange, one import line here."""

from gpucomm.exchange.base import Exchange, Handle, Part, create, names, register
from gpucomm.exchange.coded import Coded
from gpucomm.exchange.dense import Dense
from gpucomm.exchange.gradient_codec import GradientCodec
from gpucomm.exchange.residuals import own_residuals, plain_name, require_known, reshard

__all__ = [
    "Coded",
    "Dense",
    "Exchange",
    "GradientCodec",
    "Handle",
    "Part",
    "create",
    "names",
    "own_residuals",
    "plain_name",
    "register",
    "require_known",
    "reshard",
]
