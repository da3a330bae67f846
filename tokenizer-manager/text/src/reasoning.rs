//! Reasoning of a model, told from its answer by a pair of marks.
//!
//! ```text
//! <think>\nHm, 7 times 6.\n</think>\n\n42
//!          ╰─ reasoning ─╯             ╰┴─ answer
//! ```

#[cfg(test)]
mod tests;

use crate::marks::{Role, Symbol};
use crate::writer::{MOST_SPACE, Sink, Spaces};

/// The marks around the reasoning of a family of models.
#[derive(Debug, PartialEq, Eq)]
pub struct ReasoningFormat {
    /// Names of the format, the first of them SGLang's; the others are those of vLLM and of models
    /// with the same marks.
    pub names: &'static [&'static str],
    /// The marks before and after the reasoning.
    pub marks: [&'static str; 2],
    /// Word behind the mark before the reasoning, which is no part of it.
    pub label: &'static str,
    /// Text in a chat template, or token, by which the format is recognised.
    pub sign: &'static str,
    /// True if an output begins with reasoning even where the prompt has not opened it.
    pub always: bool,
    /// True if an output is messages of channels, one of which is reasoning. It may then reason
    /// several times.
    pub channels: bool,
    /// Tokens that end a turn, beside those of the model's configuration.
    pub ends: &'static [&'static str],
}

impl ReasoningFormat {
    const fn of(
        names: &'static [&'static str],
        marks: [&'static str; 2],
        sign: &'static str,
    ) -> Self {
        Self {
            names,
            marks,
            label: "",
            sign,
            always: false,
            channels: false,
            ends: &[],
        }
    }
}

/// All formats. The first one whose sign a model has is the model's.
pub const REASONING_FORMATS: &[ReasoningFormat] = &[
    ReasoningFormat {
        channels: true,
        ends: &["<|call|>", "<|return|>"],
        ..ReasoningFormat::of(
            &["gpt-oss", "openai_gptoss"],
            ["<|channel|>analysis<|message|>", "<|end|>"],
            "<|channel|>",
        )
    },
    ReasoningFormat {
        label: "thought",
        ..ReasoningFormat::of(&["gemma4"], ["<|channel>", "<channel|>"], "<channel|>")
    },
    ReasoningFormat::of(
        &[
            "qwen3",
            "qwen3-thinking",
            "deepseek-v3",
            "deepseek_v3",
            "glm45",
            "kimi_k2",
            "minimax",
            "minimax_m2",
        ],
        ["<think>", "</think>"],
        "</think>",
    ),
    ReasoningFormat {
        always: true,
        ..ReasoningFormat::of(
            &["deepseek-r1", "deepseek_r1"],
            ["<think>", "</think>"],
            "</think>",
        )
    },
    ReasoningFormat::of(&["mistral"], ["[THINK]", "[/THINK]"], "[/THINK]"),
    ReasoningFormat::of(&["kimi"], ["◁think▷", "◁/think▷"], "◁/think▷"),
];

impl ReasoningFormat {
    /// Returns the format of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        REASONING_FORMATS
            .iter()
            .find(|format| format.names.contains(&name))
    }

    /// Returns the format of a model: the one whose sign is in the model's chat template or is one
    /// of its tokens.
    #[must_use]
    pub fn of_model(template: &str, is_token: impl Fn(&str) -> bool) -> Option<&'static Self> {
        let known = |format: &&Self| template.contains(format.sign) || is_token(format.sign);
        REASONING_FORMATS.iter().find(known)
    }

    /// Returns the text with which reasoning begins.
    #[must_use]
    pub fn opening(&self) -> String {
        [self.marks[0], self.label].concat()
    }

    /// Returns how the output begins after a prompt that ends like this.
    #[must_use]
    pub fn turn(&self, prompt: &str) -> Turn {
        let end = prompt.trim_end();
        if end.ends_with(self.marks[1]) {
            Turn::Answer
        } else if self.always || end.ends_with(&self.opening()) {
            Turn::Reasoning
        } else {
            Turn::Open
        }
    }

    /// Returns how the output begins if it continues a message with this text.
    #[must_use]
    pub fn continued(&self, text: &str) -> Turn {
        match self.marks.map(|mark| text.rfind(mark)) {
            [Some(begin), end] if end.is_none_or(|end| end < begin) => Turn::Reasoning,
            _ => Turn::Answer,
        }
    }
}

/// The way in which an output begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// With reasoning: the prompt opened it.
    Reasoning,
    /// With the answer: the prompt closed the reasoning, or is in the middle of the answer.
    Answer,
    /// With either: reasoning if the opening mark comes first.
    Open,
}

