"""``python -m bamboo_trainer.nursery``: loads torch and all that a worker needs, once, and forks workers for whoever
started it (an agent, or the local cloud for the nodes of this machine). It ends with that one. See docs/nursery.md.
"""

import gc
import os
import socket
import sys

from bamboo_trainer import births


def main() -> int:
    asker = socket.socket(fileno=int(os.environ[births.NURSERY_VARIABLE]))
    asker.set_inheritable(False)
    load()
    if not births.serve(asker):
        return 0
    from bamboo_trainer.__main__ import main as work

    be_like_new()
    return work()


def load() -> None:
    """No thread, no process group, no CUDA, no autograd: none of them survives a fork."""
    import importlib

    import torch

    from bamboo_trainer.layout import lay_out
    from bamboo_trainer.recipe import READY_RECIPES, load_recipe
    from bamboo_trainer.torch_compute import warm_up

    torch.set_num_threads(1)
    importlib.import_module("bamboo_trainer.__main__")
    for module in READY_RECIPES.values():
        importlib.import_module(module)
    warm_up()
    lay_out(load_recipe("mlp", {}))
    _end_threads()
    gc.collect()
    gc.freeze()  # what is loaded stays shared: no collection of a child visits, and so copies, it


def be_like_new() -> None:
    """Global random streams differ from worker to worker, as they do between processes that are started cold."""
    import numpy
    import torch

    torch.default_generator.seed()
    numpy.random.seed()


def _end_threads() -> None:
    """numpy's OpenBLAS starts threads when it is imported; it ends them before any fork, and starts them again when
    there is something to multiply."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


if __name__ == "__main__":
    sys.exit(main())
