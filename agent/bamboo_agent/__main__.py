"""``python -m bamboo_agent``: the node's daemon. ``BAMBOO_NODE_CONFIG`` names its configuration file."""

import asyncio
import logging
import os
import sys
from pathlib import Path

from bamboo_agent.agent import Agent
from bamboo_agent.config import CONFIG_VARIABLE, ConfigError, has_nursery, read_config, worker_command


def main() -> int:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("websockets").setLevel(logging.WARNING)
    path = os.environ.get(CONFIG_VARIABLE)
    if not path:
        print(f"bamboo_agent: set {CONFIG_VARIABLE} to the node's configuration file", file=sys.stderr)
        return 2
    try:
        config = read_config(Path(path))
    except ConfigError as error:
        print(f"bamboo_agent: {error}", file=sys.stderr)
        return 1
    agent = Agent(path=Path(path), config=config, command=worker_command(), has_nursery=has_nursery())
    return asyncio.run(agent.run())


if __name__ == "__main__":
    sys.exit(main())
