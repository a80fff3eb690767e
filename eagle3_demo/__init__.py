"""EAGLE-3 speculative decoding: a readable engine and a live demo."""

__version__ = "0.1.0"
