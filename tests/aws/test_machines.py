"""Instances with machines behind them: SSH with the pinned key, their notice, and every way in which they end."""

import pytest

pytestmark = pytest.mark.vms