/// Place of a symbol that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read {
    /// The symbol belongs to the reasoning or is one of its marks.
    Reasoning,
    /// The reasoning has ended, and the symbol was its closing mark.
    Closed,
    /// The symbol may open a call, which ends the reasoning.
    Interrupted,
    /// The symbol belongs to the answer.
    Answer,
    /// The symbol begins the answer, together with the white space that was held back.
    Begins,
}

/// Reader of an output that may begin with reasoning.
#[derive(Debug)]
pub(crate) struct Thought {
    turn: Turn,
    begun: bool,
    /// White space before the first other symbol.
    pub start: String,
    /// Word behind the opening mark, and the length of it that is read; `None` = the word is over.
    label: (&'static str, Option<usize>),
    spaces: Spaces,
}

const OPEN: usize = 0;
const CLOSE: usize = 1;

impl Thought {
    pub fn new(turn: Turn, label: &'static str) -> Self {
        Self {
            turn,
            label: (label, None),
            begun: false,
            start: String::new(),
            spaces: Spaces::new(true, true),
        }
    }

    /// True while the output is inside the reasoning.
    pub fn is_open(&self) -> bool {
        self.turn == Turn::Reasoning
    }

    /// Number of characters that are held back.
    pub fn held(&self) -> usize {
        let label = self.label.1.unwrap_or(0);
        self.start.chars().count() + self.spaces.held() + label
    }

    /// Reads a symbol.
    pub fn read(&mut self, symbol: Symbol, sink: &mut dyn Sink) -> Read {
        match self.turn {
            Turn::Answer => Read::Answer,
            Turn::Open => self.first(symbol),
            Turn::Reasoning => self.reason(symbol, sink),
        }
    }

    fn first(&mut self, symbol: Symbol) -> Read {
        match symbol {
            Symbol::Char(c) if c.is_whitespace() && self.start.len() < MOST_SPACE => {
                self.start.push(c);
                Read::Reasoning
            }
            Symbol::Mark(mark) if mark.role == Role::Reasoning && mark.index == OPEN => {
                self.start.clear();
                self.begun = true;
                self.turn = Turn::Reasoning;
                self.label.1 = Some(0);
                Read::Reasoning
            }
            _ => {
                self.turn = Turn::Answer;
                Read::Begins
            }
        }
    }

    /// Reads the word behind the opening mark. Returns true if the symbol belongs to it. What turns
    /// out to be another word is reasoning.
    fn reads_label(&mut self, symbol: Symbol, sink: &mut dyn Sink) -> bool {
        let (label, Some(read)) = self.label else {
            return false;
        };
        if let Symbol::Char(c) = symbol
            && label[read..].starts_with(c)
        {
            self.label.1 = Some(read + c.len_utf8()).filter(|read| *read < label.len());
            return true;
        }
        self.label.1 = None;
        self.text(&label[..read], sink);
        false
    }

    fn reason(&mut self, symbol: Symbol, sink: &mut dyn Sink) -> Read {
        if self.reads_label(symbol, sink) {
            return Read::Reasoning;
        }
        let mark = match symbol {
            Symbol::Char(c) => {
                self.begun |= !c.is_whitespace();
                self.spaces.push(c, |text| sink.reasoning(text));
                return Read::Reasoning;
            }
            Symbol::Mark(mark) => mark,
        };
        if Self::is_closing(symbol) {
            self.close();
            return Read::Closed;
        }
        if mark.role == Role::OpensCall && mark.id.is_some() {
            self.begun = true;
            return Read::Interrupted;
        }
        // Some models open the reasoning that their prompt has opened already.
        let again = mark.role == Role::Reasoning && !self.begun;
        self.begun = true;
        if again {
            self.label.1 = Some(0);
        } else {
            self.text(mark.shown(), sink);
        }
        Read::Reasoning
    }

    /// True for the mark that closes the reasoning.
    pub fn is_closing(symbol: Symbol) -> bool {
        matches!(symbol, Symbol::Mark(mark) if mark.role == Role::Reasoning && mark.index == CLOSE)
    }

    /// Ends the output, and returns the white space that is held back.
    pub fn finish(&mut self) -> String {
        self.label.1 = None;
        std::mem::take(&mut self.start)
    }

    /// Ends the reasoning.
    pub fn close(&mut self) {
        self.spaces.part();
        self.turn = Turn::Answer;
    }

    /// Adds text of the reasoning.
    pub fn text(&mut self, text: &str, sink: &mut dyn Sink) {
        for c in text.chars() {
            self.spaces.push(c, |text| sink.reasoning(text));
        }
    }
}
