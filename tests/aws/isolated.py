"""``python -m tests.aws.isolated COMMAND...``: run it where it can make machines and leave nothing behind.

In new network, mount, PID and IPC namespaces: nothing reaches the network or this machine's own metadata service,
and when the command ends, or is killed, every process, mount and interface that it made is gone.
"""

import os
import shutil
import subprocess
import sys

MARK = "BAMBOO_ISOLATED"
REQUIRED = "BAMBOO_REQUIRE_VMS"
"""Set where machines must be possible (CI): not being able to is a failure then, and no reason to skip."""
NEEDED = {
    "ip": "iproute2",
    "nft": "nftables",
    "sshd": "openssh-server",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "sudo": "sudo",
    "curl": "curl",
}
SPACES = ("--net", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc")
SETUP = """set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -m 1777 /run/netns /run/shared
ip link set lo up
set +e
"$@"
exit $?  # not exec: this shell is PID 1, and takes in what loses its parent
"""


def missing() -> str | None:
    """Why there can be no machines here; None: there can."""
    if os.geteuid() != 0:
        return "machines need root (namespaces, mounts)"
    packages = sorted({package for tool, package in NEEDED.items() if _which(tool) is None})
    if packages:
        return f"machines need {', '.join(packages)} (apt-get install {' '.join(packages)})"
    tried = subprocess.run(["unshare", *SPACES, "true"], check=False, capture_output=True, text=True)
    return f"machines need namespaces: {tried.stderr.strip()}" if tried.returncode else None


def _which(tool: str) -> str | None:
    return shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def main(command: list[str]) -> None:
    reason = missing()
    if reason is not None:
        required = bool(os.environ.get(REQUIRED))
        print(f"{'failed' if required else 'skipped'}: {reason}", file=sys.stderr)
        sys.exit(1 if required else 0)
    os.environ[MARK] = "1"
    os.execvp("unshare", ["unshare", *SPACES, "bash", "-c", SETUP, "isolated", *command])


if __name__ == "__main__":
    main(sys.argv[1:])
