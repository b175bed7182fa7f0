"""A machine's Python whose environment, unpacking, pip and first import of torch wait instead of working.

Sixteen real installations keep two cores busy for a minute, where sixteen machines have cores of their own. So what a
machine works on for itself takes its time here, and no core's. The agent is real.
"""

import sys
import sysconfig
from pathlib import Path
from string import Template

ENVIRONMENT_S, UNPACK_S, TORCH_S, PACKAGES_S, IMPORT_S = 0.5, 0.5, 6.0, 3.0, 2.0
"""Less than on EC2, where torch and its CUDA libraries alone take a minute or two: so our own part weighs more."""
TOTAL_S = ENVIRONMENT_S + 2 * UNPACK_S + TORCH_S + PACKAGES_S + IMPORT_S
PLACE = "/usr/local/bin/python3"
ROOT = Path(__file__).parents[1]

_SCRIPT = Template(r"""#!/bin/sh
# Of what is asked here nothing is computed but the agent.
case "$$1 $$2" in
"-m venv") sleep $environment; mkdir -p venv/bin venv/packages; exec cp "$$0" venv/bin/python ;;
"-m zipfile") exec sleep $unpack ;;
"-m pip") case "$$*" in *"torch>"*) exec sleep $torch ;; *) exec sleep $packages ;; esac ;;
"-m bamboo_agent") PYTHONPATH='$path' BAMBOO_WORKER_COMMAND='$worker' exec $python "$$@" ;;
"-c "*"print(sysconfig"*) echo venv/packages ;;
"-c "*python=*) echo "python=$$0|3.12.3|2.0.0|/opt/image" ;;
"-c "*Requirement*) exit 1 ;;
"-c "*bamboo_agent.agent*) exec sleep $imports ;;
*) echo "this Python knows nothing of $$*" >&2; exit 1 ;;
esac
""")


def python() -> str:
    """The script. ``BAMBOO_WORKER_COMMAND`` keeps the agent from loading torch ahead: no run is begun here."""
    packages = [ROOT, ROOT / "agent", ROOT / "trainer", ROOT / "templates", Path(sysconfig.get_path("purelib"))]
    real = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    return _SCRIPT.substitute(
        environment=ENVIRONMENT_S,
        unpack=UNPACK_S,
        torch=TORCH_S,
        packages=PACKAGES_S,
        imports=IMPORT_S,
        path=":".join(map(str, packages)),
        python=real,
        worker=f"{real} {ROOT / 'benchmarks/idle_worker.py'}",
    )
