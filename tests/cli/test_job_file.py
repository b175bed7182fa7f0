"""Reading a job file: what is accepted, and what each mistake is told."""

import time
from pathlib import Path

import pytest
from bamboo_trainer.plan import Mode

from bamboo_cli import jobs
from bamboo_cli.config import PATTERN_WORDS, JobConfig
from bamboo_cli.errors import JobFileError, UsageError
from bamboo_cli.job_file import load_job
from bamboo_cli.jobs import run_spec
from bamboo_cli.market import assumed_market
from bamboo_cli.paths import NAME_PATTERN, cluster_dir, name_like
from bamboo_cli.preview import preview

MINIMAL = "name: tiny\nsteps: 10\nglobal_batch_size: 8\nmicrobatch_size: 2\n"


def load(folder: Path, text: str, *settings: str, environment: dict[str, str] | None = None) -> JobConfig:
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return load_job(path, settings, environment or {})


def refusal(folder: Path, text: str, *settings: str, environment: dict[str, str] | None = None) -> list[str]:
    """The lines of the message, without the folder."""
    with pytest.raises(JobFileError) as caught:
        load(folder, text, *settings, environment=environment)
    assert caught.value.exit_code == 2
    return caught.value.message.replace(f"{folder}/", "").splitlines()


def test_four_lines_make_a_job(tmp_path: Path) -> None:
    job = load(tmp_path, MINIMAL)

    assert (job.recipe, job.num_microbatches, job.num_nodes, job.redundancy) == ("gpt2", 4, 2, Mode.BUBBLE)


def test_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    environment = {"BAMBOO_SEED": "5", "BAMBOO_LEASE_S": "2", "BAMBOO_CHECKPOINT__EVERY": "7", "BAMBOO_HOME": "/x"}

    job = load(tmp_path, MINIMAL + "seed: 1\nlease_s: 9\n", "seed=8", "local.replace=false", environment=environment)

    assert (job.seed, job.lease_s, job.checkpoint.every, job.checkpoint.keep) == (8, 2.0, 7, 2)
    assert job.local.replace is False


def test_off_is_a_word_and_exponents_are_numbers(tmp_path: Path) -> None:
    job = load(tmp_path, MINIMAL.replace("steps: 10", "steps: 1e3") + "redundancy: off\nlease_s: 5e-1\n")

    assert (job.redundancy, job.steps, job.lease_s) == (Mode.OFF, 1000, 0.5)


def test_numbers_are_what_people_take_them_for(tmp_path: Path) -> None:
    job = load(tmp_path, MINIMAL + "seed: 010\nmax_cost_usd: 1_500\ncheckpoint: {every: 0x10}\n", "max_hours=007.5")

    assert (job.seed, job.max_cost_usd, job.checkpoint.every, job.max_hours) == (10, 1500.0, 16, 7.5)


@pytest.mark.parametrize("key", ["max_hours", "max_cost_usd", "seed"])
def test_hours_and_minutes_are_not_taken_for_sixty_times_as_many(tmp_path: Path, key: str) -> None:
    assert "but is '1:30'" in refusal(tmp_path, f"{MINIMAL}{key}: 1:30\n")[0]
    assert "but is '1:30'" in refusal(tmp_path, MINIMAL, f"{key}=1:30")[0]


@pytest.mark.parametrize("deadline", ["0001-01-01T00:00", "9999-12-31T23:59"])
@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_a_deadline_that_no_clock_can_tell_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline: str, zone: str
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        found = load(tmp_path, MINIMAL, f"deadline={deadline}").deadline
        assert found is not None and found.timestamp()
    except JobFileError as refused:
        assert "no moment that this machine's clock can tell" in refused.message
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_recipe_file_is_found_beside_the_job_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")

    assert load(tmp_path, MINIMAL + "recipe: mine.py:build\n").recipe == f"{tmp_path}/mine.py:build"


