"""PID 1 of a machine: makes a root file system of its own over this machine's, becomes what user data says, serves SSH.

Runs in new PID, mount, UTS, IPC and network namespaces; its argument is a JSON file, see ``virtual.py``. Stdlib only.
"""

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import site
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

GRACE_S = 2.0
"""Between the TERM and the KILL of a shutdown."""

SSHD_CONFIG = """Port 22
HostKey /etc/ssh/ssh_host_ed25519_key
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
AllowTcpForwarding yes
Subsystem sftp internal-sftp
PidFile none
"""
CLOUD_INIT = """#!/bin/sh
# cloud-init of the double: `status`, and `status --wait`.
state() { cat /run/cloud-init/result 2>/dev/null || echo running; }
[ "$1" = status ] || exit 0
case "$*" in *--wait*) while [ "$(state)" = running ]; do sleep 0.05; done ;; esac
echo "status: $(state)"
case "$(state)" in error) exit 1 ;; degraded) exit 2 ;; esac
"""
SHUTDOWN = """#!/bin/sh
[ "$(id -u)" = 0 ] || { echo "Failed to set wall message: Interactive authentication required." >&2; exit 1; }
kill -TERM 1
"""
HOLD_DPKG_LOCK = """
import ctypes, fcntl, os, sys
held = [open(f"/var/lib/dpkg/{name}", "w") for name in ("lock", "lock-frontend")]
for file in held:
    fcntl.lockf(file, fcntl.LOCK_EX)
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init()
IN_OPEN = 0x20
for file in held:
    if libc.inotify_add_watch(watch, file.name.encode(), IN_OPEN) < 0:
        raise OSError(ctypes.get_errno(), "inotify_add_watch")
os.write(int(sys.argv[1]), b"!")
with open("/run/dpkg-lock-opened", "w", buffering=1) as record:
    while os.read(watch, 4096):
        print("somebody", file=record)
"""
SHARED = "/run/shared"
"""The same files on all machines."""
IMAGE_PACKAGES = Path("/opt/image/packages")
NOT_OF_IMAGE = ("bamboo", "_bamboo", "__", "pip")
IMAGE_HOST_KEY = "ssh_host_ed25519_key"

over = False
woken = -1
"""A pipe with a byte for each signal."""


def main(path: str) -> None:
    told: dict[str, Any] = json.loads(Path(path).read_text())
    global woken
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, _on_term)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    root = _own_root(Path(told["folder"]), told["disk_bytes"], told["shown"])
    os.chroot(root)
    os.chdir("/")
    _name(told["name"])
    _image(Path(told["packages"]), told["shown"])
    for name, text in told["programs"].items():
        _program(Path(name), text)
    for user in told["authorized_keys"]:
        _user(user)
    sshd: subprocess.Popen[bytes] | None = None
    for step in told["order"]:
        if step == "host keys":
            _host_keys(told["host_keys"])
        elif step == "foreign host key":
            _host_keys([])
        elif step == "authorized keys":
            for user, keys in told["authorized_keys"].items():
                _authorize(user, keys)
        elif step == "sshd":
            sshd = _sshd()
        elif step == "wait":
            _wait(Path(told["held"]))
        elif step == "mute":
            _mute()
        elif step == "dpkg lock":
            _hold_dpkg_lock()
        elif step == "commands":
            _become(told)
        elif step == "break":
            sys.exit(1)
        else:
            raise ValueError(step)
    while not over:
        with contextlib.suppress(ChildProcessError):
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if sshd is not None and pid == sshd.pid:
                sys.exit("sshd ended")
            if pid:
                continue
        _until_signal()
    _shut_down()


def _until_signal(seconds: float | None = None) -> None:
    """Or until so many have passed."""
    if select.select([woken], (), (), seconds)[0]:
        os.read(woken, 4096)


def _on_term(number: int, frame: object) -> None:
    global over
    over = True


def _shut_down() -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if not pid:
            _until_signal(max(0.0, deadline - time.monotonic()))
    sys.exit(0)  # and with PID 1 everything ends


def _own_root(folder: Path, disk_bytes: int, shown: list[str]) -> Path:
    """``shown``: folders that an overlay of the root lacks, to be read at the same place."""
    _mount("--make-rprivate", "/")
    _mount("-t", "tmpfs", "-o", f"size={disk_bytes},mode=755", "tmpfs", str(folder))
    for name in ("upper", "work", "root"):
        (folder / name).mkdir()
    root = folder / "root"
    _mount("-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={folder}/upper,workdir={folder}/work", str(root))
    _mount("-t", "proc", "proc", str(root / "proc"))
    _mount("-t", "sysfs", "-o", "ro", "sysfs", str(root / "sys"))
    _mount("--rbind", "/dev", str(root / "dev"))
    for name, mode in (("dev/shm", "1777"), ("run", "755"), ("tmp", "1777")):
        _mount("-t", "tmpfs", "-o", f"mode={mode}", "tmpfs", str(root / name))
    (root / "run/sshd").mkdir()
    (root / "run/cloud-init").mkdir()
    for there in shown:
        (root / there.lstrip("/")).mkdir(parents=True, exist_ok=True)
        _mount("--bind", "-o", "ro", there, str(root / there.lstrip("/")))
    (root / SHARED.lstrip("/")).mkdir(parents=True, exist_ok=True)
    _mount("--bind", SHARED, str(root / SHARED.lstrip("/")))
    return root


