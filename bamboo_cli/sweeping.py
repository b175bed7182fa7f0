"""Ending whatever carries a cluster's tag, and proving it. The cloud's list counts, not ours."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from bamboo_cli import output
from bamboo_cli.errors import CloudError, CredentialsError, LeftBehindError, NotPermittedError, RequestRefusedError
from bamboo_cli.providers.base import InstanceState, Provider

POLL_S = 0.2
TRIES_ON_TROUBLE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    num_ended: int
    trouble: tuple[str, ...]
    """Why something could not be ended."""


def require_credentials(provider: Provider, cluster_id: str, record: str) -> None:
    """Raises CredentialsError when the cloud does not know us: nothing is ended then, and nothing forgotten."""
    try:
        provider.instances(cluster_id)
    except NotPermittedError:
        pass  # what is permitted can still be done, and the rest is listed
    except CredentialsError as error:
        raise CredentialsError(
            f"nothing of cluster {cluster_id} was ended, and it may go on costing money: {error.message}",
            next_step=f"{error.next_step} Then try again; the record of the cluster stays in {record}.",
        ) from error
    except CloudError:
        pass  # it may answer later


def end_instances(provider: Provider, cluster_id: str) -> Swept:
    """Terminate all of them, until the cloud lists nothing alive, or what was refused will not be granted. That one
    region is in trouble keeps nobody from ending what is in the others."""
    parts = provider.parts()
    with output.waiting("the cloud to end the instances") as saw:
        swept = [_end_in(part, cluster_id, saw) for part in parts]
    return Swept(
        num_ended=sum(one.num_ended for one in swept), trouble=tuple(words for one in swept for words in one.trouble)
    )


def _end_in(provider: Provider, cluster_id: str, saw: Callable[[str], None]) -> Swept:
    ended: set[str] = set()
    trouble: list[str] = []
    deadline = time.monotonic() + provider.ends_within_s
    while time.monotonic() < deadline and len(trouble) < TRIES_ON_TROUBLE:
        try:
            alive = [i for i in provider.instances(cluster_id) if i.state is not InstanceState.TERMINATED]
            if not alive:
                return Swept(num_ended=len(ended), trouble=())
            saw(f"{len(alive)} left")
            new = [i for i in alive if i.instance_id not in ended]
            provider.terminate(tuple(instance.instance_id for instance in new or alive))
            ended |= {instance.instance_id for instance in alive}
        except (CredentialsError, RequestRefusedError) as error:
            return Swept(num_ended=len(ended), trouble=(error.message,))
        except CloudError as error:
            trouble.append(error.message)
        time.sleep(max(POLL_S, provider.poll_s / 2))
    return Swept(num_ended=len(ended), trouble=tuple(dict.fromkeys(trouble)))


def prove_nothing_left(provider: Provider, cluster_id: str, trouble: tuple[str, ...] = ()) -> None:
    """End what was made for the instances, and look until nothing is there; it may take what ended a while to go.

    ``trouble``: why something could not be ended before. Raises LeftBehindError with what is still there and why.
    """
    deadline = time.monotonic() + provider.ends_within_s
    with output.waiting("proof that nothing is left") as saw:
        while True:
            refused = _clean(provider, cluster_id)
            left = provider.left_behind(cluster_id)
            if not left:
                return
            if refused or trouble or time.monotonic() > deadline:
                break
            saw(output.plural(len(left), "thing"))
            time.sleep(max(POLL_S, provider.poll_s / 2))
    why = tuple(dict.fromkeys((*trouble, *refused)))
    raise LeftBehindError(
        f"{output.plural(len(left), 'thing')} of cluster {cluster_id} {'is' if len(left) == 1 else 'are'} still there, "
        "or not known to be gone:\n  " + "\n  ".join(left) + "".join(f"\nbecause {reason}" for reason in why),
        next_step="Try `bamboo down` again; if that does not help, end them by hand.",
    )


def _clean(provider: Provider, cluster_id: str) -> tuple[str, ...]:
    """Why it did not work out."""
    try:
        provider.clean(cluster_id)
    except CloudError as error:
        return (error.message,)
    return ()
