"""Settings of a training run: files, command line, recipes, faults; and the learning rate."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

import train_encoder
from tests.train_tiny import tiny_config
from train_encoder.engine import Engine, Shards, make_engine, refuse_deepspeed
from train_encoder.prepare import prepare
from train_encoder.settings import make_config, parse_arguments, read_config
from train_encoder.step import learning_rate
from train_unet.run import run
from train_unet.settings import UnetConfig
from train_unet.settings import parse_arguments as parse_unet_arguments

CONFIGS = sorted((Path(train_encoder.__file__).parent / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_run_is_valid(path):
    make_config(read_config(path))


def test_the_published_run_has_the_papers_numbers_and_the_large_one_is_it_in_chunks():
    config = make_config(read_config(next(path for path in CONFIGS if path.stem == "debias_vit_b16")))
    assert (config.short_weight, config.label_smoothing, config.components) == (0.1, 0.0, 32)
    assert (config.stretch_factor, config.keep_positions, config.pad_id) == (4, 20, 0)
    assert (config.learning_rate, config.adam_weight_decay, config.adam_epsilon) == (1e-6, 0.01, 1e-8)
    assert (config.max_train_steps, config.lr_warmup_steps, config.train_batch_size) == (14_598, 200, 64)
    last = learning_rate(14_597, peak=config.learning_rate, warmup=200, total=14_598)
    assert last == 1.1902423935339357e-14
    small, large = (make_config(read_config(CONFIGS[0].parent / f"debias_vit_{n}.yaml")) for n in ("b16", "l14"))
    assert large.train_batch_size * large.contrast_chunks == small.train_batch_size
    assert (large.learning_rate, large.max_train_steps) == (small.learning_rate, small.max_train_steps)


def test_the_ablations_rows_differ_in_their_switches_alone():
    names = ("ablation_removal", "ablation_subsampling", "ablation_padding", "debias_vit_b16")
    rows = {name: make_config(read_config(CONFIGS[0].parent / f"{name}.yaml")) for name in names}
    switches = {n: (c.remove_summary, c.subsample, c.front_padding) for n, c in rows.items()}
    assert switches == {
        "ablation_removal": (True, False, False),
        "ablation_subsampling": (True, True, False),
        "ablation_padding": (True, True, True),
        "debias_vit_b16": (True, True, True),
    }
    rest = [dataclasses.asdict(config) for config in rows.values()]
    for name in ("output_dir", "remove_summary", "subsample", "front_padding"):
        for row in rest:
            del row[name]
    assert all(row == rest[0] for row in rest)


KINDS = {"ddp": "MULTI_GPU", "fsdp2": "FSDP", "fsdp2_siglip": "FSDP"}
LAYERS = {"fsdp2": "CLIPEncoderLayer", "fsdp2_siglip": "SiglipEncoderLayer"}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_accelerates_configs_are_what_accelerate_reads(name, kind):
    from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file

    config = load_config_from_file(str(CONFIGS[0].parent / "accelerate" / f"{name}.yaml"))
    assert isinstance(config, ClusterConfig)
    assert config.distributed_type == kind
    if name in LAYERS:
        assert config.fsdp_config["fsdp_version"] == 2
        assert config.fsdp_config["fsdp_transformer_layer_cls_to_wrap"] == LAYERS[name]


def test_lists_come_from_yaml_and_the_command_line_trackers_too():
    assert tiny_config(Path("x"), report_to="tensorboard, trackio").report_to == "tensorboard, trackio"
    drawn = {"validation_pipeline": "sd", "validation_steps": 1}
    assert tiny_config(Path("x"), validation_prompts="one", **drawn).validation_prompts == ["one"]
    assert tiny_config(Path("x"), validation_prompts=["one", "two"], **drawn).validation_prompts == ["one", "two"]
    # Case 130: names with commas, or several, or the option given twice.
    for given in (["tensorboard,wandb"], ["tensorboard", "wandb"], ["tensorboard", "--report_to", "wandb"]):
        options = ["--output_dir", "o", "--pretrained_model_name_or_path", "x"]
        assert parse_arguments([*options, "--report_to", *given]).report_to == "tensorboard,wandb"
    assert tiny_config(Path("x"), report_to=["tensorboard", "wandb"]).report_to == "tensorboard,wandb"


LISTS = {
    "one": (["a red star"], ["a red star"]),
    "several": (["a", "b c", "d"], ["a", "b c", "d"]),
    "given twice": (["a", "--validation_prompts", "b", "c"], ["a", "b", "c"]),
    "a list of YAML": (['["a", "b: c"]'], ["a", "b: c"]),
    "a list of JSON": (['["\\ud83d\\ude42 star"]'], ["🙂 star"]),
    "a list and one": (["[a, b]", "--validation_prompts", "c"], ["a", "b", "c"]),
    "with an equals sign": (["a", "--validation_prompts=-b"], ["a", "-b"]),
    "what YAML reads otherwise": (
        ["portrait: a woman", "yes", "12", "null", "# x"],
        ["portrait: a woman", "yes", "12", "null", "# x"],
    ),
    "brackets of markup": (["[red]star", "(a:1.2)"], ["[red]star", "(a:1.2)"]),
}


@pytest.mark.parametrize(("given", "prompts"), LISTS.values(), ids=LISTS)
def test_a_list_is_given_in_every_way_that_people_know(given, prompts):
    """Case 130: every prompt counts, however the list is written; a prompt is text, whatever YAML would read in it."""
    options = ["--pretrained_model_name_or_path", "x", "--validation_pipeline", "sd", "--validation_steps", "1"]
    config = parse_arguments(["--output_dir", "o", "--validation_prompts", *given, *options])
    assert config.validation_prompts == prompts
    assert config.validation_steps == 1


def test_entries_that_yaml_does_not_read_as_text_and_what_an_engine_cannot_do_are_refused():
    """Case 130: in a file, `- portrait: a woman` is a mapping and `- yes` is true."""
    for entry in ({"portrait": "a woman"}, True, None, ["a"]):
        with pytest.raises(
            ValueError, match=r"^validation_prompts has the entry .*, which YAML does not read as text;"
        ):
            make_config({"output_dir": "o", "validation_prompts": ["a", entry]})
    config = tiny_config(Path("x"), eval_steps=1)
    Engine(None).check(config)
    with pytest.raises(
        ValueError, match="^eval_steps and validation_steps read whole weights and the engine is shards"
    ):
        Shards(None).check(config)


def test_bare_flags_no_and_dashes_are_what_people_mean():
    """Case 129: `--overwrite_output_dir`, as in other trainers."""
    for given, wanted in (["--overwrite_output_dir"], True), (["--overwrite_output_dir", "false"], False):
        options = ["--output_dir", "o", "--pretrained_model_name_or_path", "x"]
        config = parse_arguments([*given, *options, "--freeze_image_tower"])
        assert (config.overwrite_output_dir, config.freeze_image_tower) == (wanted, True)
    # `no` is a text where one is asked for, in YAML too; `--max-train-steps` is a setting's name.
    options = ["--output_dir", "o", "--pretrained_model_name_or_path", "x", "--max-train-steps", "500"]
    for given in ("no", "'no'"):
        config = parse_arguments([*options, "--mixed_precision", given])
        assert (config.mixed_precision, config.max_train_steps) == ("no", 500)
    assert tiny_config(Path("x"), mixed_precision=False).mixed_precision == "no"


ENGINES = {
    "FSDP on a CPU": ({"ACCELERATE_USE_FSDP": "true"}, "NO", "the launcher was given FSDP, which does not run here"),
    "FSDP on CPUs": ({"ACCELERATE_USE_FSDP": "true"}, "MULTI_CPU", "the launcher was given FSDP, which does not run"),
    "DeepSpeed": ({"ACCELERATE_USE_DEEPSPEED": "true"}, "NO", "the launcher was given DeepSpeed, which train_encoder"),
    "Megatron": (
        {"ACCELERATE_USE_MEGATRON_LM": "true"},
        "MEGATRON_LM",
        "the launcher was given Megatron-LM, which does",
    ),
    "FSDP 1": ({"ACCELERATE_USE_FSDP": "true"}, "FSDP", "the launcher was given FSDP of version 1, version 2 is"),
}


@pytest.mark.parametrize(("environment", "found", "sentence"), ENGINES.values(), ids=ENGINES)
def test_an_engine_that_is_left_out_is_refused(monkeypatch, environment, found, sentence):
    """Case 133: what the launcher was given and accelerate does not run is not trained without, unsaid."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    state = SimpleNamespace(fsdp_plugin=SimpleNamespace(fsdp_version=1))
    accelerator = SimpleNamespace(
        distributed_type=found, device=SimpleNamespace(type="cpu"), num_processes=2, state=state
    )
    with pytest.raises(ValueError, match="^[^\n]*$") as caught:
        refuse_deepspeed() or make_engine(accelerator)
    assert str(caught.value).startswith(sentence)
    monkeypatch.undo()
    refuse_deepspeed()
    assert make_engine(SimpleNamespace(distributed_type="MULTI_CPU")).name == "whole"
    state.fsdp_plugin.fsdp_version = 2
    assert make_engine(SimpleNamespace(distributed_type="FSDP", state=state)).name == "shards"