def test_a_folder_for_checkpoints_is_one_and_the_same_for_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coordinator and workers each run in a folder of their own."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def url(said: str, *settings: str) -> str | None:
        return load(tmp_path, f"{MINIMAL}checkpoint: {{url: '{said}'}}\n", *settings).checkpoint.url

    assert url("saved/runs") == f"{tmp_path}/saved/runs"
    assert url("saved", "checkpoint.url=mine") == f"{tmp_path}/here/mine"
    assert [url(said) for said in ("/saved", "file:///saved", "memory://x")] == [
        "/saved",
        "file:///saved",
        "memory://x",
    ]


def test_a_trace_is_found_beside_the_job_file_and_read_before_anything_is_rented(tmp_path: Path) -> None:
    text = MINIMAL + "local:\n  trace: {path: spot.csv, speed: 30}\n"
    assert refusal(tmp_path, text) == [
        "job.yaml:6: local.trace.path: the trace spot.csv cannot be read: "
        "[Errno 2] No such file or directory: 'spot.csv'"
    ]
    (tmp_path / "spot.csv").write_text("0,add,a\n0,lose,b\n")
    assert refusal(tmp_path, text) == [
        "job.yaml:6: local.trace.path: the trace spot.csv: line 2: 'lose' is neither `add` nor `remove`"
    ]
    (tmp_path / "spot.csv").write_text("0,add,a\n")
    trace = load(tmp_path, text).local.trace
    assert trace is not None and trace.path == f"{tmp_path}/spot.csv"


def test_a_replay_that_is_faster_than_life_makes_the_fleet_as_much_less_patient(tmp_path: Path) -> None:
    (tmp_path / "spot.csv").write_text("0,add,a\n")
    usual = jobs.cluster_config(load(tmp_path, MINIMAL), "c-1")
    fast = jobs.cluster_config(load(tmp_path, MINIMAL + "local:\n  trace: {path: spot.csv, speed: 30}\n"), "c-1")
    slow = jobs.cluster_config(load(tmp_path, MINIMAL + "local:\n  trace: {path: spot.csv, speed: 0.5}\n"), "c-1")
    assert (usual.patience_s, usual.max_back_off_s) == (60.0, 60.0)
    assert (fast.patience_s, fast.max_back_off_s) == (2.0, 2.0)
    assert slow == usual


