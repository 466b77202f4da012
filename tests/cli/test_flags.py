"""Flags and environment variables: every field has one, each value arrives, each mistake is one line and status 64."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from octavo import cli
from octavo.bench.options import RooflineOptions
from octavo.commands import COMMANDS, bench, chat, complete, flags, generate, keys, pack, run_batch, serve
from octavo.config import ConfigError, EngineConfig
from octavo.server.options import ServerOptions

EXAMPLES: dict[str, tuple[str, Any]] = {
    "model": ("smollm2", "smollm2"),
    "tokenizer": ("dir", "dir"),
    "revision": ("main", "main"),
    "load_format": ("gguf", "gguf"),
    "dtype": ("float32", "float32"),
    "quantization": ("int4", "int4"),
    "activation_bits": ("16", 16),
    "kv_cache_dtype": ("bfloat16", "bfloat16"),
    "max_model_len": ("8K", 8192),
    "max_num_seqs": ("3", 3),
    "max_num_batched_tokens": ("1.5k", 1500),
    "enable_chunked_prefill": ("false", False),
    "block_size": ("32", 32),
    "enable_prefix_caching": ("0", False),
    "kv_allocation": ("orca-pow2", "orca-pow2"),
    "pin_prefix": ("system.json", ("system.json",)),
    "gpu_memory_utilization": ("0.5", 0.5),
    "kv_cache_memory_bytes": ("2G", 2 << 30),
    "num_gpu_blocks_override": ("7", 7),
    "swap_space": ("0.25", 0.25),
    "preemption_mode": ("swap", "swap"),
    "scheduling_policy": ("priority", "priority"),
    "async_scheduling": ("no", False),
    "spec_method": ("ngram", "ngram"),
    "enforce_eager": ("1", True),
    "spec_tokens": ("2", 2),
    "max_logprobs": ("5", 5),
    "seed": ("-9", -9),
    "backend": ("reference", "reference"),
    "isa": ("avx2", "avx2"),
    "num_threads": ("2", 2),
    "chat_template": ("file.jinja", "file.jinja"),
    "host": ("::1", "::1"),
    "port": ("0", 0),
    "api_key": ("a", ("a",)),
    "api_keys_file": ("a.json", "a.json"),
    "usage_log": ("a.jsonl", "a.jsonl"),
    "inject_faults": ("true", True),
    "insecure_no_auth": ("yes", True),
    "served_model_name": ("m", ("m",)),
    "drain_timeout": ("1.5", 1.5),
    "enable_auto_tool_choice": ("off", False),
    "tool_call_parser": ("mistral", "mistral"),
    "reasoning_parser": ("qwen3", "qwen3"),
    "structured_outputs_in_reasoning": ("on", True),
    "disable_fastapi_docs": ("on", True),
    "strict": ("TRUE", True),
    "log_format": ("json", "json"),
    "enable_force_include_usage": ("on", True),
    "allowed_origins": ("*", ("*",)),
    "otlp_traces_endpoint": ("http://localhost:4318", "http://localhost:4318"),
    "enable_prompt_tokens_details": ("on", True),
    "max_num_queued_reqs": ("9", 9),
    "max_num_queued_tokens": ("9k", 9000),
    "max_body_bytes": ("1M", 1 << 20),
    "max_header_bytes": ("32K", 32768),
    "max_json_depth": ("10", 10),
    "max_messages": ("4", 4),
    "max_prompts": ("5", 5),
    "write_timeout": ("2", 2.0),
    "read_timeout": ("3", 3.0),
}
FIELDS = [(struct, field) for struct in (EngineConfig, ServerOptions) for field in flags.fields_of(struct)]


def parse(arguments: list[str], struct: type[Any], environment: dict[str, str] | None = None) -> Any:
    parsed = serve.parser().parse_args(arguments)
    flags.take_model(parsed)
    return flags.configure(struct, parsed, environment or {"OCTAVO_MODEL": "m"})


@pytest.mark.parametrize(("struct", "field"), FIELDS, ids=lambda value: getattr(value, "name", ""))
def test_every_field_is_a_flag_and_a_variable_and_is_explained(struct: type[Any], field: flags.Field) -> None:
    text, value = EXAMPLES[field.name]
    switch = field.flag if value else f"--no-{field.flag[2:]}"
    arguments = [switch if field.kind == "bool" else f"{field.flag}={text}"]
    assert getattr(parse(arguments, struct), field.name) == value
    assert getattr(parse([], struct, {"OCTAVO_MODEL": "m", f"OCTAVO_{field.name.upper()}": text}), field.name) == value
    assert field.help, "the description of a field is the help of its flag"
    assert (f"--[no-]{field.flag[2:]}" if field.default is True else field.flag) in serve.parser().format_help()


def test_defaults_are_those_of_the_types() -> None:
    assert parse([], EngineConfig) == EngineConfig(model="m")
    assert parse([], ServerOptions) == ServerOptions()


def test_a_flag_wins_over_the_environment() -> None:
    assert parse(["--port", "1"], ServerOptions, {"OCTAVO_PORT": "2"}).port == 1


def test_several_keys_and_names() -> None:
    options = parse(["--api-key", "a", "b", "--api-key", "c"], ServerOptions)
    assert options.api_key == ("a", "b", "c")
    assert parse([], ServerOptions, {"OCTAVO_API_KEY": "a, b"}).api_key == ("a", "b")


def test_the_model_is_positional_or_a_flag() -> None:
    assert parse(["one"], EngineConfig).model == parse(["--model", "one"], EngineConfig).model == "one"
    with pytest.raises(ConfigError, match="two models"):
        parse(["one", "--model", "two"], EngineConfig)
    with pytest.raises(ConfigError, match=r"which model .*, as in octavo serve smollm2; see octavo serve --help$"):
        parse([], EngineConfig, {"X": "y"})


def test_a_model_behind_a_list_is_said_to_be_taken() -> None:
    with pytest.raises(ConfigError, match=r"--api-key took model\.gguf: if that is the model, put it first"):
        parse(["--api-key", "secret", "model.gguf"], EngineConfig, {"X": "y"})
    assert parse(["model.gguf", "--api-key", "secret"], EngineConfig).model == "model.gguf"


@pytest.mark.parametrize("text", ["-1", "auto"])
def test_max_model_len_of_the_model(text: str) -> None:
    assert parse([f"--max-model-len={text}"], EngineConfig).max_model_len is None


@pytest.mark.parametrize(
    ("struct", "arguments", "words"),
    [
        (ServerOptions, ["--port", "99999"], "--port: expected int <= 65535"),
        (ServerOptions, ["--port", "x"], "--port: 'x' is not a whole number"),
        (ServerOptions, ["--drain-timeout", "-1"], "--drain-timeout: expected float >= 0"),
        (ServerOptions, ["--log-format", "xml"], "--log-format: 'xml' is not one of auto, json, text"),
        (EngineConfig, ["--swap-space", "inf"], "--swap-space: expected float <= 16384"),
        (EngineConfig, ["--max-num-batched-tokens", "3G"], "--max-num-batched-tokens: expected int <= 1048576"),
        (EngineConfig, ["--seed", "9" * 20], "--seed: expected int <= 9223372036854775807"),
        (EngineConfig, ["--seed", "-" + "9" * 20], "--seed: expected int >= -9223372036854775808"),
    ],
)
def test_bad_values_name_their_flag(struct: type[Any], arguments: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(arguments, struct)
    assert words in str(caught.value)


def test_bad_variables_name_themselves() -> None:
    with pytest.raises(ConfigError, match="OCTAVO_STRICT: 'maybe' is not true or false"):
        parse([], ServerOptions, {"OCTAVO_STRICT": "maybe"})


def test_unknown_variables_are_pointed_out(capsys: pytest.CaptureFixture[str]) -> None:
    flags.warn_of_unknown({"OCTAVO_PROT": "1", "OCTAVO_ZZZ": "1", "OCTAVO_PORT": "1", "PATH": ""}, (ServerOptions,))
    first, second = capsys.readouterr().err.splitlines()
    assert first == "octavo: warning: OCTAVO_PROT sets nothing; did you mean OCTAVO_PORT?"
    assert second == "octavo: warning: OCTAVO_ZZZ sets nothing"


def test_variables_of_other_commands_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    others = ("PORT", "URL", "BASE_URL", "PROMPT", "CACHE_SCOPE", "INPUT_FILE", "TEMPERATURE")
    flags.warn_of_unknown({f"OCTAVO_{name}": "1" for name in others}, (EngineConfig,))
    assert capsys.readouterr().err == ""


def test_a_command_without_a_model_points_them_out_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    assert keys.run(["new", "ops"], environment={"OCTAVO_FILE": str(file), "OCTAVO_ROEL": "admin"}, started=0.0) == 0
    assert "octavo: warning: OCTAVO_ROEL sets nothing; did you mean OCTAVO_ROLE?" in capsys.readouterr().err
    assert file.exists()


PARSERS = [
    serve.parser(),
    chat.parser(),
    generate.parser(),
    complete.parser(),
    run_batch.parser(),
    pack.parser(),
    keys.parser(),
    *map(bench.parser, bench.MEASUREMENTS),
]


@pytest.mark.parametrize("name", bench.MEASUREMENTS)
def test_a_measurement_has_a_flag_for_each_of_its_options_and_of_the_engines_that_are_the_users(name: str) -> None:
    entry, text = bench.MEASUREMENTS[name], bench.parser(name).format_help().partition("\nEach flag")[0]
    for struct in (entry.options,) if entry.running_server else (entry.options, EngineConfig):
        for field in flags.fields_of(struct):
            assert (f"{field.flag[2:]} " in text or f"{field.flag[2:]}\n" in text) is (field.name not in entry.decides), (
                field.flag
            )


@pytest.mark.parametrize(
    ("arguments", "environment", "sizes"),
    [
        ([], {}, (1,)),
        (["--batch-size", "1", "2K"], {}, (1, 2048)),
        (["--batch-size", "1", "--batch-size", "3"], {}, (1, 3)),
        ([], {"OCTAVO_BATCH_SIZE": "4, 5"}, (4, 5)),
    ],
)
def test_a_list_of_numbers(arguments: list[str], environment: dict[str, str], sizes: tuple[int, ...]) -> None:
    parsed = bench.parser("roofline").parse_args(arguments)
    assert flags.configure(RooflineOptions, parsed, environment).batch_size == sizes


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (["1", "x"], "--batch-size: '1 x' is not a list of whole numbers"),
        (["0"], "--batch-size: expected int >= 1"),
        (["5000"], "--batch-size: expected int <= 4096"),
    ],
)
def test_a_bad_list_of_numbers_names_its_flag(sizes: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        flags.configure(RooflineOptions, bench.parser("roofline").parse_args(["--batch-size", *sizes]), {})
    assert words in str(caught.value)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.prog)
def test_help_explains_every_flag(parser: flags.Parser) -> None:
    for action in parser._actions:
        assert action.help, action.option_strings


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.prog)
def test_help_tells_every_default_in_the_same_words(parser: flags.Parser) -> None:
    text = " ".join(parser.format_help().split())
    assert text.count("default") == text.count("(default: ")


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.prog)
def test_the_example_of_a_variable_is_of_a_flag_that_there_is(parser: flags.Parser) -> None:
    text = " ".join(parser.format_help().split())
    flag, variable = text.partition("set in the environment: ")[2].removesuffix(", and so on.").split(" as ")
    assert flag in parser._option_string_actions and variable == "OCTAVO_" + flag[2:].replace("-", "_").upper()


def test_help_is_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, widest in ((80, 80), (300, 110)):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert widest - 20 < max(map(len, serve.parser().format_help().splitlines())) <= widest


def test_a_switch_that_depends_is_shown_with_the_way_to_turn_it_off() -> None:
    assert "--[no-]ignore-eos" in bench.parser("serve").format_help()


def test_the_help_of_serve_reads_well() -> None:
    text = " ".join(serve.parser().format_help().split())
    for words in (
        "fraction of the device's usable memory for Octavo (default: 0.4 on a CPU)",
        "after SIGTERM or Ctrl-C (default: 30)",
        "longest request body (default: 4M)",
        "--[no-]enable-prefix-caching keep finished blocks",
        "--chat-template FILE",
    ):
        assert words in text
    assert "--no-strict" not in text and parse(["--no-strict"], ServerOptions).strict is False


def test_kinds_of_fields() -> None:
    class Sample(msgspec.Struct):
        plain: int = 1
        deep: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="words")] = None

    plain, deep = flags.fields_of(Sample)
    assert (plain.kind, plain.optional) == ("int", False)
    assert (deep.kind, deep.optional, deep.help) == ("int", True, "words")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--help"], 0, "octavo COMMAND --help"),
        (["help"], 0, "serve"),
        (["help", "bench"], 0, "  roofline    how near"),
        (["--version"], 0, "octavo 0.1.0"),
        ([], 64, "commands:"),
        (["bench", "--help"], 0, "  roofline    how near"),
        (["bench"], 64, "throughput"),
    ],
)
def test_the_top_level(arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == status
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["serve"], ["bench", "serve"], ["keys", "new"]])
def test_help_of_a_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["help", *arguments])
    assert caught.value.code == 0 and capsys.readouterr().out.startswith(f"usage: octavo {' '.join(arguments)} ")


def test_an_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_process_start", interrupt)
    assert cli.main(["serve", "m"]) == 130


UNREADABLE = [
    "http://127.0.0.1:abc/v1",
    "http://127.0.0.1:99999",
    "http://[::1",
    "http://..",
    "http://127.0.0.1:1/ä",
    "http://h o/v1",
    "http://h/v 1",
]
BENCH, SWEEP = ["bench", "serve", "--base-url"], ["bench", "sweep", "--base-url"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["serve", "m", "--port", "x"],
        ["bench", "nonsense"],
        ["generate", "no-such-model", "-p", "x"],
        ["chat", "--url", "ftp://x"],
        ["chat", "--url", "http://127.0.0.1:1/v1"],
        *([*command, url] for url in UNREADABLE for command in (["chat", "--url"], ["complete", "--url"], BENCH, SWEEP)),
        ["bench", "throughput", "no-such-model"],
        ["bench", "latency", "m", "--num-iters", "0"],
        ["bench", "latency", "m", "--output-json", "/no/such/directory/x.json"],
        ["bench", "roofline", "m", "--context-len", "1"],
        ["bench", "roofline", "m", "--plot", "x.gif"],
        ["bench", "roofline", "m", "--plot", "/no/such/directory/x.svg"],
        ["generate", "m", "-p", "x", "--n", "0"],
    ],
)
def test_mistakes_are_one_line_and_64(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 64
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1


def test_unknown_flags_are_one_line_and_64(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["serve", "m", "--nonsense"])
    assert caught.value.code == 64 and len(capsys.readouterr().err.splitlines()) == 1


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from octavo import cli; cli.main(['--help']);"
        "heavy = {'numpy', 'starlette', 'uvicorn', 'asyncio', 'tokenizers', 'msgspec', 'argparse'};"
        "print(heavy & set(sys.modules), file=sys.stderr)"
    )
    root = Path(__file__).resolve().parents[2]
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert ended.stderr.strip() == "set()"
    for name, (module, _) in COMMANDS.items():
        assert f"  {name}" in ended.stdout and module.startswith("octavo.commands.")


def test_the_start_of_the_process_is_in_the_past() -> None:
    import time

    started = cli._process_start()
    assert 0 < time.monotonic() - started < 3600 * 24
