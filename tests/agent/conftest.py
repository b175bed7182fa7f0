import pytest

from tests.agent.coordinator_double import coordinator as coordinator


@pytest.fixture(autouse=True)
def never_the_real_metadata_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens on the discard port of the loopback."""
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")
