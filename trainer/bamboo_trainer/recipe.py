"""What a job trains: layers, loss, data, optimizer and learning rate, as one Python function returns them.

This module itself does not import torch, so that its absence is a message and not a traceback.
"""

import difflib
import importlib
import importlib.util
import inspect
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

READY_RECIPES = {"gpt2": "bamboo_trainer.models.gpt2", "mlp": "bamboo_trainer.models.mlp"}
DEFAULT_FUNCTION = "recipe"


class RecipeError(Exception):
    """The recipe cannot be trained. Says what is wrong with it and what to do."""


class Dataset(Protocol):
    """Samples by number. The same ids must always give the same samples, on every node."""

    def __len__(self) -> int: ...

    def batch(self, sample_ids: Sequence[int]) -> "tuple[Any, Any]":
        """Inputs of the first layer and targets of the loss, stacked over the samples."""
        ...


class LayerFactory(NamedTuple):
    """``build`` makes the layer with fresh parameters; it is called on the nodes that hold the layer only.

    The layer takes the output of the one before it: a tensor, or a tuple of tensors as several arguments.
    """

    name: str
    build: "Callable[[], nn.Module]"


class TiedParameter(NamedTuple):
    layer: int
    parameter: str
    """Its name inside the layer, as ``named_parameters`` has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersForm:
    """How the model looks to the ``transformers`` package: see docs/export.md."""

    config: Mapping[str, Any]
    """``config.json``."""
    rename: "Callable[[str, Mapping[str, Tensor]], Mapping[str, Tensor]]"
    """The name of a layer and its parameters by name, to tensors as that package calls and shapes them.

    Also asked with tensors that have no memory. A tied parameter may be given once.
    """
    files: Mapping[str, str] = field(default_factory=dict)
    """Further files, such as ``tokenizer.json``, and what they say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    layers: tuple[LayerFactory, ...]
    loss: "Callable[[Any, Any], Tensor]"
    """(output of the last layer, targets) to the mean over the microbatch's samples, a scalar."""
    dataset: Dataset
    optimizer: "Callable[[list[nn.Parameter]], torch.optim.Optimizer]"
    """Called once per layer, with the layer's parameters. Use no ``fused=True``: its bits differ."""
    learning_rate: Callable[[int], float]
    """By step, from 0; set on every parameter group."""
    ties: tuple[tuple[TiedParameter, ...], ...] = ()
    """Groups of parameters that are one: they start equal and their gradients are summed."""
    clip_norm: float | None = None
    """Of the gradient of all layers together."""
    tokens_per_sample: int = 0
    held_out: Dataset | None = None
    """Samples that are not among those of ``dataset``, for ``bamboo eval``."""
    open_data: Callable[[str], Dataset] | None = None
    """Other samples for ``bamboo eval``, from what the user names. Raises RecipeError."""
    transformers: TransformersForm | None = None


def load_recipe(name_or_path: str, options: dict[str, Any], source: str = "") -> Recipe:
    """Calls the recipe function with ``options``. Raises RecipeError.

    ``name_or_path``: a ready recipe, ``file.py`` or ``file.py:function``. ``source``: what that file says, if it is not
    on this machine.
    """
    if source:
        name_or_path = _put_down(name_or_path, source)
    function = _recipe_function(name_or_path)
    _check_options(name_or_path, function, options)
    try:
        recipe = function(**options)
    except RecipeError:
        raise
    except Exception as error:
        raise RecipeError(f"recipe {name_or_path}: {_where(error)} raised {type(error).__name__}: {error}") from error
    if not isinstance(recipe, Recipe):
        raise RecipeError(
            f"recipe {name_or_path}: {function.__name__}() returned {type(recipe).__name__}; "
            "it must return a bamboo_trainer.recipe.Recipe"
        )
    _check_recipe(name_or_path, recipe)
    return recipe


def _put_down(name_or_path: str, source: str) -> str:
    """In a folder of its own, since a recipe may look beside itself."""
    path, colon, function_name = name_or_path.partition(":")
    place = Path(tempfile.mkdtemp(prefix="bamboo-recipe-")) / Path(path).name
    try:
        place.write_text(source, encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"recipe {path} cannot be written to {place}: {error}") from error
    return f"{place}{colon}{function_name}"


def _recipe_function(name_or_path: str) -> Callable[..., Any]:
    path, _, function_name = name_or_path.partition(":")
    module = _load_module(path)
    function = getattr(module, function_name or DEFAULT_FUNCTION, None)
    if not callable(function):
        known = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
        raise RecipeError(
            f"recipe {path} has no function {function_name or DEFAULT_FUNCTION}(){_nearest(function_name, known)}; "
            f"name it as file.py:function"
        )
    return function  # type: ignore[no-any-return]


def _load_module(path: str) -> ModuleType:
    try:
        if path in READY_RECIPES:
            return importlib.import_module(READY_RECIPES[path])
        if not path.endswith(".py"):
            raise RecipeError(
                f"no recipe {path!r}{_nearest(path, READY_RECIPES)}; "
                f"ready ones: {', '.join(READY_RECIPES)}; or give the path of a Python file"
            )
        return _import_file(Path(path))
    except RecipeError:
        raise
    except ModuleNotFoundError as error:
        if error.name in ("torch", "numpy", "safetensors"):
            raise RecipeError(
                f"recipe {path} needs {error.name}, which is not installed; run: pip install 'bamboo-train[train]'"
            ) from error
        raise RecipeError(f"recipe {path} imports {error.name}, which is not installed on this machine") from error
    except Exception as error:
        raise RecipeError(f"recipe {path} does not import: {_where(error)}: {type(error).__name__}: {error}") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise RecipeError(f"no recipe file {path}; give the path of a Python file that every node can read")
    name = f"bamboo_recipe_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RecipeError(f"recipe file {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look their module up there
    spec.loader.exec_module(module)
    return module


def _check_options(name: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
    parameters = inspect.signature(function).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for option in options:
            if option not in parameters:
                raise RecipeError(
                    f"recipe {name} has no option {option!r}{_nearest(option, parameters)}; "
                    f"it has: {', '.join(parameters) or 'none'}"
                )
    needed = [
        n for n, p in parameters.items() if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    if missing := [n for n in needed if n not in options]:
        raise RecipeError(f"recipe {name} needs the option {missing[0]!r}; set it under recipe_options")


def _check_recipe(name: str, recipe: Recipe) -> None:
    if not recipe.layers:
        raise RecipeError(f"recipe {name} has no layers")
    names = [layer.name for layer in recipe.layers]
    if twice := [n for n in names if names.count(n) > 1]:
        raise RecipeError(f"recipe {name} has two layers named {twice[0]!r}; names must differ")
    if len(recipe.dataset) < 1:
        raise RecipeError(f"recipe {name}: its data set is empty")
    for group in recipe.ties:
        layers = [tied.layer for tied in group]
        if len(set(layers)) != len(layers) or not all(0 <= layer < len(names) for layer in layers):
            raise RecipeError(
                f"recipe {name}: a group of ties must name different layers of 0 to {len(names) - 1}: {group}"
            )


def _nearest(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _where(error: BaseException) -> str:
    """File and line of the innermost frame; that of a syntax error is where the syntax is wrong."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "its function"
