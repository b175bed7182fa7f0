"""``python -m bamboo_trainer.nursery``: loads torch and all that a worker needs, once, and forks workers for whoever
started it (an agent, or the local cloud for the nodes of this machine). It ends with that one. With a path as argument
it listens there, for all commands that are run with that path in ``BAMBOO_SHARED_NURSERY``. See docs/nursery.md.
"""

import gc
import importlib
import os
import socket
import sys
from collections.abc import Callable

from bamboo_trainer import bearing, births
from bamboo_trainer.births import Birth, BirthKind


def main() -> int:
    if sys.argv[1:] and births.ROOM_VARIABLE not in os.environ:
        os.execve(sys.executable, [*births.COMMAND, sys.argv[1]], births.with_room(os.environ))
    before = set(os.environ)
    num_threads = load()
    added = {name: value for name, value in os.environ.items() if name not in before}  # by torch
    born = _serve_all(sys.argv[1]) if sys.argv[1:] else _serve_asker()
    if born is None:
        return 0
    is_worker = born.kind is BirthKind.WORKER
    module = importlib.import_module("bamboo_trainer.__main__" if is_worker else _asked_once(born))
    sys.argv = [str(module.__file__)]
    os.environ.update(added)
    be_like_new(num_threads)
    main_of: Callable[[], int] = module.main
    return main_of() if is_worker else _answer(main_of)


def _serve_asker() -> Birth | None:
    asker = socket.socket(fileno=int(os.environ[births.NURSERY_VARIABLE]))
    asker.set_inheritable(False)
    return bearing.serve(asker)


def _serve_all(path: str) -> Birth | None:
    births.die_with_parent()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen()
        return bearing.serve_all(listener)


def _asked_once(birth: Birth) -> str:
    """Raises ValueError."""
    name = birth.command[-1]
    if name not in births.ASKED_ONCE:
        raise ValueError(f"{name} is none of {', '.join(births.ASKED_ONCE)}")
    return name


def _answer(main_of: Callable[[], int]) -> int:
    """In a newborn: over the socket, with its exit code as the last line, since nobody is there to reap it."""
    link = int(os.environ.pop("BAMBOO_CONTROL_FD"))
    os.dup2(link, 0)
    os.dup2(link, 1)
    os.close(link)
    exit_code = main_of()
    print(exit_code, flush=True)
    return exit_code


def load() -> int:
    """How many threads torch would compute with. No thread, no process group, no CUDA, no backward is begun here: none
    of them survives a fork.
    """
    import torch

    from bamboo_trainer import control
    from bamboo_trainer.layout import lay_out
    from bamboo_trainer.recipe import READY_RECIPES, load_recipe
    from bamboo_trainer.torch_compute import warm_up

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for module in ("bamboo_trainer.__main__", *births.ASKED_ONCE, *READY_RECIPES.values()):
        importlib.import_module(module)
    control.warm_up()
    warm_up()
    lay_out(load_recipe("mlp", {}))
    _end_threads()
    gc.collect()
    gc.freeze()  # what is loaded stays shared: no collection of a child visits, and so copies, it
    return num_threads


def be_like_new(num_threads: int) -> None:
    """As a process that is started cold: its own global random streams, torch's own choice of threads."""
    import numpy
    import torch

    torch.set_num_threads(num_threads)
    torch.default_generator.seed()
    numpy.random.seed()


def _end_threads() -> None:
    """numpy's OpenBLAS starts threads when it is imported. It ends them before any fork (here: one for nothing), and
    starts them again when there is something to multiply.
    """
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


if __name__ == "__main__":
    sys.exit(main())
