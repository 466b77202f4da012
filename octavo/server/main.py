"""``octavo serve``: from options to a running server and, in the end, to an exit status.

The order matters for the time to ready: the port is taken and the engine process started before anything heavy is imported
here, and the tokenizer is read while the engine loads. SIGTERM drains, a second signal stops at once.
"""

import concurrent.futures
import contextlib
import os
import sys
from typing import TYPE_CHECKING, TypeAlias

from octavo.config import ConfigError, EngineConfig
from octavo.server import interpreter
from octavo.server.auth import Keyring
from octavo.server.exit_codes import BAD_CONFIG, PORT_IN_USE
from octavo.server.listen import PortError, bind
from octavo.server.options import ServerOptions
from octavo.server.traces import Traces
from octavo.server.usage_log import UsageLog

if TYPE_CHECKING:
    from octavo import build
    from octavo.server.engine_handle import EngineProcess
    from octavo.server.service import ServedModel
    from octavo.server.supervisor import Supervisor

Started: TypeAlias = "tuple[EngineProcess, EngineConfig]"
API_NICENESS = 5
"""The API process gives way to compute: a token computed late delays everyone, a token sent late delays one."""


def run(config: EngineConfig, options: ServerOptions, *, process_start: float) -> int:
    """Serves until told to stop. ``process_start`` is when this process began, on the monotonic clock.

    Returns the exit status when it cannot begin, and ends the process when it has; what goes wrong is one line on stderr.
    """
    try:
        options.check()
        keys, usage_log = Keyring.of(options), UsageLog.of(options.usage_log)
        traces = Traces.of(options.otlp_traces_endpoint)
        sock = bind(options.host, options.port)
    except (ConfigError, PortError) as error:
        print(f"octavo: error: {error}", file=sys.stderr, flush=True)
        return BAD_CONFIG if isinstance(error, ConfigError) else PORT_IN_USE

    interpreter.end_when_asked()
    interpreter.tell_stacks()
    # One thread starts all engine processes. It exists before this one lowers its priority, and children inherit from it.
    spawner = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="spawner")
    started = spawner.submit(start_engine, config, inject_faults=options.inject_faults)
    with contextlib.suppress(OSError):
        os.nice(API_NICENESS)

    import asyncio

    import uvloop

    from octavo.server.lifecycle import Lifecycle

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        served = Lifecycle(config, options, keys, usage_log, traces, sock=sock, process_start=process_start)
        status = runner.run(served.run(started, spawner))
        # A download or a long tokenization may still run in a thread, and nobody waits for it, nor for who reads the log.
        os._exit(status)


def start_engine(config: EngineConfig, *, inject_faults: bool = False) -> Started:
    """An engine process that has been told what to load, the model fetched first if need be. Raises ``ConfigError``."""
    from octavo.server.engine_handle import EngineProcess
    from octavo.server.wire import Load, frame
    from octavo.weights.hub import resolved

    engine = EngineProcess.spawn()
    try:
        found = resolved(config)
        engine.sock.sendall(frame(Load(found, inject_faults)))
    except BaseException:
        engine.process.kill()
        raise
    return engine, found


async def load_served_model(started: "concurrent.futures.Future[Started]", supervisor: "Supervisor") -> "ServedModel":
    """What the API process knows of the model, read while the engine process loads it. Raises ``ConfigError``."""
    import asyncio

    from octavo.server.service import ServedModel

    engine, config = await asyncio.wrap_future(started)
    await supervisor.attach(engine, config)
    front = await asyncio.to_thread(_open_frontend, config)
    if config.pin_prefix:
        supervisor.pin(await asyncio.to_thread(_read_prefixes, config, front))
    return ServedModel.build(front, config)


def _open_frontend(config: EngineConfig) -> "build.Frontend":
    from octavo import build

    return build.open_frontend(config)


def _read_prefixes(config: EngineConfig, front: "build.Frontend") -> list[list[int]]:
    from octavo.prefix_files import read_prefixes

    return read_prefixes(config.pin_prefix, front.tokenizer)
