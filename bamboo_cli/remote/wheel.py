"""Wheels of what runs here, for machines that shall run the same: packed from the import system, installed or editable.

Files have a fixed time and order, so the same code has the same bytes, wherever it was packed.
"""

import base64
import hashlib
import io
import zipfile
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

OURS = "bamboo-train"
OUR_PACKAGES = ("bamboo_cli", "bamboo_agent", "bamboo_trainer", "bamboo_templates")
PIP = "pip"
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The first moment that a zip file can hold."""
WHEEL_TEXT = "Wheel-Version: 1.0\nGenerator: bamboo\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
METADATA_FILES = ("METADATA", "entry_points.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    name: str
    data: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def our_wheel() -> Wheel:
    return _pack(distribution(OURS), OUR_PACKAGES)


def pip_wheel() -> Wheel | None:
    """pip runs right out of its wheel. None: there is none here, and a machine must have its own."""
    try:
        return _pack(distribution(PIP), (PIP,))
    except PackageNotFoundError:
        return None


def _pack(dist: Distribution, packages: tuple[str, ...]) -> Wheel:
    name = f"{dist.metadata['Name'].replace('-', '_')}-{dist.version}"
    files = {
        f"{package}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for package in packages
        for folder in [_folder_of(package)]
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    for file in METADATA_FILES:
        if text := dist.read_text(file):
            files[f"{name}.dist-info/{file}"] = text.encode()
    files[f"{name}.dist-info/WHEEL"] = WHEEL_TEXT.encode()
    record = f"{name}.dist-info/RECORD"
    files[record] = "".join(f"{path},{_digest(data)},{len(data)}\n" for path, data in files.items()).encode() + (
        f"{record},,\n".encode()
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path, EPOCH), data, zipfile.ZIP_DEFLATED)
    return Wheel(name=f"{name}-py3-none-any.whl", data=packed.getvalue())


def _folder_of(package: str) -> Path:
    """Nothing of it is run."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise PackageNotFoundError(package)
    return Path(next(iter(spec.submodule_search_locations)))


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
