import errno
import hashlib
import json
from dataclasses import replace

import pytest
from bamboo_trainer import storage
from bamboo_trainer.control import LayerSaved
from bamboo_trainer.manifest import (
    CheckpointError,
    complete_steps,
    copy_checkpoint,
    layer_file,
    layer_url,
    make_manifest,
    prune,
    read_manifest,
    step_folder,
    weights_digest,
    write_manifest,
)


@pytest.fixture(params=["path", "file", "memory"])
def url(request, tmp_path):
    if request.param == "memory":
        place = f"memory://{tmp_path.name}"
        yield place
        storage.remove(place)
    else:
        yield {"path": str(tmp_path / "run"), "file": (tmp_path / "run").as_uri()}[request.param]


def save_layers(url, step, num_layers=2, content=b"weights"):
    saved = []
    for layer in range(num_layers):
        storage.write_durably(layer_url(url, step, layer), [content, str(layer).encode()])
        saved.append(
            LayerSaved(
                checkpoint_step=step,
                layer=layer,
                name=f"layer{layer}",
                file=layer_file(layer),
                num_bytes=len(content) + 1,
                file_sha256="f" * 64,
                parameters_sha256=str(layer) * 64,
            )
        )
    return saved


def save_checkpoint(url, step, run_id="run-1", digest=False):
    """``digest``: the files' true ones are in the manifest."""
    saved = save_layers(url, step)
    if digest:
        digests = [hashlib.sha256(storage.read(layer_url(url, step, s.layer))).hexdigest() for s in saved]
        saved = [replace(s, file_sha256=found) for s, found in zip(saved, digests, strict=True)]
    manifest = make_manifest(
        run_id=run_id, step=step, seed=7, layers=reversed(saved), created_at="2026-01-01T00:00:00Z"
    )
    write_manifest(url, manifest)
    return manifest


def test_a_copy_is_the_new_runs_own_and_the_source_stays(url):
    written = save_checkpoint(url, 10, digest=True)
    copy = storage.join(url, "of-run-2")

    copy_checkpoint(url, 10, "run-1", copy, "run-2")
    copy_checkpoint(storage.join(url, "gone"), 10, "run-1", copy, "run-2")  # once is enough

    assert read_manifest(copy, 10, "run-2") == replace(written, run_id="run-2")
    assert storage.read(layer_url(copy, 10, 1)) == storage.read(layer_url(url, 10, 1))
    assert read_manifest(url, 10, "run-1") == written


def test_a_damaged_layer_is_not_copied(url):
    save_checkpoint(url, 10)
    copy = storage.join(url, "of-run-2")

    with pytest.raises(CheckpointError, match=r"layer-0000\.safetensors is corrupt"):
        copy_checkpoint(url, 10, "run-1", copy, "run-2")
    assert complete_steps(copy, "run-2") == ()


def test_a_manifest_is_read_as_it_was_written(url):
    written = save_checkpoint(url, 10)
    assert read_manifest(url, 10, "run-1") == written
    assert [saved.layer for saved in written.layers] == [0, 1]


def test_a_checkpoint_without_its_marker_is_invisible(url):
    save_checkpoint(url, 10)
    save_layers(url, 20)
    assert complete_steps(url) == (10,)
    with pytest.raises(CheckpointError, match="missing or incomplete"):
        read_manifest(url, 20)


def test_complete_steps_are_newest_first_and_none_where_nothing_is(url):
    assert complete_steps(url) == ()
    for step in (2, 100, 30):
        save_checkpoint(url, step)
    assert complete_steps(url) == (100, 30, 2)


def test_a_truncated_layer_file_hides_the_checkpoint_and_is_named(url):
    save_checkpoint(url, 10)
    save_checkpoint(url, 20)
    storage.write_durably(layer_url(url, 20, 1), [b"weig"])
    with pytest.raises(CheckpointError, match=r"layer-0001\.safetensors has 4 bytes, not 8"):
        read_manifest(url, 20)
    assert complete_steps(url) == (10,)


def test_a_missing_layer_file_is_named(url):
    save_checkpoint(url, 20)
    storage.remove(layer_url(url, 20, 0))
    with pytest.raises(CheckpointError, match=r"layer-0000\.safetensors is missing"):
        read_manifest(url, 20)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "truncated or foreign"),
        (lambda text: b'{"some": "other file"}', "truncated or foreign"),
        (lambda text: _edit(text, step=11), "foreign: its manifest says step 11"),
        (lambda text: _edit(text, format_version=99), "format 99"),
        (lambda text: _edit(text, num_layers=3), "incomplete"),
        (lambda text: _edit(text, weights_sha256="0" * 64), "corrupt"),
    ],
    ids=["truncated", "foreign", "step", "format", "layers", "digest"],
)
def test_a_bad_manifest_is_refused_with_its_fault(url, change, message):
    save_checkpoint(url, 10)
    place = storage.join(url, step_folder(10), "manifest.json")
    storage.write_durably(place, [change(bytes(storage.read(place)))])
    with pytest.raises(CheckpointError, match=message):
        read_manifest(url, 10)
    assert complete_steps(url) == ()


def _edit(text, **changes):
    return json.dumps(json.loads(text) | changes).encode()


def test_a_checkpoint_of_another_run_is_foreign(url):
    save_checkpoint(url, 10, run_id="run-0")
    with pytest.raises(CheckpointError, match="belongs to run run-0, not to run-1"):
        read_manifest(url, 10, "run-1")
    assert complete_steps(url, "run-1") == ()
    assert complete_steps(url) == (10,)


def test_pruning_keeps_the_newest_and_deletes_older_and_broken_ones(url):
    for step in (10, 20, 30):
        save_checkpoint(url, step)
    save_layers(url, 25)  # never got its marker, and never will
    save_layers(url, 40)  # may be under way

    assert sorted(prune(url, 2)) == [10, 25]

    assert complete_steps(url) == (30, 20)
    assert storage.folders(url) == (step_folder(20), step_folder(30), step_folder(40))


def test_pruning_never_deletes_the_newest_complete_one_nor_other_runs(url):
    save_checkpoint(url, 10, run_id="run-0")
    save_checkpoint(url, 20)
    assert prune(url, 0, "run-1") == ()
    assert prune("memory://nothing-there", 1) == ()
    assert complete_steps(url) == (20, 10)


def test_a_full_disk_leaves_the_older_checkpoint_as_it_was(tmp_path, monkeypatch):
    url = str(tmp_path)
    older = save_checkpoint(url, 10)
    newer = make_manifest(
        run_id="run-1", step=20, seed=7, layers=save_layers(url, 20), created_at="2026-01-01T00:00:00Z"
    )

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device; older checkpoints are untouched"):
        write_manifest(url, newer)

    assert complete_steps(url) == (10,)
    assert read_manifest(url, 10) == older
    assert sorted(p.name for p in (tmp_path / step_folder(20)).iterdir()) == [layer_file(0), layer_file(1)]


def test_a_disk_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path, monkeypatch):
    url = str(tmp_path)
    save_checkpoint(url, 10)

    def broken(place):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(storage, "read", broken)
    with pytest.raises(OSError, match="Input/output error"):
        complete_steps(url)
    with pytest.raises(CheckpointError, match=r"cannot be read: .*Input/output error"):
        read_manifest(url, 10)


def test_the_weights_digest_depends_on_the_order_of_layers():
    assert weights_digest(["a", "b"]) != weights_digest(["b", "a"])
