"""Upload of a finished folder to the Hugging Face hub, through huggingface_hub's own client."""

from __future__ import annotations

from pathlib import Path

# What a run's folder holds beside the encoder; none of it is part of the model.
LEFT_BEHIND = ["checkpoint-*", ".*", "image-features/*", "tensorboard/*", "validation/*"]


class HubFault(ValueError):
    """The folder could not be uploaded; it is whole on disk."""


def check_hub(hub_model_id: str | None) -> None:
    """Raise ValueError when nobody is logged in, or the name is none: before training, not at its end."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    if hub_model_id is not None:
        try:
            validate_repo_id(hub_model_id)
        except HFValidationError as error:
            raise ValueError(f"hub_model_id {hub_model_id!r} is no name of a repository ({error}).") from None
    if get_token() is None:
        raise ValueError("push_to_hub is set and nobody is logged in; run `hf auth login`, or set HF_TOKEN.")


def push_folder(folder: Path, hub_model_id: str | None) -> str:
    """Make the repository where it is missing, upload the folder in one commit; returns its address.

    Raises HubFault with one sentence when the hub cannot be reached or refuses.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError  # the HTTP client's own; OfflineModeIsEnabled is an OSError

    name = hub_model_id or folder.resolve().name
    api = HfApi()
    try:
        address = api.create_repo(name, exist_ok=True)
        api.upload_folder(
            repo_id=address.repo_id,
            folder_path=folder,
            ignore_patterns=LEFT_BEHIND,
            commit_message="Text encoder trained by train_encoder",
        )
    except (HTTPError, OSError) as error:
        first = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise HubFault(
            f"{folder} could not be uploaded to {name} ({first}); it is whole on disk: "
            f"upload it later with `hf upload {name} {folder}`."
        ) from error
    return str(address)