@pytest.mark.parametrize(
    ("added", "told"),
    [
        ("stagse: 3", "job.yaml:5: stagse: there is no such key; did you mean `stages`?"),
        ("checkpoint:\n  evry: 5", "job.yaml:6: checkpoint.evry: there is no such key; did you mean `every`?"),
        ("notice_s: 5", "job.yaml:5: notice_s: there is no such key here; did you mean `local.notice_s`?"),
        (
            "stages: three",
            "job.yaml:5: stages: should be a whole number, but is 'three'; or should be 'auto', but is 'three'",
        ),
        ("lease_s: 0", "job.yaml:5: lease_s: should be greater than 0, but is 0"),
        (
            "redundancy: sometimes",
            "job.yaml:5: redundancy: should be 'off', 'mirror', 'reroute', 'lazy', 'bubble', 'eager' or 'full', "
            "but is 'sometimes'; or should be 'auto', but is 'sometimes'",
        ),
        (
            "checkpoint:\n  every: often",
            "job.yaml:6: checkpoint.every: should be a whole number, but is 'often'; "
            "or should be 'auto', but is 'often'",
        ),
        (
            "checkpoint: {url: 's3:/bucket/x'}",
            "job.yaml:5: checkpoint.url: s3:/bucket/x is no URL; did you mean s3://bucket/x?",
        ),
        ("max_cost_usd: true", "job.yaml:5: max_cost_usd: cannot be true"),
        ("local: {notice_s: false}", "job.yaml:5: local.notice_s: cannot be false"),
        ("steps: 5", "job.yaml:5: steps: already said on line 2"),
        ("local:\n  replace: yes", "job.yaml:6: local.replace: should be true or false, but is 'yes'"),
        (
            "local:\n  zones:\n    - {name: A}",
            "job.yaml:7: local.zones[0].name: 'A' cannot be used here: "
            "use small letters, digits and dashes, with no dash first",
        ),
        (
            "pipelines: 3\nnodes: 2\nlocal: {accelerators: 2}",
            "job.yaml:6: nodes: 2 nodes with 2 accelerators cannot host 3 pipelines of 2 stages; "
            "take 3 or more, or leave the key out",
        ),
        (
            "nodes: 1",
            "job.yaml:5: nodes: 1 nodes cannot host 1 pipelines of 2 stages; take 2 or more, or leave the key out",
        ),
        (
            "redundancy: reroute",
            "job.yaml:5: redundancy: `reroute` takes over from another pipeline: take 2 or more pipelines",
        ),
        (
            "redundancy_level: 2",
            "job.yaml:5: redundancy_level: a stage can have 1 shadows in a pipeline of 2 stages; "
            "take 3 or more stages, or a lower level",
        ),
        ("min_nodes: 3", "job.yaml:5: min_nodes: 3 is more than the 2 nodes of the job"),
        (
            "pipelines: 5",
            "job.yaml:5: pipelines: 4 microbatches a step cannot feed 5 pipelines; "
            "take at most 4 pipelines, or a smaller microbatch_size",
        ),
        (
            "local:\n  zones:\n    - {name: a, capacity: 1}",
            "job.yaml:6: local.zones: room for 1 instances, but the job wants 2 nodes",
        ),
        (
            "local:\n  zones:\n    - {name: a}\n    - {name: a}",
            "job.yaml:6: local.zones: zone a is there twice; give every zone a name of its own",
        ),
        ("recipe: gtp2", "job.yaml:5: recipe: there is no recipe 'gtp2'; did you mean `gpt2`?"),
        ("drill:\n  - {step: 1}", "job.yaml:6: drill[0]: name the victim by either `node` or `stage`"),
        (
            "drill:\n  - {step: 1, node: n1}\n  - {step: 10, stage: 0}",
            "job.yaml:7: drill[1].step: step 10 never comes: the job's steps are 0 to 9",
        ),
        (
            "drill:\n  - {step: 1, stage: 0, action: F0}",
            "job.yaml:6: drill[0]: `F0` is not an action; write `1F0`, `1B2`, `1FRC0` "
            "or one of REDUCE, COMMIT, OPTIMIZER, CHECKPOINT, TAKEOVER",
        ),
        (
            "drill:\n  - {step: 1, stage: 0, action: 1B4}",
            "job.yaml:6: drill[0].action: 1B4: there are only the microbatches 0 to 3",
        ),
        (
            "pipelines: 2\ndrill:\n  - {step: 1, stage: 1, pipeline: 1, action: 1B1}",
            "job.yaml:7: drill[0].action: 1B1: pipeline 1 never has microbatch 1; it has 2 to 3, "
            "since they are counted over all pipelines",
        ),
        (
            "redundancy: mirror\ndrill:\n  - {step: 1, stage: 0, action: 1F0}",
            "job.yaml:7: drill[0].action: 1F0: the host of stage 0 never runs stage 1 with `redundancy: mirror`; "
            "take `stage: 1`",
        ),
        (
            "redundancy: lazy\ndrill:\n  - {step: 1, stage: 0, action: 1FRC0}",
            "job.yaml:7: drill[0].action: 1FRC0: nobody computes FRC with `redundancy: lazy` and `stages: 2`",
        ),
        (
            "drill:\n  - {step: 1, stage: 0, action: 0FRC0}",
            "job.yaml:6: drill[0].action: 0FRC0: the host of a stage never computes its FRC, its shadow does; "
            "take `stage: 1`",
        ),
        (
            "redundancy: 'off'\ndrill:\n  - {step: 1, stage: 0, action: TAKEOVER}",
            "job.yaml:7: drill[0].action: TAKEOVER: nobody takes a stage over with `redundancy: off`",
        ),
        (
            "checkpoint: {every: 4}\ndrill:\n  - {step: 4, stage: 0, action: CHECKPOINT}",
            "job.yaml:7: drill[0].action: CHECKPOINT: step 4 is not saved with `checkpoint.every: 4`; "
            "the next that is saved is step 7",
        ),
        (
            "local: {replace: false}\ndrill:\n  - {step: 1, node: n3}",
            "job.yaml:7: drill[0].node: there are only the nodes n1 to n2, since none is replaced (`local.replace`)",
        ),
        ("drill:\n  - {step: 1, stage: 2}", "job.yaml:6: drill[0].stage: there are only the stages 0 to 1"),
        (
            "drill:\n  - {step: 1, stage: 0, how: freeze}",
            "job.yaml:6: drill[0]: `how: freeze` needs an `action` to strike at",
        ),
        (
            "drill:\n  - {step: 1, stage: 0, action: REDUCE, notice: true}",
            "job.yaml:6: drill[0]: a loss at an `action` comes without notice; leave `notice` out",
        ),
    ],
)
def test_each_mistake_is_told_with_file_line_and_key(tmp_path: Path, added: str, told: str) -> None:
    assert refusal(tmp_path, MINIMAL + added + "\n") == [told]


