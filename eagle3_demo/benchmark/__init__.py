"""Decoding methods measured against each other, prompt by prompt, in one run."""
