"""``octavo pack``: keeps a model's weights as this machine computes them, so that the next start maps them and is done."""

import signal
import sys
import time
from collections.abc import Mapping, Sequence

from octavo.commands import flags
from octavo.config import EngineConfig

OPTIONS: flags.Options = (EngineConfig,)


def parser() -> flags.Parser:
    made = flags.Parser(
        prog="octavo pack",
        usage="octavo pack MODEL [flags]",
        description="Pack a model's weights, quantized first if asked, into a file in the cache. Whatever loads the model with "
        "the same flags then maps the file: a large model starts in a few seconds, and processes share its memory. The file "
        "is as large as the weights in memory; delete it when it is not wanted. It is of this build and this kind of "
        "processor, and left alone when either, or the model, has changed; pack again then.",
    )
    flags.add_model(made)
    flags.add_flags(made, EngineConfig, title="engine", skip=("model",))
    return made


def run(arguments: Sequence[str], *, environment: Mapping[str, str], started: float) -> int:
    _, (config,) = flags.read(parser(), OPTIONS, arguments, environment)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that no half of a file is left

    from tqdm import tqdm

    from octavo.build import pack

    with tqdm(total=100, unit="%", leave=False, disable=not sys.stderr.isatty(), bar_format="{desc} {bar} {n:.0f} %") as bar:

        def progress(phase: str, fraction: float) -> None:
            bar.set_description_str(phase, refresh=False)
            bar.n = 100 * fraction
            bar.refresh()

        path, size = pack(config, progress)
    print(path)
    print(f"{size / 2**20:.0f} MiB, in {time.monotonic() - started:.1f} s", file=sys.stderr)
    return 0