def test_a_batch_that_does_not_divide_is_told_with_the_nearest_that_do(tmp_path: Path) -> None:
    told = refusal(tmp_path, MINIMAL.replace("global_batch_size: 8", "global_batch_size: 9"))

    assert told == [
        "job.yaml:3: global_batch_size: 9 samples cannot be cut into microbatches of 2; "
        "take 8 or 10, or another microbatch_size"
    ]


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    told = refusal(tmp_path, "name: Tiny\nsteps: 0\nglobal_batch_size: 8\n")

    assert told == [
        "job.yaml:1: name: 'Tiny' cannot be a name: use at most 40 small letters, digits and dashes, "
        "with a letter first; for example `tiny`",
        "job.yaml:2: steps: should be greater than or equal to 1, but is 0",
        "job.yaml: microbatch_size: is missing; every job needs it",
    ]


def test_a_mistake_in_a_flag_or_variable_is_told_by_its_name(tmp_path: Path) -> None:
    assert refusal(tmp_path, MINIMAL, "stages=0") == [
        "--set stages: stages: should be greater than or equal to 1, but is 0; or should be 'auto', but is 0"
    ]
    assert refusal(tmp_path, MINIMAL, environment={"BAMBOO_SEED": "x"}) == [
        "environment BAMBOO_SEED: seed: should be a whole number, but is 'x'"
    ]


def test_an_impossible_date_in_a_flag_is_told_by_its_name(tmp_path: Path) -> None:
    assert refusal(tmp_path, MINIMAL, "deadline=2026-13-45")[0].startswith("--set deadline: deadline: should be")


def test_a_setting_without_a_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="write it as key=value"):
        load(tmp_path, MINIMAL, "stages")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [1\n", "this is not YAML"),
        ("- 1\n", "this is a list (lines that begin with a dash), but a job file consists of `key: value` lines"),
        ("train\n", "this is a single value, but a job file consists of `key: value` lines"),
        ("", "name: is missing; every job needs it"),
    ],
)
def test_what_is_no_job_file_is_refused(tmp_path: Path, text: str, told: str) -> None:
    assert told in refusal(tmp_path, text)[0]


def test_a_folder_is_refused_with_the_job_file_in_it(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match="is a folder, not a job file") as without:
        load_job(tmp_path)
    assert without.value.next_step == "Give the path of a job file."

    (tmp_path / "job.yaml").touch()
    with pytest.raises(JobFileError) as within:
        load_job(tmp_path)
    assert within.value.next_step == f"Give the file in it: {tmp_path}/job.yaml"


@pytest.mark.parametrize(
    ("text", "name"),
    [("My Job", "my-job"), ("2nd_try (new)", "nd-try-new"), ("ok-1", "ok-1"), ("...", "my-job"), ("a" * 50, "a" * 40)],
)
def test_the_nearest_name(text: str, name: str) -> None:
    assert name_like(text) == name
    assert cluster_dir(name).name == name


