"""What it means to the fleet that a create failed. Pure."""

from bamboo_cli.coordinator.events import CreateFault
from bamboo_cli.errors import BambooError, CapacityError, CredentialsError, QuotaError, RequestRefusedError


def fault_of(error: BambooError) -> CreateFault:
    match error:
        case CapacityError():
            return CreateFault.CAPACITY
        case QuotaError():
            return CreateFault.QUOTA
        case CredentialsError():
            return CreateFault.CREDENTIALS
        case RequestRefusedError():
            return CreateFault.REFUSED
    return CreateFault.CLOUD
