"""A function of the user's own, named ``module:function``, called with its failures put into words."""

import importlib
import re
from types import ModuleType

from common.errors import SpecfedError, nearest

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_plugin(spec: str) -> bool:
    """Whether ``spec`` has the form ``module:function``."""
    return _NAME.fullmatch(spec) is not None


def call(spec: str, arguments: tuple[object, ...], error: type[SpecfedError]) -> object:
    """What ``module:function`` returns for ``arguments``.

    Raises ``error`` with one sentence if the module is not there, cannot be imported, lacks the
    function, or the function fails. The user's own exception is its cause.
    """
    module_name, _, function_name = spec.partition(":")
    module = _import(spec, module_name, error)
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [name for name, value in vars(module).items() if callable(value)]
        hint = nearest(function_name, known)
        raise error(f'"{spec}": module "{module_name}" has no function "{function_name}". {hint}'.rstrip())
    try:
        return function(*arguments)
    except (Exception, SystemExit) as failure:
        raise error(f'"{spec}" failed with {_in_words(failure)}') from failure


def _import(spec: str, name: str, error: type[SpecfedError]) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as failure:
        missing = failure.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise error(f'"{spec}": there is no module "{missing}" on the Python path') from None
        raise error(f'"{spec}": module "{name}" needs "{missing}", which is not installed') from failure
    except (Exception, SystemExit) as failure:
        raise error(f'"{spec}": importing "{name}" failed with {_in_words(failure)}') from failure


def _in_words(failure: BaseException) -> str:
    text = str(failure).strip().split("\n")[0]
    return f"{type(failure).__name__}: {text}" if text else type(failure).__name__