def test_every_pattern_of_a_job_file_is_explained_in_words() -> None:
    patterns = set[str]()

    def look(schema: object) -> None:
        if isinstance(schema, dict) and "pattern" in schema:
            patterns.add(schema["pattern"])
        for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
            look(inner)

    look(JobConfig.model_json_schema())
    assert patterns == {NAME_PATTERN, *PATTERN_WORDS}


def test_a_file_that_is_not_there_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match="there is no such file") as caught:
        load_job(tmp_path / "job.yaml", (), {})

    assert "bamboo init" in caught.value.next_step


@pytest.mark.parametrize(
    ("added", "told"),
    [
        ("recipe_options: {? [a, b] : c}", "job.yaml:5: a key has to be a word, not a list or a section"),
        ("recipe_options: &a {x: *a}", "job.yaml: is nested too deeply"),
        ("recipe_options: " + "{a: " * 3000 + "1" + "}" * 3000, "job.yaml: is nested too deeply"),
        ("recipe_options: {when: 2026-13-45}", "job.yaml: a value cannot be read: month must be in 1..12"),
        ("seed: 99999999999999999999", f"job.yaml:5: seed: should be less than or equal to {2**63 - 1}, but is 9999"),
    ],
    ids=["a list as a key", "an alias of itself", "deep nesting", "an impossible date", "a number out of range"],
)
def test_rubbish_is_refused_and_no_bug(tmp_path: Path, added: str, told: str) -> None:
    assert refusal(tmp_path, f"{MINIMAL}{added}\n")[0].startswith(told)


