"""The generated parts of the documentation: `<!-- kind: name -->` becomes `KINDS[kind](name)`."""

from __future__ import annotations

from collections.abc import Callable

from generators.algorithms import algorithms, coded_algorithms, effort, predictions
from generators.choices import commands, exchanges, merges
from generators.codecs import codec_errors, codec_speeds, codec_traits, codecs
from generators.device_results import device_results
from generators.errors import error
from generators.reference import reference
from generators.reproduced import claim
from generators.results import (
    auto_coded_results,
    auto_results,
    peer_results,
    process_group_results,
    training_results,
)
from generators.transports import transports

__all__ = ["KINDS", "TABLES"]

TABLES: dict[str, Callable[[], str]] = {
    "algorithms": algorithms,
    "coded_algorithms": coded_algorithms,
    "effort": effort,
    "predictions": predictions,
    "transports": transports,
    "codecs": codecs,
    "codec_traits": codec_traits,
    "codec_errors": codec_errors,
    "merges": merges,
    "exchanges": exchanges,
    "commands": commands,
    "auto": auto_results,
    "auto_coded": auto_coded_results,
    "process_group": process_group_results,
    "training": training_results,
}

KINDS: dict[str, Callable[[str], str]] = {
    "table": lambda name: TABLES[name](),
    "error": error,
    "peers": peer_results,
    "speeds": codec_speeds,
    "reference": reference,
    "claim": claim,
    "device": device_results,
}
