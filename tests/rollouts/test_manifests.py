"""`etude cluster manifest`: what is in a manifest and what is not, what Ray itself reads there, and what is refused."""

import json
import os
import subprocess
from importlib import metadata
from pathlib import Path

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

from etude.cli.cluster import FORMS
from etude.cli.main import main
from etude.config import load_recipe
from etude.errors import ConfigError, DeadlineExceeded
from etude.rollouts.machines import kuberay, skypilot
from etude.rollouts.machines.manifest import planned
from etude.rollouts.machines.nodes_config import NodesConfig
from etude.rollouts.machines.table import wait_for

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes/machines.toml"
NODES = """
image = "registry.example.com/etude:0.1.0"
shared = "/shared"
volume = "etude"
env = { HF_HOME = "/shared/hf" }
secrets = { AWS_SECRET_ACCESS_KEY = "store/secret" }

[[groups]]
name = "head"
cpus = 8
memory_gb = 64
resources = { head = 4 }
privileged = true

[[groups]]
name = "sessions"
count = 2
cpus = 8
memory_gb = 64
resources = { sessions = 1, half = 0.5 }
privileged = true
node_selector = { pool = "sandboxes" }
"""
OF_GPUS = "machines.places={trainer={GPU=1}, engine={head=1}, sessions={sessions=1}, rewards={CPU=1}}"


@pytest.fixture
def nodes(tmp_path):
    path = tmp_path / "nodes.toml"
    path.write_text(NODES)
    return path


def run_of(nodes, *sets, recipe=RECIPE, **changed):
    return planned(recipe, sets, load_recipe(nodes, NodesConfig, [f"{key}={value}" for key, value in changed.items()]))


