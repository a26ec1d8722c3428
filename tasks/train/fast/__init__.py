"""Fast supervised training of Qwen2.5-VL on one GPU: packed samples, compiled layers, bf16 weights.

`FastModel` (model.py) computes with the weights of a plain transformers model; it changes how, not what, is computed.
Import its modules directly: each needs torch, which nothing outside training should load.
"""
