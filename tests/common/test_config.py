"""The configuration's defaults, its round trip, and the sentence for every kind of mistake."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from common.config import MAY_CHANGE, NodeConfig, RunConfig, Value
from common.errors import ConfigError

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
SITE: dict[str, Value] = {"name": "site-1", "data": "digits"}


def refused(values: dict[str, Any], kind: type[RunConfig] | type[NodeConfig] = RunConfig) -> str:
    with pytest.raises(ConfigError) as error:
        kind.read(values, "exp.toml")
    assert error.value.__cause__ is None  # its sentence may leave the machine
    return str(error.value)


# Defaults


def test_flower_is_told_the_same_keys_and_defaults_in_the_same_order() -> None:
    declared = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
    own = RunConfig().as_dict()
    assert list(declared.items()) == list(own.items())
    assert {key: type(value) for key, value in declared.items()} == {k: type(v) for k, v in own.items()}


def test_flower_is_told_what_each_key_means() -> None:
    text = PYPROJECT.read_text(encoding="utf-8")
    for name, field in RunConfig.model_fields.items():
        line = next(line for line in text.splitlines() if line.startswith(f"{name.replace('_', '-')} = "))
        assert line.split("  # ")[1] == field.description


def test_every_field_is_described() -> None:
    for kind in (RunConfig, NodeConfig):
        assert all(field.description for field in kind.model_fields.values())


def test_nothing_given_is_the_defaults() -> None:
    assert RunConfig.read({}, "exp.toml") == RunConfig()
    assert NodeConfig.read(SITE, "site.toml") == NodeConfig(name="site-1", data="digits")


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        RunConfig().rounds = 3  # type: ignore[misc]


def test_python_code_cannot_misspell_a_key_either() -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        RunConfig.model_validate({"local_epoch": 2})


# Round trip


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "run-name": st.from_regex(r"[A-Za-z0-9._-]{0,40}", fullmatch=True),
            "seed": st.integers(0, 2**63 - 1),
            "rounds": st.integers(1, 10**6),
            "algorithm": st.sampled_from(["fedavg", "fedprox"]),
            "filter-ratio": st.floats(0, 1, exclude_max=True),
            "learning-rate": st.floats(0, 1e6, exclude_min=True),
            "weight-decay": st.floats(0, 1e6),
            "momentum": st.just(0),  # an integer where a float is meant
            "device": st.sampled_from(["auto", "cpu", "cuda", "cuda:0", "cuda:12"]),
            "contribution": st.sampled_from(["off", "observe", "weight"]),
            "tensorboard": st.booleans(),
        },
    )
)
def test_as_dict_is_what_read_takes_back(values: dict[str, Value]) -> None:
    config = RunConfig.read(values, "exp.toml")
    whole = config.as_dict()
    assert RunConfig.read(whole, "exp.toml") == config
    assert {key: whole[key] for key in values} == values
    assert set(whole) == {name.replace("_", "-") for name in RunConfig.model_fields}


def test_a_node_goes_round_as_well() -> None:
    node = NodeConfig.read({**SITE, "validation": 0.0, "threads": 2, "device": "cuda:1"}, "site.toml")
    assert NodeConfig.read(node.as_dict(), "site.toml") == node


# Mistakes


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"local-epoch": 2}, 'unknown key "local-epoch" in exp.toml. Did you mean "local-epochs"?'),
        ({"batch_size": 2}, 'unknown key "batch_size" in exp.toml. Did you mean "batch-size"?'),
        ({"zzz": 2}, "unknown key \"zzz\" in exp.toml. 'specfed config' lists all keys."),
        ({"rounds": "ten"}, "\"rounds\" in exp.toml: input should be a valid integer; got 'ten'."),
        ({"rounds": 2.0}, '"rounds" in exp.toml: input should be a valid integer; got 2.0.'),
        ({"rounds": True}, '"rounds" in exp.toml: input should be a valid integer; got True.'),
        ({"momentum": False}, '"momentum" in exp.toml: input should be a valid number; got False.'),
        ({"tensorboard": 1}, '"tensorboard" in exp.toml: input should be a valid boolean; got 1.'),
        ({"rounds": 0}, '"rounds" in exp.toml: input should be greater than or equal to 1; got 0.'),
        ({"seed": 2**63}, f'"seed" in exp.toml: input should be less than {2**63}; got {2**63}.'),
        ({"filter-ratio": 1.0}, '"filter-ratio" in exp.toml: input should be less than 1; got 1.0.'),
        ({"fraction-train": 0}, '"fraction-train" in exp.toml: input should be greater than 0; got 0.'),
        (
            {"algorithm": "fedavgg"},
            "\"algorithm\" in exp.toml: input should be 'fedavg', 'fedprox', 'feddyn', 'scaffold', 'fedcm', "
            "'fedsam', 'fedfft', 'fedvssam', 'ssf', 'mofedsam', 'fedgamma', 'fedspeed', 'fedsmoo', 'fedlesam', "
            "'feddc' or 'fedlc'; got 'fedavgg'. "
            'Did you mean "fedavg"?',
        ),
        (
            {"weighting": "spectralfuze"},
            "\"weighting\" in exp.toml: input should be 'uniform', 'examples', 'spectralfed', "
            "'spectralfuse', 'shapfed', 'cgsv', 'feddisco', 'fedawa' or 'fedlaw'; got 'spectralfuze'. Did you mean \"spectralfuse\"?",
        ),
        ({"amp": "x"}, "\"amp\" in exp.toml: input should be 'off', 'bf16' or 'fp16'; got 'x'."),
        (
            {"batch-size": 4, "micro-batches": 8},
            "micro-batches (8) exceed batch-size (4), in exp.toml",
        ),
        (
            {"weighting": "cgsv", "personalise": "share"},
            "personalise (share) takes weighting=shapfed and contribution=weight; got cgsv and weight, in exp.toml",
        ),
        (
            {"weighting": "cgsv", "contribution": "observe", "reward-beta": 1.5},
            "reward-beta (1.5) takes weighting=cgsv and contribution=weight; got cgsv and observe, in exp.toml",
        ),
        (
            {"weighting": "fedlaw"},
            'weighting=fedlaw and proxy-data go together; got fedlaw and "", in exp.toml',
        ),
        (
            {"weighting": "cgsv", "proxy-data": "digits"},
            'weighting=fedlaw and proxy-data go together; got cgsv and "digits", in exp.toml',
        ),
        (
            {"algorithm": "scaffold", "momentum": 0.9},
            "momentum (0.9) takes an algorithm that does not read steps off updates; got scaffold, in exp.toml",
        ),
        (
            {"algorithm": "fedlesam", "lesam-rule": "scaffold", "momentum": 0.9},
            "momentum (0.9) takes an algorithm that does not read steps off updates; got fedlesam, in exp.toml",
        ),
        (
            {"algorithm": "feddyn", "server-optimizer": "adam"},
            "feddyn takes server-optimizer=sgd and server-learning-rate=1; got adam and 1.0, in exp.toml",
        ),
        (
            {"algorithm": "fedlesam", "lesam-rule": "feddyn", "server-optimizer": "adam"},
            "fedlesam takes server-optimizer=sgd and server-learning-rate=1; got adam and 1.0, in exp.toml",
        ),
        (
            {"uplink": "kept-bins", "weight-decay": 0.001},
            "uplink=kept-bins takes filter=fft on site gradient, weight-decay=0 and not ssf; "
            "got fft on gradient, 0.001 and fedavg, in exp.toml",
        ),
        (
            {"uplink": "kept-bins", "filter-order": "1023"},
            "uplink=kept-bins takes filter-keep-dc=false and filter-order=0123; got false and 1023, in exp.toml",
        ),
        (
            {"uplink": "kept-bins", "filter-keep-dc": True},
            "uplink=kept-bins takes filter-keep-dc=false and filter-order=0123; got true and 0123, in exp.toml",
        ),
        *(
            (
                {"algorithm": name, **keys},
                "update-clip and robust kinds of aggregation take an algorithm without state on the server, which is "
                f"made of all updates as they are; got {name}, in exp.toml",
            )
            for name, keys in (
                ("feddyn", {"aggregation": "median"}),
                ("scaffold", {"update-clip": 1.0}),
                ("fedcm", {"aggregation": "krum"}),
            )
        ),
        (
            {"algorithm": "scaffold", "filter-sites": "gradient,sent"},
            "filter-sites=sent takes an algorithm without memory of its own updates, such as fedavg; got scaffold, "
            "in exp.toml",
        ),
        (
            {"uplink": "kept-bins", "filter-sites": "perturbation,sent"},
            "uplink=kept-bins takes filter=fft on site gradient, weight-decay=0 and not ssf; "
            "got fft on perturbation,sent, 0.0 and fedavg, in exp.toml",
        ),
        (
            {"diagnostics-probe": 10, "eval-data": "digits"},
            'diagnostics-probe (10) takes eval-data, and diagnostics=updates or gradients; got "digits" and off, in exp.toml',
        ),
        (
            {"diagnostics-probe": 10, "diagnostics": "updates"},
            'diagnostics-probe (10) takes eval-data, and diagnostics=updates or gradients; got "" and updates, in exp.toml',
        ),
        (
            {"diagnostics-probe": 3, "diagnostics": "updates", "eval-data": "digits"},
            "diagnostics-probe takes 0 or at least 4 rows; got 3, in exp.toml",
        ),
        (
            {"diagnostics-probe": 1001},
            '"diagnostics-probe" in exp.toml: input should be less than or equal to 1000; got 1001.',
        ),
        (
            {"diagnostics": "update"},
            "\"diagnostics\" in exp.toml: input should be 'off', 'updates' or 'gradients'; got 'update'. "
            'Did you mean "updates"?',
        ),
        ({"min-nodes": 3, "min-replies": 4}, "min-replies (4) exceeds min-nodes (3), in exp.toml"),
    ],
)
def test_the_sentence_for_a_mistake(values: dict[str, Any], sentence: str) -> None:
    assert refused(values) == sentence


FLOATS = [name for name, field in RunConfig.model_fields.items() if field.annotation is float]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", FLOATS)
def test_no_number_may_be_infinite_or_none_at_all(name: str, value: float) -> None:
    key = name.replace("_", "-")
    assert refused({key: value}).startswith(f'"{key}" in exp.toml: input should be ')


def test_there_are_floats_to_check() -> None:
    assert {"learning_rate", "filter_ratio", "momentum", "kalman_q", "clip_norm", "round_timeout"} <= set(
        FLOATS
    )


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:x", "CPU", "cpu ", "cpu\n"])
def test_devices_that_are_none(device: str) -> None:
    assert refused({"device": device}) == (
        f'"device" in exp.toml: takes auto, cpu, cuda, or cuda:1 and the like; got {device!r}.'
    )


@pytest.mark.parametrize("name", ["a/b", "..\\x", "a b", "x" * 41, "ä", "x\n"])
def test_run_names_become_folder_names(name: str) -> None:
    assert refused({"run-name": name}) == (
        f'"run-name" in exp.toml: takes at most 40 letters, digits, ".", "_" and "-"; got {name!r}.'
    )


def test_equal_bounds_are_within_them() -> None:
    assert RunConfig.read({"batch-size": 4, "micro-batches": 4}, "exp.toml").micro_batches == 4
    assert RunConfig.read({"min-nodes": 3, "min-replies": 3}, "exp.toml").min_replies == 3


@pytest.mark.parametrize("name", ["a", "site-1", "St.Mary_7", "x" * 60])
def test_names_of_sites(name: str) -> None:
    assert NodeConfig.read({**SITE, "name": name}, "site.toml").name == name


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "x" * 61, "a\n", '"'])
def test_no_names_of_sites(name: str) -> None:
    sentence = refused({**SITE, "name": name}, NodeConfig)
    assert sentence == (f'"name" in exp.toml: takes 1 to 60 letters, digits, ".", "_" and "-"; got {name!r}.')


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"data": "digits"}, '"name" is missing in exp.toml'),
        ({"name": "a"}, '"data" is missing in exp.toml'),
        ({**SITE, "data": ""}, "\"data\" in exp.toml: string should have at least 1 character; got ''."),
        ({**SITE, "validation": 1.0}, '"validation" in exp.toml: input should be less than 1; got 1.0.'),
        ({**SITE, "dta": "x"}, 'unknown key "dta" in exp.toml. Did you mean "data"?'),
        ({**SITE, "prox-mu": 3}, "unknown key \"prox-mu\" in exp.toml. 'specfed config' lists all keys."),
    ],
)
def test_the_sentence_for_a_site(values: dict[str, Value], sentence: str) -> None:
    assert refused(values, NodeConfig) == sentence


def test_of_several_mistakes_one_is_told() -> None:
    assert refused({"rounds": 0, "momentum": 2.0}).count("\n") == 0


# A run that goes on


def test_what_may_change_are_keys_and_everything_else_makes_another_run() -> None:
    assert RunConfig().as_dict().keys() >= MAY_CHANGE
    before = RunConfig()
    after = before.model_copy(update={"rounds": 20, "min_nodes": 5, "resume": "run", "seed": 1, "mix": 0.5})
    assert after.changes(before) == {"seed": (0, 1), "mix": (0.1, 0.5)}
    assert before.changes(before) == {}
