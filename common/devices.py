"""Which device a process computes on."""

import torch

from common.errors import ConfigError


def resolve(device: str) -> torch.device:
    """``auto`` is the first GPU if there is one, else the CPU; other names are taken at their word.

    Raises ConfigError for a GPU that this machine does not have.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = torch.device(device)
    if chosen.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (chosen.index or 0) >= count:
            raise ConfigError(f'device "{device}" is not here: PyTorch sees {count} GPUs on this machine')
    return chosen
