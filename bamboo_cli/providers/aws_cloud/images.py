"""Which image an instance type boots, and what the type is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bamboo_cli.errors import NotPermittedError, RequestRefusedError
from bamboo_cli.providers.aws_cloud import operations
from bamboo_cli.providers.aws_cloud.calls import Calls

CANONICAL = "099720109477"
_UBUNTU_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}
_UBUNTU, _UBUNTU_NAME = "24.04", "noble"
"""The first whose own Python (3.12) is new enough for ``remote.facts.LEAST_PYTHON``: that of 22.04 is 3.10."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeFacts:
    name: str
    architecture: str
    """``x86_64`` or ``arm64``."""
    num_vcpus: int
    memory_gb: float
    gpu: str | None
    """``4 × NVIDIA A10G, 24 GB``; None: it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    image_id: str
    name: str
    root_device: str
    root_gb: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where to look for an image: the first of those given that has one."""

    image_id: str | None = None
    parameter: str | None = None
    name: str | None = None
    owners: tuple[str, ...] = ("amazon", "self")


def sources_of(image: str, facts: TypeFacts) -> tuple[Source, ...]:
    """``image``: as in the job file. Pure."""
    if image.startswith("ami-"):
        return (Source(image_id=image),)
    if image.startswith("/"):
        return (Source(parameter=image),)
    if image != "auto":
        return (Source(name=image),)
    if facts.gpu is None:
        arch = _UBUNTU_ARCHITECTURES[facts.architecture]
        path = f"/aws/service/canonical/ubuntu/server/{_UBUNTU}/stable/current/{arch}/hvm/ebs-gp3/ami-id"
        name = f"ubuntu/images/hvm-ssd-gp3/ubuntu-{_UBUNTU_NAME}-{_UBUNTU}-{arch}-server-*"
        return Source(parameter=path), Source(name=name, owners=(CANONICAL,))
    channel = f"base-oss-nvidia-driver-gpu-ubuntu-{_UBUNTU}"
    arm = "ARM64 " if facts.architecture == "arm64" else ""
    return (
        Source(parameter=f"/aws/service/deeplearning/ami/{facts.architecture}/{channel}/latest/ami-id"),
        Source(name=f"Deep Learning {arm}Base OSS Nvidia Driver GPU AMI (Ubuntu {_UBUNTU}) *", owners=("amazon",)),
    )


def find_image(calls: Calls, region: str, image: str, facts: TypeFacts) -> Image:
    """Raises RequestRefusedError with all places that were looked at; CloudError."""
    tried = []
    for source in sources_of(image, facts):
        found = _look(calls, region, source)
        if found is not None:
            return found
        tried.append(source.image_id or source.parameter or f"an image named {source.name}")
    raise RequestRefusedError(
        f"{region}: there is no image for {facts.name}: no {', no '.join(tried)}",
        next_step="Set `aws.image` to an image of that region: an id, or a name with *.",
    )


def facts_of(described: Mapping[str, Any]) -> TypeFacts:
    gpus = (described.get("GpuInfo") or {}).get("Gpus", ())
    names = [
        f"{gpu['Count']} × {gpu.get('Manufacturer', '')} {gpu['Name']}, {gpu['MemoryInfo']['SizeInMiB'] / 1024:.0f} GB"
        for gpu in gpus
    ]
    supported = described["ProcessorInfo"]["SupportedArchitectures"]
    return TypeFacts(
        name=described["InstanceType"],
        architecture="arm64" if "arm64" in supported else "x86_64",
        num_vcpus=described["VCpuInfo"]["DefaultVCpus"],
        memory_gb=described["MemoryInfo"]["SizeInMiB"] / 1024,
        gpu=" + ".join(names) or None,
    )


def _look(calls: Calls, region: str, source: Source) -> Image | None:
    image_id = source.image_id
    if source.parameter is not None:
        try:
            answer = calls.call(operations.PARAMETER, region, expected=("ParameterNotFound",), Name=source.parameter)
        except NotPermittedError:
            return None
        if answer is None:
            return None
        image_id = answer["Parameter"]["Value"]
    if image_id is not None:
        question: dict[str, Any] = {"ImageIds": [image_id]}
    else:
        filters = {"name": source.name, "state": "available"}
        question = {
            "Owners": list(source.owners),
            "Filters": [{"Name": key, "Values": [value]} for key, value in filters.items()],
        }
    found = calls.call(
        operations.IMAGES, region, expected=("InvalidAMIID.NotFound", "InvalidAMIID.Unavailable"), **question
    )
    images = sorted((found or {}).get("Images", ()), key=lambda described: described.get("CreationDate", ""))
    return _image(images[-1]) if images else None


def _image(described: Mapping[str, Any]) -> Image:
    root = described.get("RootDeviceName") or "/dev/sda1"
    sizes = [
        mapping["Ebs"].get("VolumeSize", 0)
        for mapping in described.get("BlockDeviceMappings", ())
        if mapping.get("DeviceName") == root and "Ebs" in mapping
    ]
    return Image(
        image_id=described["ImageId"], name=described.get("Name", ""), root_device=root, root_gb=max(sizes, default=0)
    )
