"""A worker of Bamboo on the device that is written in Python: what agents are told to start in place of the trainer."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bamboo_trainer.__main__ import main

from tests.device.other import OtherDevice

if __name__ == "__main__":
    sys.exit(main(find_device=lambda wish: OtherDevice()))