def test_recipes_are_separate_switches_and_the_schedule_warms_up_and_falls():
    long_clip, debias = (tiny_config(Path("x"), recipe=name) for name in ("long-clip", "debias"))
    assert (long_clip.short_weight, long_clip.label_smoothing, long_clip.subsample) == (0.5, 0.1, False)
    assert (debias.remove_summary, debias.subsample, debias.front_padding) == (True, True, True)
    assert tiny_config(Path("x"), recipe="debias", front_padding=False).front_padding is False
    rates = [learning_rate(step, peak=2.0, warmup=4, total=12) for step in range(12)]
    assert rates[:5] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert all(a > b for a, b in zip(rates[4:], rates[5:], strict=False))
    assert rates[8] == pytest.approx(1.0)


def test_command_line_wins_over_the_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("output_dir: a\npretrained_model_name_or_path: b\nseed: 1\nlearning_rate: 1e-5\n")
    config = parse_arguments(["--config", str(path), "--seed", "7", "--subsample=false"])
    assert (config.seed, config.output_dir, config.learning_rate, config.subsample) == (7, "a", 1e-5, False)


FAULTS = [
    ({"learning_rat": 1}, "unknown setting 'learning_rat'; the nearest is 'learning_rate'"),
    ({"gradient_accumulation_steps": 4}, "the setting gradient_accumulation_steps is called contrast_chunks now, and"),
    ({"max_train_steps": "ten"}, "max_train_steps must be a whole number, found 'ten'; change that setting."),
    ({"train_batch_size": [8]}, "train_batch_size must be a whole number, found [8]"),
    ({"learning_rate": {"peak": 1}}, "learning_rate must be a number, found {'peak': 1}"),
    ({"max_train_steps": float("inf")}, "max_train_steps must be a whole number, found inf"),
    ({"output_dir": ["a", "b"]}, "output_dir must be a text, found ['a', 'b']"),
    ({"seed": 2**64}, "seed must be at most 9,223,372,036,854,775,807, found 18446744073709551616"),
    ({"seed": True}, "seed must be a whole number, found True"),
    ({"seed": None}, "seed must be a whole number, found null"),
    (
        {"recipe": "debais"},
        "recipe must be one of short-only, long-clip, debias, lengthen, found 'debais'; choose one of them.",
    ),
    ({"report_to": "tensorboard,mlflow"}, "report_to must be one of none, tensorboard, wandb, trackio, found 'mlflow'"),
    ({"short_weight": 1.5}, "short_weight must be at most 1, found 1.5"),
    ({"train_batch_size": 0}, "train_batch_size must be at least 1, found 0; change that setting."),
    ({"learning_rate": float("nan")}, "learning_rate must be a number, found nan"),
    ({"lr_warmup_steps": 3}, "the warm-up must be shorter than the run"),
    ({"output_dir": ""}, "output_dir is not set"),
    ({"stay_close_weight": 1}, "stay_close_weight is set without an initial checkpoint to distil from"),
    ({"recipe": "debias", "late_sentences_weight": 1}, "late_sentences_weight is set without an initial checkpoint"),
    ({"late_sentences_weight": -1}, "late_sentences_weight must be at least 0, found -1.0"),
    (
        {"pretrained_model_name_or_path": "x", "stretch_factor": 1, "late_sentences_weight": 1},
        "late_sentences_weight is set with stretch_factor 1, so no sentence begins after the initial checkpoint's",
    ),
    ({"pretrained_model_name_or_path": "x", "train_data": "y", "grounding_weight": 1}, "only shapes knows"),
    ({"train_data_dir": "x"}, "train_data_dir is set for train_data shapes, which has no files"),
    ({"validation_prompts": ["x"]}, "of validation_prompts, validation_pipeline and validation_steps some are set"),
]


