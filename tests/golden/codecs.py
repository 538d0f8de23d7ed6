"""Writes the coded bytes of codecs that have none here yet: `python tests/golden/codecs.py`.

What is there is never written again: a change of a codec's bytes is a change of its format.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from codec_samples import CODECS, golden_elements, golden_path, usable

for spec in CODECS:
    if not golden_path(spec).exists():
        golden_path(spec).write_bytes(usable(spec).encode(golden_elements()).tobytes())
        print(golden_path(spec))
