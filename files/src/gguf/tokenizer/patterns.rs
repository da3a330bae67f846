//! Patterns by which tokenizers split texts into words, by llama.cpp's names for them. A GGUF file
//! has only such a name; the patterns are those of the models' own `tokenizer.json`.

use serde_json::{Value, json};

/// A way to split texts.
#[derive(Debug)]
pub(super) struct Pattern {
    /// Names of the way.
    names: &'static [&'static str],
    /// Expressions, each of which splits what those before it left in one piece.
    splits: &'static [&'static str],
    /// True if a word that is a token stays whole, whatever the merges are.
    pub ignore_merges: bool,
    /// True if a text begins with the begin token, where no key says so.
    pub begins: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const CJK: &str = "[一-龥぀-ゟ゠-ヿ]+";

/// A way with one expression.
const fn one(names: &'static [&'static str], splits: &'static [&'static str]) -> Pattern {
    Pattern {
        names,
        splits,
        ignore_merges: false,
        begins: false,
    }
}

/// All ways that are known.
const KNOWN: [Pattern; 9] = [
    Pattern {
        ignore_merges: true,
        begins: true,
        ..one(
            &[
                "llama-bpe",
                "llama3",
                "llama-v3",
                "falcon3",
                "pixtral",
                "lfm2",
                "midm-2.0",
            ],
            &[LLAMA3],
        )
    },
    one(&["dbrx", "smaug-bpe", "chatglm-bpe", "glm4"], &[LLAMA3]),
    one(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "stablelm2",
            "hunyuan",
            "megrez",
            "grok-2",
        ],
        &[QWEN2],
    ),
    one(&["qwen35"], &[QWEN35]),
    one(
        &[
            "gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "exaone4", "trillion",
        ],
        &[GPT2],
    ),
    one(
        &[
            "starcoder",
            "refact",
            "command-r",
            "smollm",
            "codeshell",
            "exaone",
            "minerva-7b",
        ],
        &[r"\p{N}", GPT2],
    ),
    one(&["gpt-4o", "llama4", "kanana2", "minimax-m2"], &[GPT4O]),
    Pattern {
        ignore_merges: true,
        begins: true,
        ..one(&["tekken"], &[TEKKEN])
    },
    one(
        &["deepseek-v3", "hunyuan-dense"],
        &[r"\p{N}{1,3}", CJK, DEEPSEEK3],
    ),
];

impl Pattern {
    /// Returns the way of this name; `None` if it is not known.
    pub fn named(name: &str) -> Option<&'static Self> {
        KNOWN.iter().find(|pattern| pattern.names.contains(&name))
    }

    /// Returns the way as `tokenizer.json` has it.
    pub fn pre_tokenizer(&self) -> Value {
        let split = |pattern: &&str| {
            json!({
                "type": "Split",
                "pattern": {"Regex": pattern},
                "behavior": "Isolated",
                "invert": false,
            })
        };
        let mut steps: Vec<_> = self.splits.iter().map(split).collect();
        steps.push(json!({
            "type": "ByteLevel",
            "add_prefix_space": false,
            "trim_offsets": true,
            "use_regex": false,
        }));
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}
