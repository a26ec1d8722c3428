"""Groups of rollouts packed so that a group's prompt, with its pictures, is computed once.

Each completion is a segment of its own; its keys are its prompt's and its own. Losses and gradients are those of
prompt and completion computed together for every rollout, at a fraction of the tokens.
"""

from collections.abc import Sequence

import numpy as np
import torch

from tasks.train.fast.packing import Packed, positions_of
from tasks.train.token_samples import Grid, Group


def pack_groups(groups: Sequence[Group], image_token: int, merge: int) -> Packed:
    """Prompts and completions one after another; targets are the policy's tokens, completion by completion."""
    ids, positions, lengths, keys_at, key_lengths = [], [], [], [], []
    predict_at: list[int] = []
    targets: list[int] = []
    pixels: list[torch.Tensor | None] = []
    grids: list[Grid] = []
    start = 0
    for group in groups:
        prompt = group.prompt
        size = len(prompt.ids)
        first = start  # where the prompt begins
        ids.append(np.asarray(prompt.ids, dtype=np.int64))
        positions.append(positions_of(prompt.ids, prompt.grids, image_token, merge))
        lengths.append(size)
        keys_at.append(np.arange(first, first + size))
        key_lengths.append(size)
        start += size
        pixels.append(prompt.pixels)
        grids += prompt.grids
        for completion in group.completions:
            whole = positions_of([*prompt.ids, *completion.ids], (*prompt.grids, *completion.grids), image_token, merge)
            ids.append(np.asarray(completion.ids, dtype=np.int64))
            positions.append(whole[:, size:])
            lengths.append(len(completion.ids))
            keys_at += [np.arange(first, first + size), np.arange(start, start + len(completion.ids))]
            key_lengths.append(size + len(completion.ids))
            for place, (token, is_policy) in enumerate(zip(completion.ids, completion.is_policy, strict=True)):
                if is_policy:  # a completion's first token is predicted by its prompt's last
                    predict_at.append(first + size - 1 if place == 0 else start + place - 1)
                    targets.append(token)
            start += len(completion.ids)
            pixels.append(completion.pixels)
            grids += completion.grids
    together = np.concatenate(ids)
    # A question's pictures were sent to the device as they were decoded, those that tools returned were not.
    shown = [picture_pixels for picture_pixels in pixels if picture_pixels is not None]
    shown = [tensor.to(shown[0].device, shown[0].dtype) for tensor in shown]
    return Packed(
        ids=torch.from_numpy(together),
        positions=torch.from_numpy(np.ascontiguousarray(np.concatenate(positions, axis=1))),
        lengths=tuple(lengths),
        picture_at=torch.from_numpy(np.flatnonzero(together == image_token)),
        grids=tuple(grids),
        pixels=torch.cat(shown) if shown else None,
        predict_at=torch.tensor(predict_at, dtype=torch.long),
        targets=torch.tensor(targets, dtype=torch.long),
        keys_at=torch.from_numpy(np.concatenate(keys_at)),
        key_lengths=tuple(key_lengths),
    )
