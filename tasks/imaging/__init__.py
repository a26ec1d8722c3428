"""Pixels: decoding, panoramas, perspective views, metadata."""