@pytest.mark.parametrize(("settings", "message"), FAULTS)
def test_faults_are_one_sentence(settings, message):
    with pytest.raises(ValueError, match="^[^\n]*$") as caught:
        tiny_config(Path("x"), **settings)
    assert message in str(caught.value)


COMMANDS = {
    "misspelt": (["--outptu_dir", "x"], "unknown option '--outptu_dir'; the nearest is '--output_dir'"),
    "no file": (["--config", "nowhere.yaml"], "config file nowhere.yaml does not exist; name a YAML file (train_enc"),
    "no value": (["--seed"], "--seed: expected one argument; --help lists all settings."),
    "no key": (["seed", "1"], "settings come as --key value, found 'seed' without a key"),
    "not YAML": (["--seed", "[1"], "--seed is '[1', which is not YAML; put it in quotes."),
    "not text": (["--config", "picture.yaml"], "picture.yaml is not UTF-8 text (byte 0 cannot be read"),
    "no lines": (
        ["--config", "list.yaml"],
        "config file list.yaml holds a list but must hold lines of `key: value`; write such.",
    ),
    "broken": (["--config", "broken.yaml"], "config file broken.yaml is not YAML (while parsing"),
}


@pytest.mark.parametrize(("command", "message"), COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("parse", [parse_arguments, parse_unet_arguments], ids=["encoder", "unet"])
def test_faults_of_the_command_line_are_one_sentence(tmp_path, monkeypatch, parse, command, message):
    """Both trainers read their settings alike."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "picture.yaml").write_bytes(b"\x89PNG")
    (tmp_path / "list.yaml").write_text("- a\n- b\n")
    (tmp_path / "broken.yaml").write_text("widths: [1")
    with pytest.raises(ValueError, match="^[^\n]*$") as caught:
        parse(command)
    assert str(caught.value).replace("train_unet/", "train_encoder/").startswith(message)


@pytest.mark.parametrize("option", [["--gradient_accumulation_steps", "2"], ["--gradient-accumulation-steps=2"]])
def test_the_name_of_before_says_the_one_of_now(option):
    said = "the setting --gradient_accumulation_steps is called --contrast_chunks now, and means the same; rename it."
    with pytest.raises(ValueError, match=f"^{said}$"):
        parse_arguments(["--output_dir", "o", *option])


@pytest.mark.parametrize("place", ["/proc/run", f"{__file__}/run"])
def test_an_output_folder_that_cannot_be_written_is_refused_first(place):
    with pytest.raises(ValueError, match="^folder .*/run cannot be written to"):
        prepare(tiny_config(Path(place)))
    settings = {"text_encoder": "/no/such", "output_dir": place}
    with pytest.raises(ValueError, match="^folder .*/run cannot be written to"):
        run(UnetConfig(**settings), command=[])
