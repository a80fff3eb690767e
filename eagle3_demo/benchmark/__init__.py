"""Decoding methods measured against each other, prompt by prompt, in one run."""

from eagle3_demo.settings import METHODS

PEER = "transformers"
"""`generate` of transformers: what a user would run without this project."""

BENCHMARK_METHODS: tuple[str, ...] = (*METHODS, PEER)
