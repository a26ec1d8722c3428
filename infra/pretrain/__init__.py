"""Pretrains a small Qwen2.5-VL to see, on pictures of the offline world: it learns no place and no coordinate."""