@pytest.mark.parametrize("name", ["../../x", "a/b", "", "..", "ü"])
def test_a_cluster_cannot_be_named_out_of_its_folder(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a cluster"):
        cluster_dir(name)


@pytest.mark.parametrize(
    "added",
    [
        "drill:\n  - {step: 1, node: n3}",
        "drill:\n  - {step: 1, stage: 0, action: 1F0}",
        "drill:\n  - {step: 1, stage: 0, action: 1FRC3}",
        "checkpoint: {every: 4}\ndrill:\n  - {step: 9, stage: 0, action: CHECKPOINT}",
        "pipelines: 2\ndrill:\n  - {step: 1, stage: 0, action: 0F3}",
        "pipelines: 2\ndrill:\n  - {step: 1, node: n1, action: 0F3}",
        "pipelines: 2\nredundancy: reroute\ndrill:\n  - {step: 1, stage: 0, action: TAKEOVER}",
    ],
    ids=[
        "a later node",
        "after a takeover",
        "by the shadow",
        "the last step",
        "of fewer pipelines",
        "any pipeline",
        "rerouted",
    ],
)
def test_a_drill_that_an_earlier_loss_could_make_possible_is_taken(tmp_path: Path, added: str) -> None:
    (tmp_path / "job.yaml").write_text(MINIMAL + added + "\n")

    assert len(load_job(tmp_path / "job.yaml").drill) == 1


def test_what_is_left_to_the_planner_has_no_number(tmp_path: Path) -> None:
    text = MINIMAL + "pipelines: auto\nstages: auto\nnodes: 7\nredundancy: auto\nredundancy_level: auto\nmemory_gb: 8\n"
    spec = run_spec(load(tmp_path, text), "r1", "file:///c")

    assert (spec.num_pipelines, spec.num_stages, spec.mode, spec.level) == (None, None, None, None)
    assert spec.memory_bytes == 8_000_000_000
    assert spec.num_hosts(7) == 7
    assert run_spec(load(tmp_path, MINIMAL + "pipelines: 2\n"), "r1", "file:///c").num_hosts(9) == 4


@pytest.mark.parametrize("key", ["pipelines", "stages"])
def test_an_auto_shape_needs_a_number_of_nodes(tmp_path: Path, key: str) -> None:
    assert refusal(tmp_path, MINIMAL + f"{key}: auto\n") == [
        f"job.yaml: nodes: is needed with `{key}: auto`: how many nodes to keep rented"
    ]


def test_losses_on_purpose_may_name_any_stage_that_the_planner_could_make(tmp_path: Path) -> None:
    drill = "drill:\n  - {step: 1, stage: 3, action: 3B0}\n"
    assert load(tmp_path, MINIMAL + "stages: auto\nnodes: 4\n" + drill).drill[0].stage == 3
    assert refusal(tmp_path, MINIMAL + "stages: auto\nnodes: 3\n" + drill)


# --- AWS ---------------------------------------------------------------------------------------------------------

AWS = MINIMAL + "cloud: aws\ncheckpoint: {url: s3://b/runs}\naws:\n  types: [g5.xlarge]\n"


def test_a_job_for_aws_needs_types_and_a_place_for_checkpoints(tmp_path: Path) -> None:
    job = load(tmp_path, AWS)

    assert (job.on_aws.types, job.on_aws.regions, job.on_aws.ssh_from) == (("g5.xlarge",), ("us-east-1",), "auto")


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        (MINIMAL + "cloud: aws\n", "5: cloud: `aws` needs a section `aws` with at least `types`: [g5.xlarge], say"),
        (MINIMAL + "cloud: aws\naws: {}\n", "6: aws.types: is missing; every section `aws` needs it"),
        (
            MINIMAL + "aws: {types: [g5.xlarge]}\ncheckpoint: {url: x}\n",
            "5: aws: is about AWS, but the job's cloud is local; say `cloud: aws`, or leave it out",
        ),
        (
            AWS + "local: {notice_s: 3}\n",
            "9: local: is about the local cloud, but the job's is aws; leave it out",
        ),
        (
            AWS.replace("checkpoint: {url: s3://b/runs}\n", ""),
            ": checkpoint.url: is needed on AWS, whose nodes share no folder: a store that all of them reach, such as "
            "s3://bucket/runs",
        ),
        (AWS + "  zones: [us-west-2a]\n", "9: aws.zones: us-west-2a is in none of the regions us-east-1"),
        (AWS + "  regions: [us-east-1, us-east-1]\n", "9: aws.regions: us-east-1 is there twice"),
        (
            AWS + "  regions: [us-east-1, us-west-2]\n  image: ami-1\n",
            "10: aws.image: ami-1 is in one region only; take `auto`, a name with *, or a single region",
        ),
        (
            AWS + "  bastion: me@host\n",
            "7: aws.ssh_from: is needed with a bastion: the block of addresses that it connects from",
        ),
        (
            AWS + "  ssh_from: [203.0.113.7]\n  types: [g5]\n".replace("  types: [g5]\n", "  image: ubuntu\n"),
            "10: aws.image: write `auto`, an id (ami-...), the path of an SSM parameter (/aws/service/...), or a name "
            "with *",
        ),
        (
            AWS.replace("g5.xlarge", "g5"),
            "8: aws.types[0]: 'g5' cannot be used here: use an instance type such as g5.xlarge",
        ),
        (AWS + "  wheelhouse: wheels\n", "9: aws.wheelhouse: there is no folder "),
    ],
)
def test_mistakes_about_aws(tmp_path: Path, text: str, refused: str) -> None:
    (line,) = refusal(tmp_path, text)

    assert line.startswith(f"job.yaml{'' if refused.startswith(':') else ':'}{refused}")


def test_the_whole_world_is_let_in_only_in_so_many_words(tmp_path: Path) -> None:
    job = load(tmp_path, AWS + "  ssh_from: [0.0.0.0/0]\n")

    assert job.on_aws.ssh_from == ("0.0.0.0/0",)
    assert any("whole world" in warning for warning in preview(job, market=assumed_market(job)).warnings)


def test_what_a_node_of_aws_is_prepared_with_comes_from_the_job(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    more = "  wheelhouse: wheels\n  torch_index_url: https://example.org/cu130\n  orphan_after_min: 30\n"

    remote = jobs.remote_config(load(tmp_path, AWS + more))

    assert (remote.wheelhouse, remote.index_url) == (tmp_path / "wheels", "https://example.org/cu130")
    assert (remote.orphan_after_s, remote.packages) == (1800.0, ("s3fs",))
