"""`python -m app`: the comparison in a browser. Without options the embedded models are used."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
from collections.abc import Sequence

from app.request import DTYPES, Settings
from debias_sd.commands.arguments import MEANING, read_names
from debias_sd.commands.terminal import open_terminal

# Before gradio and huggingface_hub are imported: the first asks its makers' server for news, the second reports use.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = argparse.ArgumentParser(prog="python -m app", description=__doc__)
    parser.add_argument("--base", metavar="FOLDER|ID", help="Stable Diffusion pipeline (default: the embedded one)")
    parser.add_argument(
        "--encoders",
        nargs="+",
        metavar="[NAME=]SOURCE",
        help=f"encoders by their name on the page: {MEANING}",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 (default: cpu)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of all models (default: float32)")
    parser.add_argument(
        "--judge", metavar="KIND:MODEL", help="who judges pictures of a real base: clip:FOLDER|ID or vqa:FOLDER|ID"
    )
    parser.add_argument("--judge-report", metavar="JSON", help="report of debias-sd calibrate with its thresholds")
    parser.add_argument(
        "--examples",
        metavar="FILE",
        help="example prompts of your own, shown first: text, one per line; JSON lines; a folder of text files",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine)")
    parser.add_argument("--port", type=int, help="port to listen on (default: the first free one from 7860)")
    parser.add_argument(
        "--allowed-hosts",
        nargs="+",
        default=[],
        metavar="NAME",
        help="other host names under which the app may be asked, as behind a proxy: app.example.org",
    )
    parser.add_argument(
        "--framed-by",
        nargs="+",
        default=[],
        metavar="ORIGIN",
        help="pages that may show the app in a frame: https://huggingface.co (default: none)",
    )
    parser.add_argument("--no-example", action="store_true", help="do not draw the examples at the start")
    parser.add_argument("--share", action="store_true", help="also make a public link, through gradio's servers")
    return parser


def read_settings(arguments: argparse.Namespace) -> Settings:
    """The operator's settings; ValueError with one sentence for a fault."""
    given = {"encoders": read_names(arguments.encoders, flag="--encoders")} if arguments.encoders else {}
    if arguments.examples is not None:
        from app.prompts import read_examples

        given["own_examples"] = read_examples(arguments.examples)
    return Settings(
        base=arguments.base,
        device=arguments.device,
        dtype=arguments.dtype,
        host=arguments.host,
        port=arguments.port,
        share=arguments.share,
        allowed_hosts=tuple(arguments.allowed_hosts),
        framed_by=tuple(arguments.framed_by),
        judge=arguments.judge,
        example=not arguments.no_example,
        judge_report=arguments.judge_report,
        **given,
    )


def check_address(settings: Settings) -> None:
    """Raise OSError for a port that cannot be listened on: before the models are loaded, which can take minutes."""
    if settings.port is not None:
        family, *_, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        socket.create_server(address[:2], family=family).close()


def main(argv: Sequence[str] | None = None) -> int:
    """Load the models and serve until interrupted; exit code 2 with one sentence for a fault of the operator's."""
    open_terminal()
    arguments = build_parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="app: %(levelname)s: %(message)s")
    try:
        settings = read_settings(arguments)
        check_address(settings)
        from app.models import Models
        from app.page import build_demo, launch
        from debias_sd.commands.terminal import quiet_loading, say
        from debias_sd.pipelines.load import hide_loading_bars

        say("app: loading the models")
        quiet_loading()
        hide_loading_bars()
        models = Models.load(settings)
        launch(build_demo(models, settings, ahead=settings.example and settings.is_embedded), models, settings)
    except ModuleNotFoundError as error:
        if error.name != "gradio":
            raise
        return _refuse("gradio is not installed; call make app, or pip install -e '.[app]'.")
    except ValueError as error:
        return _refuse(str(error))
    except OSError as error:  # gradio found no port, or the address is not this machine's
        where = f"{settings.host}, port {settings.port or '7860 to 7959'}"
        return _refuse(f"cannot listen on {where} ({type(error).__name__}); give another --port or --host.")
    except KeyboardInterrupt:
        sys.stderr.write("app: ended\n")
        return 130
    return 0


def _refuse(sentence: str) -> int:
    sys.stderr.write(f"app: error: {sentence}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
