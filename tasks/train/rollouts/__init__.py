"""Rollouts for GRPO without a server: G completions of a prompt whose picture is computed once.

Import `engine` directly: it needs torch, which nothing outside training should load.
"""
