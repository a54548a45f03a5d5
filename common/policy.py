"""What a site lets runs do with its data, in a file of its own that no run can change.

``policy.toml`` lies on the node. Which apps may run is checked before an app's code is loaded (by whoever
starts it); the rest is checked by the app, so it binds only apps that the site has looked at: list them.
"""

import tomllib
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from common.config import Checked, NotNegative, RunConfig
from common.errors import ConfigError, PolicyError

NEEDED_METRICS = frozenset({"num-examples", "steps", "memory-lost"})  # no reply is of use without

AppHash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Policy(Checked):
    """A site's limits. The defaults allow everything."""

    hint: ClassVar[str] = "The keys of a policy file stand in the site operator's page."

    apps: list[AppHash] = Field([], description="SHA-256 of the apps that may run; none listed allows any")
    max_rounds: Annotated[int, Field(ge=0)] = Field(
        0, description="rounds of one run that this node takes part in; 0 is no limit"
    )
    max_minutes: NotNegative = Field(
        0.0, description="minutes from the first round or test of a run here to the last; 0 is no limit"
    )
    min_examples: Annotated[int, Field(ge=0)] = Field(
        0, description="training rows below which nothing leaves"
    )
    clip_norm: NotNegative = Field(0.0, description="largest L2 norm of an update that leaves; 0 is no limit")
    noise: NotNegative = Field(
        0.0, description="Gaussian noise on each number of an update, in units of clip-norm; 0 is none"
    )
    models: list[str] = Field(
        [], description="models that may be trained, by name or as module:function; none listed allows all"
    )
    metrics: list[str] = Field(
        [], description="metrics that may leave beside counts; none listed allows all, or with noise none"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.noise and not self.clip_norm:
            raise ValueError(f"noise ({self.noise:g}) is in units of clip-norm, which is 0")
        return self

    def check_run(self, run: RunConfig, exact: bool, examples: int) -> None:
        """Raise PolicyError for a run that this site takes no part in.

        ``exact``: the algorithm needs updates as they are, because node or server computes with them later.
        """
        if self.max_rounds and run.rounds > self.max_rounds:
            raise PolicyError(f"this site takes part in at most {self.max_rounds} rounds; got {run.rounds}")
        if self.models and run.model not in self.models:
            raise PolicyError(f'this site trains {", ".join(self.models)}; got model "{run.model}"')
        if examples < self.min_examples:
            raise PolicyError(f"this site trains on at least {self.min_examples} rows; it has fewer")
        if run.wants_labels and (self.metrics or self.noise) and "label-counts" not in self.metrics:
            raise PolicyError(
                f"weighting {run.weighting} needs to know how many rows of each class there are, and "
                '"label-counts" is not among the metrics of this site'
            )
        if self.clip_norm and exact:
            raise PolicyError(
                f"this site clips what it sends, and algorithm {run.algorithm} needs exact updates; "
                "take one without memory, such as fedavg"
            )
        if self.clip_norm and run.diagnostics == "gradients":
            raise PolicyError(
                "this site clips what it sends, and diagnostics=gradients sends gradients as they are; "
                "take diagnostics=updates"
            )

    def check_usage(self, had: int, minutes: float, what: Literal["rounds", "tests"]) -> None:
        """Raise PolicyError if a run has had as many rounds, tests or minutes of this node as it may."""
        if self.max_rounds and had >= self.max_rounds:
            raise PolicyError(f"this site takes part in at most {self.max_rounds} {what} of a run")
        if self.max_minutes and minutes > self.max_minutes:
            raise PolicyError(f"this site takes part in a run for at most {self.max_minutes:g} minutes")


def read_policy(file: str) -> Policy:
    """The policy in a TOML file; one that allows everything for no file.

    Raises ConfigError if it cannot be read or says something else than a policy.
    """
    if not file:
        return Policy()
    try:
        values = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"policy file {file} cannot be read: {error}") from None
    return Policy.read(values, file)
