"""The variant that weights in a folder are there in, when it is the only one: model.fp16.safetensors."""

import re
from pathlib import Path

_VARIANT = re.compile(r"[\w-]+\.(\w+?)(?:-\d+-of-\d+)?\.safetensors")


def only_variant(folder: Path) -> dict[str, str]:
    """Return `variant` as an option when the weights in `folder` are there in one variant and not without one."""
    found = {match and match[1] for match in (_VARIANT.fullmatch(path.name) for path in folder.glob("*.safetensors"))}
    return {"variant": found.pop()} if len(found) == 1 and None not in found else {}
