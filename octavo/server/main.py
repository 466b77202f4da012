"""``octavo serve``: from options to a running server and, in the end, to an exit status.

The order matters for the time to ready: the port is taken and the engine process started before anything heavy is imported
here, and the tokenizer is read while the engine loads. SIGTERM drains, a second signal stops at once.
"""

import concurrent.futures
import contextlib
import os
import sys

from octavo.config import ConfigError, EngineConfig
from octavo.server.exit_codes import BAD_CONFIG, PORT_IN_USE
from octavo.server.listen import PortError, bind
from octavo.server.options import ServerOptions

API_NICENESS = 5
"""The API process gives way to compute: a token computed late delays everyone, a token sent late delays one."""


def run(config: EngineConfig, options: ServerOptions, *, process_start: float) -> int:
    """Serves until told to stop. ``process_start`` is when this process began, on the monotonic clock.

    Returns the exit status; what goes wrong is one line on stderr.
    """
    try:
        options.check()
        sock = bind(options.host, options.port)
    except (ConfigError, PortError) as error:
        print(f"octavo: error: {error}", file=sys.stderr, flush=True)
        return BAD_CONFIG if isinstance(error, ConfigError) else PORT_IN_USE

    from octavo.server.engine_handle import EngineProcess

    # One thread starts all engine processes. It exists before this one lowers its priority, and children inherit from it.
    spawner = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="spawner")
    engine = spawner.submit(EngineProcess.spawn).result()
    with contextlib.suppress(OSError):
        os.nice(API_NICENESS)

    import asyncio

    import uvloop

    from octavo.server.lifecycle import Lifecycle

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Lifecycle(config, options, sock=sock, process_start=process_start).run(engine, spawner))
