"""The error tree. A message says what was tried, what happened, and what to do next.

BambooError                    exit code 1: failed, with a message
├── UsageError                 exit code 2: the command or the job file is wrong
│   └── JobFileError             with file, line and key
├── StateError                 the state directory or file cannot be used (busy, corrupt, foreign)
├── CloudError                 a provider could not do what was asked
│   ├── CapacityError            nothing to be had there now: another zone or type may have it
│   ├── QuotaError               the account may not have more
│   ├── RequestRefusedError      the request itself is wrong (image, subnet): asking again does not help
│   ├── CredentialsError         who are you
│   │   └── NotPermittedError      known, but may not do that; the message names the permission
│   ├── ThrottledError           too many calls: the same again, later
│   └── InstanceGoneError        the instance is unknown to the cloud
├── RemoteError                a rented machine could not be reached or made a node
│   ├── UnreachableError         no SSH connection within the deadline
│   ├── HostKeyError             it shows another host key than it was given: it is not our machine
│   ├── ConnectionLostError      the connection broke in the middle: connect again and go on
│   ├── BastionError             the way to it is down, which says nothing of the machine
│   └── StepError                a step of the preparation failed; which, and what it said last
├── SignalledError             Ctrl-C or another signal (exit code 128 + its number): what goes on, and what does not
│   └── DetachedError            Ctrl-C: all goes on
├── LeftBehindError            ``down`` could not prove that nothing is left
├── RunFailedError             the run ended in failure
│   ├── BudgetError            it was stopped at a limit of its job (exit code 4)
│   └── StoppedError           it was stopped in order, as somebody asked for
├── NotVerifiedError           something about a run is not as its ledger says
└── DrillFailedError           a drill did not go as promised; its sentence says what
"""


class BambooError(Exception):
    """``next_step``: what the user can do about it, in one sentence."""

    exit_code = 1
    label = "error"

    def __init__(self, message: str, *, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step


class UsageError(BambooError):
    exit_code = 2


class JobFileError(UsageError):
    pass


class StateError(BambooError):
    pass


class CloudError(BambooError):
    pass


class CapacityError(CloudError):
    pass


class QuotaError(CloudError):
    pass


class RequestRefusedError(CloudError):
    pass


class CredentialsError(CloudError):
    pass


class NotPermittedError(CredentialsError):
    pass


class ThrottledError(CloudError):
    pass


class InstanceGoneError(CloudError):
    pass


class RemoteError(BambooError):
    pass


class UnreachableError(RemoteError):
    pass


class HostKeyError(RemoteError):
    pass


class ConnectionLostError(RemoteError):
    pass


class BastionError(RemoteError):
    """``detail``: what was seen, in a few words."""

    def __init__(self, message: str, *, detail: str = "", next_step: str = "") -> None:
        super().__init__(message, next_step=next_step)
        self.detail = detail or message


class StepError(RemoteError):
    def __init__(self, message: str, *, step: str, next_step: str = "") -> None:
        super().__init__(message, next_step=next_step)
        self.step = step


class SignalledError(BambooError):
    def __init__(self, message: str, *, next_step: str = "", exit_code: int = 130) -> None:
        super().__init__(message, next_step=next_step)
        self.exit_code = exit_code


class DetachedError(SignalledError):
    """Ctrl-C: nothing was stopped or given back, and the message says how to look and how to end it."""


class LeftBehindError(BambooError):
    pass


class RunFailedError(BambooError):
    pass


class BudgetError(RunFailedError):
    """The run was stopped in order at a limit of its job, and can be gone on with."""

    exit_code = 4


class StoppedError(RunFailedError):
    """By `bamboo down`: it did not do all its steps, and nothing is wrong."""

    label = "stopped"


class NotVerifiedError(BambooError):
    pass


class DrillFailedError(BambooError):
    pass
