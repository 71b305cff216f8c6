"""A directory of shards that somebody else has made."""

import os
import pickle
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from mesh_cases import batch_for, begin_to_save, config_for, trainer_of
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from etude.errors import CheckpointError
from etude.trainer import activations
from etude.trainer.checkpoint import load_latest
from etude.trainer.mesh.described import DESCRIPTION, Shards
from etude.trainer.saving import Saving

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
NAME, TENSORS = "step-00000001.shards-0", {"masters.a": torch.arange(6.0).bfloat16().reshape(2, 3)}


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def saved(tmp_path):
    """The directory, and what a checkpoint's file says of it."""
    dcp.save(dict(TENSORS), storage_writer=dcp.FileSystemWriter(tmp_path / NAME), no_dist=True)
    return tmp_path / NAME, {"name": NAME, "hashes": {path.name: "" for path in (tmp_path / NAME).iterdir()}}


def changed(saved, **fields):
    """The description with other values for some of its fields."""
    path = saved[0] / DESCRIPTION
    path.write_bytes(pickle.dumps(replace(pickle.loads(path.read_bytes()), **fields)))


def read(saved):
    found = {name: torch.zeros_like(each) for name, each in TENSORS.items()}
    shards = Shards(saved[0].parent, saved[1])
    assert shards.tensors().keys() == TENSORS.keys()
    dcp.load(found, storage_reader=shards, no_dist=True)
    return found


def test_what_was_saved_is_read(saved):
    assert torch.equal(read(saved)["masters.a"], TENSORS["masters.a"])


def test_a_description_runs_nothing(saved, tmp_path):
    changed(saved, planner_data=Evil(tmp_path / "ran"))
    with pytest.raises(CheckpointError, match=r"not written by a save of ours.*posix\.mkdir"):
        read(saved)
    assert not (tmp_path / "ran").exists()


def test_an_entry_that_is_no_tensor_is_not_unpickled(saved):
    changed(saved, state_dict_metadata={"masters.a": BytesStorageMetadata()})
    with pytest.raises(CheckpointError, match="BytesStorageMetadata"):
        read(saved)


def test_what_to_do_names_the_checkpoints_file_and_what_is_gone_on_with(saved, tmp_path):
    changed(saved, state_dict_metadata={"masters.a": BytesStorageMetadata()})
    with pytest.raises(CheckpointError, match=f"; remove {tmp_path}/step-00000001.ckpt, and the run begins anew$"):
        read(saved)
    for name in ("step-00000000.ckpt", "step-00000001.ckpt"):
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=f"; remove {tmp_path}/step-00000001.ckpt, and step 0 is gone on with$"):
        read(saved)


def test_every_file_must_have_a_hash_and_lie_there(saved):
    directory, shards = saved
    for lacking in shards["hashes"]:
        rest = {name: each for name, each in shards["hashes"].items() if name != lacking}
        with pytest.raises(CheckpointError, match=f"no hash of '{lacking}'"):
            read((directory, shards | {"hashes": rest}))
    for name in ("../elsewhere", "/etc", "..", "a/b", ""):
        for wrong in ({"name": name}, {"hashes": shards["hashes"] | {name: ""}}):
            with pytest.raises(CheckpointError, match="which is not in it"):
                read((directory, shards | wrong))


@pytest.mark.parametrize("content", [b"", b"\x80\x04", b"nonsense", pickle.dumps({"a": 1})])
def test_a_torn_description_is_an_error_that_names_it(saved, content):
    (saved[0] / DESCRIPTION).write_bytes(content)
    with pytest.raises(CheckpointError, match=DESCRIPTION):
        read(saved)


@pytest.fixture
def alone():
    """A world of one rank, and a trainer in it."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    kept = activations.VOCABULARY_BYTES, activations.BLOCKS_BYTES
    yield lambda optimizer: trainer_of("experts", config_for("experts", optimizer, False, {"fsdp": 1}))
    activations.VOCABULARY_BYTES, activations.BLOCKS_BYTES = kept
    dist.destroy_process_group()


def test_what_another_optimizer_has_saved_is_refused(alone, tmp_path):
    trainer = alone("adamw")
    trainer.step(batch_for("experts"))
    saving = Saving(trainer)
    begin_to_save(saving, tmp_path)
    saving.wait()
    saving.close()
    state = load_latest(tmp_path)["trainer"]
    alone("adamw").load_state_dict(state, tmp_path)
    with pytest.raises(CheckpointError, match=r"which another optimizer keeps: resume with the trainer\.optimizer"):
        alone("muon").load_state_dict(state, tmp_path)