@pytest.mark.parametrize("form", FORMS)
def test_the_command_writes_yaml_that_is_its_json(nodes, capsys, monkeypatch, form):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-value-that-is-secret")
    words = ["cluster", "manifest", str(RECIPE), str(nodes), "--form", form, "--set", "seed=7"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    as_json = json.loads(capsys.readouterr().out)
    assert list(yaml.safe_load_all(text)) == as_json["documents"] and as_json["form"] == form
    assert "a-value-that-is-secret" not in text and "AWS_SECRET_ACCESS_KEY" in text
    assert 'name = "machines"\n' in text and "--set seed=7 " in text and "/shared/runs/machines-7/recipe.json" in text


def test_kuberay_has_a_pod_for_each_node_with_rays_own_version_and_secrets_by_name(nodes):
    config_map, job = kuberay.documents_of(run_of(nodes))
    assert config_map["data"]["recipe.toml"] == RECIPE.read_text()
    spec = job["spec"]["rayClusterSpec"]
    assert spec["rayVersion"] == metadata.version("ray") and spec["authOptions"] == {"mode": "token"}
    (workers,) = spec["workerGroupSpecs"]
    assert (workers["replicas"], workers["minReplicas"], workers["maxReplicas"]) == (2, 2, 2)
    for group in (spec["headGroupSpec"], workers):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        env = {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}
        assert env["AWS_SECRET_ACCESS_KEY"] == {"secretKeyRef": {"name": "store", "key": "secret"}}
        assert env["HF_HOME"] == "/shared/hf" and not [name for name in env if name.startswith("RAY_AUTH")]
        assert {"name": "shared", "mountPath": "/shared"} in container["volumeMounts"]
        assert {"name": "shared", "persistentVolumeClaim": {"claimName": "etude"}} in pod["volumes"]
        assert container["securityContext"] == {"privileged": True}
    assert workers["template"]["spec"]["nodeSelector"] == {"pool": "sandboxes"}


def test_rays_own_reader_of_kuberay_finds_what_the_groups_offer(nodes):
    _, job = kuberay.documents_of(
        run_of(
            nodes,
            groups='[{name="head", cpus=8, memory_gb=64, gpus=2, resources={head=4},'
            'privileged=true}, {name="sessions", count=2, cpus=8, memory_gb=64, resources={sessions=1}, '
            "privileged=true}]",
        )
    )
    cluster = {"metadata": {"name": "machines", "namespace": "default"}, "spec": job["spec"]["rayClusterSpec"]}
    read = _derive_autoscaling_config_from_ray_cr(cluster)["available_node_types"]
    each = {"CPU": 8, "memory": 64 << 30}
    assert {name: (group["min_workers"], group["max_workers"], group["resources"]) for name, group in read.items()} == {
        "headgroup": (0, 0, {**each, "GPU": 2, "head": 4}), "sessions": (2, 2, {**each, "sessions": 1}),
    }  # fmt: skip


def test_what_kuberay_itself_requires_of_a_rayjob(nodes, tmp_path):
    """Its published schema, with nothing unknown: in a clone of KubeRay that ETUDE_KUBERAY names."""
    if "ETUDE_KUBERAY" not in os.environ:
        pytest.skip("set ETUDE_KUBERAY to a clone of KubeRay, whose schemas no registry has")
    path = Path(os.environ["ETUDE_KUBERAY"]) / "ray-operator/config/crd/bases/ray.io_rayjobs.yaml"
    (version,) = (each for each in yaml.safe_load(path.read_text())["spec"]["versions"] if each["name"] == "v1")
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    _, job = kuberay.documents_of(run_of(nodes))
    jsonschema.validate(job, schema)
    for wrong in ({"backoffLimit": "3"}, {"entryPoint": "x"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(job | {"spec": job["spec"] | wrong}, schema)


def strict(schema):
    """As the API server takes it: no field that is not in it, and a quantity may be a number."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if "properties" in found and not found.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    if found.get("x-kubernetes-int-or-string") is True:
        found.pop("type", None)
    return found


def test_skypilot_has_one_task_of_nodes_that_are_alike(nodes):
    (task,) = skypilot.documents_of(run_of(nodes))
    assert task["num_nodes"] == 3 and task["volumes"] == {"/shared": "etude"}
    assert task["resources"] == {
        "image_id": "docker:registry.example.com/etude:0.1.0", "cpus": "8+", "memory": "64+"
    }  # fmt: skip
    assert task["secrets"] == {"ETUDE_RAY_TOKEN": None, "AWS_SECRET_ACCESS_KEY": None}
    assert subprocess.run(["bash", "-n", "-c", task["run"]], capture_output=True, check=True).stderr == b""
    assert task["config"]["docker"] == {"run_options": ["--privileged"]}


GROUP = '{name="head", cpus=8, memory_gb=64, resources={head=4}, privileged=true}'
SESSIONS = '{name="sessions", count=2, cpus=8, memory_gb=64, resources={sessions=1}, privileged=true}'


def groups(*of):
    return f"groups=[{', '.join(of)}]"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (groups(GROUP, GROUP), "head is there twice"),
        (groups(SESSIONS), "sessions is the first and so the head, of which there is one; set count = 1"),
        (groups(GROUP.replace("head=4", "CPU=4")), "CPU is Ray's own name; give cpus"),
        ("shared=shared", "must be an absolute path below /"),
        ("env={RAY_AUTH_MODE='disabled'}", "is set by Etude"),
        ("env={HF_TOKEN='x'}", "HF_TOKEN names a secret, and what is in env is in the manifest; put it in secrets"),
        ("env={WANDB_KEY='x'}", "WANDB_KEY names a secret"),
        ("env={HTTP_AUTHORIZATION='x'}", "HTTP_AUTHORIZATION names a secret"),
        ("env={SLACK_WEBHOOK='x'}", "SLACK_WEBHOOK names a secret"),
        ("env={DATABASE_URL='postgres://u:abc@db/x'}", "DATABASE_URL holds a URL with a user's name"),
        ("secrets={HF_TOKEN='hf_abc'}", "secrets.HF_TOKEN: give SECRET/KEY, a Secret of Kubernetes"),
        (groups(GROUP.replace("head=4", "head=inf")), r"groups\.0\.resources\.head: Input should be"),
        (groups(GROUP, SESSIONS.replace("count=2", "count=30000000")), r"groups\.1\.count: Input should be less"),
    ],
)
def test_a_file_of_nodes_that_cannot_be_meant_is_refused(nodes, override, said):
    with pytest.raises(ConfigError, match=said):
        load_recipe(nodes, NodesConfig, [override])


@pytest.mark.parametrize(
    ("sets", "of_nodes", "said"),
    [
        (
            [OF_GPUS],
            [],
            "machines.places.trainer: no machine has GPU 1; of that they have: GPU 0. Ask for less, or give",
        ),
        (["rollouts.workers=3"], [], r"3 of sessions.* ask for sessions 3 in all, and the groups have sessions 2; ask"),
        (
            [],
            [groups(GROUP.replace("true", "false"), SESSIONS)],
            "groups.head: rewards can be placed there, and need a",
        ),
        (["name=My_Run"], [], "'My_Run-0' .* cannot be the name of a cluster"),
        (["model.path=models/mine"], [], "model.path: models/mine is relative to this directory, which no node has"),
        (
            ["store='s3://bucket/runs'", "weight_store.options={secret_access_key='x'}"],
            [],
            "weight_store.options.secret_access_key: .* put it in secrets",
        ),
        (["store='s3://KEY:hidden@bucket/runs'"], [], "^store: holds a URL with a user's name"),
        (["engine={kind='vllm', urls=['http://u:hidden@gpu:8000'], weights_dir='/shared/w'}"], [], "^engine.urls: hol"),
        (["control.enabled=true"], [], "control.enabled"),
        (["trainer.ranks={ep=3}"], [], "trainer.ranks: ep = 3 does not divide the model's 8 experts"),
    ],
)
def test_a_run_that_could_not_be_there_is_refused_in_one_sentence(nodes, sets, of_nodes, said):
    with pytest.raises(ConfigError, match=said) as error:
        planned(RECIPE, sets, load_recipe(nodes, NodesConfig, of_nodes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("trainer.ranks=0", "--set trainer.ranks: "),
        ("name=A b", "'A b-0' (name and seed) cannot"),
        ("sed=1", "unknown"),
    ],
)
def test_the_command_says_what_is_wrong_with_the_recipe(nodes, capsys, override, said):
    assert main(["cluster", "manifest", str(RECIPE), str(nodes), "--form", "kuberay", "--set", override]) == 42
    assert said in capsys.readouterr().err


def test_files_in_the_wrong_order_are_known_by_what_they_are(nodes, capsys):
    assert main(["cluster", "manifest", str(nodes), str(RECIPE), "--form", "kuberay"]) == 42
    assert f"{nodes}: this is a file for `etude cluster manifest`" in capsys.readouterr().err
    assert main(["cluster", "manifest", str(RECIPE), str(RECIPE), "--form", "kuberay"]) == 42
    said = capsys.readouterr().err
    assert f"{RECIPE}: this is a file for `etude train`" in said and "unknown key" not in said
    assert main(["cluster", "up", str(RECIPE)]) == 42
    assert f"{RECIPE}: this is a file for `etude train`" in capsys.readouterr().err


def test_a_secret_in_the_recipe_itself_is_refused(nodes, tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        "store = 's3://bucket/runs'\n" + RECIPE.read_text() + "\n[weight_store.options]\nsecret_access_key = 'hidden'\n"
    )
    with pytest.raises(ConfigError, match=r"^weight_store.options.secret_access_key: names a secret") as error:
        planned(recipe, [], load_recipe(nodes, NodesConfig))
    assert "hidden" not in str(error.value)


def test_a_url_with_a_password_in_a_comment_is_refused_by_its_line(nodes, tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("# mind git@host and a@b\n# it was s3://u:hidden@bucket/x\n" + RECIPE.read_text())
    with pytest.raises(ConfigError, match=r"^line 2 of the recipe: holds a URL with a user's name") as error:
        planned(recipe, [], load_recipe(nodes, NodesConfig))
    assert "hidden" not in str(error.value)


@pytest.mark.parametrize("end", ["\u2028", "\u0085"])
def test_a_recipes_text_is_the_same_on_the_nodes(nodes, tmp_path, end):
    """Also where Unicode knows more ends of lines than TOML and a shell do."""
    text = RECIPE.read_text().replace("seed = 0", f"seed = 0 # note{end}[faults]")
    assert text != RECIPE.read_text()
    (recipe := tmp_path / "recipe.toml").write_text(text)
    run = run_of(nodes, recipe=recipe)
    (task,) = skypilot.documents_of(run)
    assert f"<<'END-OF-RECIPE'\n{text}END-OF-RECIPE\n" in task["run"]
    assert kuberay.documents_of(run)[0]["data"]["recipe.toml"] == text


def test_amounts_are_written_with_all_their_digits(nodes):
    many = groups(GROUP, SESSIONS.replace("sessions=1", "sessions=1234567, half=0.12345678, all=2.5e7"))
    found = kuberay.documents_of(planned(RECIPE, [], load_recipe(nodes, NodesConfig, [many])))[1]
    (workers,) = found["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert workers["resources"] == {"sessions": "1234567", "half": "0.12345678", "all": "25000000"}


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (
            (GROUP, SESSIONS.replace("cpus=8", "cpus=16")),
            "head has cpus = 8, and sessions 16; SkyPilot's nodes are all al",
        ),
        (
            (GROUP.replace("memory", "gpus=1, memory"), SESSIONS.replace("memory", "gpus=1, memory")),
            'accelerator = "H100"',
        ),
    ],
)
def test_nodes_that_skypilot_does_not_have_are_refused(nodes, of, said):
    with pytest.raises(ConfigError, match=said):
        skypilot.documents_of(planned(RECIPE, [], load_recipe(nodes, NodesConfig, [groups(*of)])))


WIDE = """{"architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936, "hidden_size": 4096, "num_hidden_layers": 36,
"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "rms_norm_eps": 1e-06,
"rope_theta": 1000000, "max_position_embeddings": 40960, "tie_word_embeddings": false}"""
"""8.2 billion parameters, of which a rank has half: masters, moments, a checkpoint, five versions."""


def test_ranks_that_the_memory_of_a_node_does_not_hold_are_refused(nodes, tmp_path):
    (tmp_path / "wide").mkdir()
    (tmp_path / "wide/config.json").write_text(WIDE)
    sets = (f"model.path={tmp_path}/wide", "trainer.ranks={fsdp=2}", "trainer.parity_tokens=0")
    with pytest.raises(
        ConfigError, match=r"groups.head: 2 ranks .* keep up to [23]\d\d GiB .* memory_gb = 64: raise that"
    ):
        run_of(nodes, *sets)
    large = groups(GROUP.replace("64", "400"), SESSIONS)
    assert planned(RECIPE, sets, load_recipe(nodes, NodesConfig, [large]))


def test_gpus_that_would_have_nothing_to_do_are_told_of(nodes, capsys):
    command = ["cluster", "manifest", str(RECIPE), "--form", "kuberay"]
    assert main([*command[:3], str(nodes), *command[3:]]) == 0
    assert capsys.readouterr().err == ""
    nodes.write_text(NODES.replace('name = "head"', 'name = "head"\ngpus = 8'))
    command.insert(3, str(nodes))
    assert main(command) == 0
    assert "groups.head: no part of the run asks for their GPUs (machines.places)" in capsys.readouterr().err
    assert main([*command, "--set", OF_GPUS, "--set", "trainer.ranks={ep=2}"]) == 0
    said = capsys.readouterr().err
    assert "the ranks of a mesh compute on CPUs today" in said and "no part of the run" not in said
    assert main([*command, "--set", OF_GPUS]) == 0
    assert capsys.readouterr().err == "", "a trainer that is no mesh computes on a GPU"


@pytest.mark.parametrize(("code", "ends"), [(42, 0), (0, 0), (1, 1), (143, 143)])
def test_a_run_that_is_refused_is_not_tried_on_another_cluster(nodes, tmp_path, code, ends):
    """KubeRay makes one for every end but 0."""
    script = kuberay.documents_of(run_of(nodes))[0]["data"]["run.sh"]
    (etude := tmp_path / "etude").write_text(f'#!/bin/sh\n[ "$1" = train ] && exit {code}\nexit 0\n')
    etude.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", script], env=path, capture_output=True, text=True, check=False)
    assert done.returncode == ends
    assert ("the run was refused" in done.stderr) == (code == 42)


def test_the_wait_for_machines_names_what_it_waits_for():
    with pytest.raises(DeadlineExceeded, match=r"3 machines to join the Ray at 127.0.0.1:9.*nothing listens there"):
        wait_for("127.0.0.1:9", 3, 0.2)
