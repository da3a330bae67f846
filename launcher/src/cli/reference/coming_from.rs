//! `docs/coming-from.md`, written from the table of the errors and from the other names of
//! flags.

use std::fmt::Write;

use clap::{Arg, Command};
use expect_test::expect_file;
use lockstep_config::args::refused_options;

use super::super::definition;
use crate::settings::tests::algorithms;

const HEAD: &str = "\
# Coming from vLLM, SGLang or llama.cpp

Flags have SGLang's names, so most of SGLang's commands work as they are; [flags.md](flags.md) has all of them. \
What is not there is refused with what to do instead: an option that is given has an effect or is an error. \
The tables are written from the definition of the command line: after a change, \
`UPDATE_EXPECT=1 cargo test -p lockstep reference` writes this page anew.

| There | Here |
|---|---|
| `vllm serve Qwen/Qwen3-0.6B --tensor-parallel-size 2 --max-model-len 8192 --gpu-memory-utilization 0.9` | \
`lockstep serve Qwen/Qwen3-0.6B --tp-size 2 --context-length 8192 --mem-fraction-static 0.9` |
| `python -m sglang.launch_server --model-path DIR --tp 2 --mem-fraction-static 0.85` | \
`lockstep serve DIR --tp 2 --mem-fraction-static 0.85 --port 30000` |
| `llama-server -m model.gguf -c 8192 -np 8 -t 8` | \
`lockstep serve model.gguf --context-length 8192 --max-running-requests 8 --threads-per-rank 8 --port 8080` |

Three things differ from the start: where no GPU can be used the processor serves, unless `--device cuda` is given, the port is 8000 as vLLM's, \
and weights are safetensors: in bf16 or f32, which `--quantization` rounds while it loads them, or in FP8 or the integers of GPTQ, AWQ, AutoRound and compressed-tensors, which stay what they are, as GGUF files do.
Unlike with llama.cpp, `--context-length` is what each request may have.
Fields of requests have the names of their APIs: [http.md](http.md#structured-output) has a table of those \
that hold an answer to a schema, an expression, a grammar or a structural tag, by the server that they come from, and says which \
calls of [tools](http.md#reasoning-and-tool-calls) are read and by which names the tokens of reasoning are limited.
";

const ALIASES: &str = "
## Other names

These are taken as they are. In a `--config` file the name on the right is meant alone.

| There | Here |
|---|---|
";

const REFUSED: &str = "
## Refused, with what to do

A value that passes says what is done anyway.
";

#[test]
fn what_comes_from_others_stands_in_its_page() {
    let program = definition(&algorithms()).expect("flags that differ");
    let serve = program.find_subcommand("serve").expect("the command");
    let mut page = format!("{HEAD}{ALIASES}");
    let shown = |arg: &&Arg| !arg.is_hide_set();
    for arg in serve.get_arguments().filter(shown) {
        for alias in arg.get_all_aliases().into_iter().flatten() {
            let name = arg.get_long().expect("a flag with another name has one");
            let _ = writeln!(page, "| `--{alias}` | `--{name}` |");
        }
    }
    page.push_str(REFUSED);
    for group in refused_options() {
        let _ = write!(
            page,
            "\n### {}\n\n| Option | Of | Here |\n|---|---|---|\n",
            group.heading
        );
        for option in group.options {
            let names = quoted(option.names);
            let passes = match option.passes {
                [] => String::new(),
                passes => format!(" (passes: {})", quoted(passes)),
            };
            let (of, remedy) = (option.of, option.remedy);
            let _ = writeln!(page, "| {names} | {of} | {remedy}{passes} |");
        }
    }
    expect_file![concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../docs/coming-from.md"
    )]
    .assert_eq(&page);
}

/// A remedy that names a missing flag would be no help.
#[test]
fn remedies_and_examples_name_flags_of_the_program() {
    let program = definition(&algorithms()).expect("flags that differ");
    let serve = program.find_subcommand("serve").expect("the command");
    let mut named = 0;
    let here = HEAD.lines().filter_map(|line| line.split(" | ").nth(1));
    let options = refused_options().iter().flat_map(|group| group.options);
    for text in here.chain(options.map(|option| option.remedy)) {
        for word in text.split([' ', ',', ';', '`', '.']) {
            if let Some(name) = word.strip_prefix("--") {
                assert!(has(serve, name), "{word} of: {text}");
                named += 1;
            }
        }
    }
    assert!(named > 50, "of {named} flags alone");
}

fn has(command: &Command, name: &str) -> bool {
    let mut arguments = command.get_arguments();
    arguments.any(|arg| {
        let named = arg.get_long() == Some(name)
            || arg.get_all_aliases().is_some_and(|a| a.contains(&name));
        named && !arg.is_hide_set()
    })
}

fn quoted(words: &[&str]) -> String {
    let words: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
    words.join(", ")
}
