"""SFT, cold start and GRPO on an approved snapshot."""

from flows.single import single

train = single("train")