def _name(name: str) -> None:
    _run("hostname", name)
    Path("/etc/hostname").write_text(f"{name}\n")
    Path("/etc/hosts").write_text(f"127.0.0.1 localhost {name}\n")
    Path("/etc/resolv.conf").unlink(missing_ok=True)
    Path("/etc/resolv.conf").write_text("")


def _image(packages: Path, shown: list[str]) -> None:
    """As a deep learning image: its Python has torch (but not Bamboo), and everybody may look where it lies."""
    IMAGE_PACKAGES.mkdir(parents=True)
    for package in packages.iterdir():
        if not package.name.lower().startswith(NOT_OF_IMAGE) and package.suffix != ".pth":
            (IMAGE_PACKAGES / package.name).symlink_to(package)
    system = Path(site.getsitepackages()[0])
    system.mkdir(parents=True, exist_ok=True)
    (system / "image.pth").write_text(f"{IMAGE_PACKAGES}\n")
    for folder in (sys.base_prefix, str(packages), *shown):
        for parent in Path(folder).parents:
            with contextlib.suppress(OSError):
                parent.chmod(parent.stat().st_mode | 0o055)
    _program(Path("/usr/local/bin/cloud-init"), CLOUD_INIT)
    for verb in ("shutdown", "poweroff", "halt"):
        _program(Path("/usr/sbin", verb), SHUTDOWN)
    python = Path("/usr/local/bin/python3")
    if python.resolve() != Path(sys.executable).resolve():
        _program(python, f'#!/bin/sh\nexec {sys.executable} "$@"\n')  # a link would not find its library
    for key in Path("/etc/ssh").glob("ssh_host_*"):
        key.unlink()
    sshd_config = Path("/etc/ssh/sshd_config")
    sshd_config.unlink(missing_ok=True)
    sshd_config.write_text(SSHD_CONFIG)
    Path("/var/lib/dpkg").mkdir(parents=True, exist_ok=True)


def _program(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def _user(name: str) -> None:
    passwd = Path("/etc/passwd")
    if not any(line.startswith(f"{name}:") for line in passwd.read_text().splitlines()):
        taken = [int(line.split(":")[2]) for line in passwd.read_text().splitlines()]
        number = max((n for n in taken if 1000 <= n < 60000), default=999) + 1
        with passwd.open("a") as file:
            file.write(f"{name}:x:{number}:{number}::/home/{name}:/bin/bash\n")
        with Path("/etc/group").open("a") as file:
            file.write(f"{name}:x:{number}:\n")
        with Path("/etc/shadow").open("a") as file:
            file.write(f"{name}:*:19000:0:99999:7:::\n")
    home = _home(name)
    home.mkdir(parents=True, exist_ok=True)
    shutil.chown(home, name, name)
    if Path("/etc/sudoers.d").is_dir():
        rule = Path(f"/etc/sudoers.d/90-cloud-init-{name}")
        rule.write_text(f"{name} ALL=(ALL) NOPASSWD:ALL\n")
        rule.chmod(0o440)


def _host_keys(given: list[dict[str, Any]]) -> None:
    for file in given:
        _write(file)
    if not any(file["path"].endswith(IMAGE_HOST_KEY) for file in given):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"/etc/ssh/{IMAGE_HOST_KEY}")


def _authorize(user: str, keys: list[str]) -> None:
    folder = _home(user) / ".ssh"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o700)
    file = folder / "authorized_keys"
    file.write_text("".join(f"{key.strip()}\n" for key in keys))
    file.chmod(0o600)
    for path in (folder, file):
        shutil.chown(path, user, user)


def _sshd() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["/usr/sbin/sshd", "-D", "-e"], start_new_session=True)


def _wait(held: Path) -> None:
    """As long as the test has it locked."""
    with contextlib.suppress(FileNotFoundError), held.open() as file:
        held.with_name(f"{held.name}.met-{os.uname().nodename}").touch()
        fcntl.flock(file, fcntl.LOCK_SH)


def _mute() -> None:
    """In place of sshd: takes connections and never says a word."""
    listen = "import signal, socket; s = socket.create_server(('', 22)); signal.pause()"
    subprocess.Popen([sys.executable, "-c", listen], start_new_session=True)


def _hold_dpkg_lock() -> None:
    """As the image's own updates do after boot. Whoever else looks at a lock is on record, a line each."""
    ready, said = os.pipe()
    subprocess.Popen([sys.executable, "-c", HOLD_DPKG_LOCK, str(said)], start_new_session=True, pass_fds=[said])
    os.close(said)
    os.read(ready, 1)
    os.close(ready)


def _become(told: dict[str, Any]) -> None:
    """The rest of cloud-init, after sshd is up, as on a real machine."""
    result = "done"
    for file in told["files"]:
        _write(file)
    for command in told["commands"]:
        if subprocess.run(["/bin/sh", "-c", command], check=False).returncode:
            result = "error"
    Path("/run/cloud-init/result").write_text(result)


def _write(file: dict[str, Any]) -> None:
    path = Path(file["path"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(file["content"])
    path.chmod(file["mode"])


def _home(user: str) -> Path:
    lines = (line.split(":") for line in Path("/etc/passwd").read_text().splitlines())
    return Path(next(line[5] for line in lines if line[0] == user))


def _mount(*arguments: str) -> None:
    _run("mount", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main(sys.argv[1])
