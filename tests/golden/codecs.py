"""Writes what codecs have not here yet: `python tests/golden/codecs.py`.

Coded bytes are in codecs/; in decoded/, of codecs that lose something, the float32 that they decode to. What
is there is never written again: a change of a codec's bytes, or of what they mean, is a change of its format.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from codec_samples import CODECS, golden_elements, golden_path, usable


def keep(path: Path, content: bytes) -> None:
    """Write a file that is not there."""
    if not path.exists():
        path.write_bytes(content)
        print(path)


for spec in CODECS:
    codec, elements = usable(spec), golden_elements()
    keep(golden_path(spec), codec.encode(elements).tobytes())
    if codec.traits["lossy"]:
        codec.decode(np.fromfile(golden_path(spec), np.uint8), elements)
        keep(golden_path(spec, "decoded"), elements.astype("<f4").tobytes())
