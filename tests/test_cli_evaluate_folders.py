"""`debias-sd evaluate` on a folder that is not what was asked for: one sentence that names what was."""

import pytest
from tiny import save_clip_model, tiny_encoder, tiny_sd_pipeline
from tiny_siglip import make_siglip

from debias_sd import cli

CAPTIONS = "A red cat sits here. It is small. A dog runs.\nA blue boat swims. It is on a lake. The sun is up.\n"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("folders")
    tiny_encoder().save(root / "text")
    make_siglip(root / "siglip", "own")
    save_clip_model(root / "bare")
    (root / "bare" / "tokenizer.json").unlink()
    tiny_sd_pipeline().save_pretrained(root / "sd")
    (root / "captions.txt").write_text(CAPTIONS)
    return root


COMMANDS = {
    "attention": "evaluate attention --encoder a={folder}",
    "attention of captions": "evaluate attention --encoder a={folder} --captions {root}/captions.txt --no-cache",
    "retrieval": "evaluate retrieval --encoder a={folder}",
    "retrieval on a set": "evaluate retrieval --encoder a={folder} --data world --no-cache",
    "fidelity": "evaluate fidelity --encoder a={folder} --base {root}/sd "
    "--prompts {root}/captions.txt --judge clip:base",
    "judge": "calibrate --judge clip:{folder}",
}
NEEDS = (
    "holds a clip_text_model model but {} needs a CLIPModel with its image tower; give the folder that training wrote"
)
FAULTS = {
    ("attention", "text"): NEEDS.format("attention"),
    ("attention of captions", "text"): NEEDS.format("attention"),
    ("retrieval", "text"): NEEDS.format("retrieval"),
    ("retrieval on a set", "text"): NEEDS.format("retrieval"),
    ("judge", "text"): NEEDS.format("a judge"),
    ("fidelity", "siglip"): "SigLIP is for retrieval, no Stable Diffusion reads its states; give the folder of a CLIP",
} | {(command, "bare"): "has no tokenizer files; copy tokenizer.json and" for command in COMMANDS}


@pytest.mark.parametrize(("command", "folder"), FAULTS)
def test_the_sentence_names_what_was_asked_for(folders, tmp_path, capsys, command, folder):
    if command == "fidelity" and not folder_of_judge():
        pytest.skip("the embedded models have not been made")
    words = COMMANDS[command].format(folder=folders / folder, root=folders).split()
    assert cli.main([*words, "--count", "4", "--samples", "3", "--out", str(tmp_path / "r.json")]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("debias-sd: error: ")
    assert FAULTS[command, folder] in error
    assert error.endswith(".")
    assert not (tmp_path / "r.json").exists()


def folder_of_judge():
    from debias_sd.encoder_folder import WEIGHTS

    return (WEIGHTS / "base").is_dir()
