"""Life on a Hugging Face Space: borrowed GPUs, and how the demo gets there."""
