"""The parts of the digits demo; `examples/train_digits.py` puts them together."""
