use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use lockstep_constraint::{Cancel, Compiler, ConstraintError, Matcher, Vocabulary};
use lockstep_sampling::{TokenConstraint as _, allows};
use lockstep_text::{
    AnswerOptions, AnswerParser, Beside, CallableTool, Calls, GrammarError, OutputOptions,
    OutputText, Sink, Tokenizer, TokenizerConfig, ToolFormat, ToolSchemas, WantedCalls,
};
use lockstep_types::constraint::{Constraint, ConstraintKind};
use serde_json::{Value, json};

/// Id of the first token that the demo model does not have.
pub const FIRST_MARK: u32 = 4096;
/// Width of the logits.
pub const WIDTH: usize = 5100;
/// The demo model's end tokens.
pub const ENDS: [u32; 2] = [0, 2];

/// Marks of each format.
pub fn marks(format: &ToolFormat) -> &'static [&'static str] {
    format.marks()
}

/// A tokenizer with the compiler of its vocabulary.
pub struct Model {
    pub tokenizer: Tokenizer,
    pub compiler: Compiler,
    /// Token of each byte that is one.
    bytes: BTreeMap<u8, u32>,
}

/// Returns the demo model's tokenizer, with a format's marks as tokens or without. Every second
/// mark is a special token.
pub fn model(format: &'static ToolFormat, as_tokens: bool) -> Arc<Model> {
    static MADE: Mutex<BTreeMap<(&str, bool), Arc<Model>>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let known = made.entry((format.names[0], as_tokens));
    known
        .or_insert_with(|| Arc::new(Model::new(format, as_tokens)))
        .clone()
}

impl Model {
    fn new(format: &'static ToolFormat, as_tokens: bool) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/lockstep-demo-7m");
        let bytes = std::fs::read(folder.join("tokenizer.json")).unwrap();
        let mut json: Value = serde_json::from_slice(&bytes).unwrap();
        let added = json["added_tokens"].as_array_mut().unwrap();
        for (at, mark) in marks(format).iter().enumerate().filter(|_| as_tokens) {
            added.push(json!({
                "id": FIRST_MARK as usize + at, "content": mark, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false, "special": at % 2 == 0,
            }));
        }
        let json = serde_json::to_vec(&json).unwrap();
        let config = TokenizerConfig::default();
        let tokenizer = Tokenizer::from_json(&json, config, Path::new("t.json")).unwrap();
        let vocabulary = Vocabulary::new(&tokenizer, WIDTH, &ENDS).unwrap();
        let single = (0..FIRST_MARK).filter_map(|id| match tokenizer.token_bytes(id) {
            Some([byte]) if !tokenizer.is_special(id) => Some((*byte, id)),
            _ => None,
        });
        Self {
            bytes: single.collect(),
            compiler: Compiler::new(Arc::new(vocabulary)),
            tokenizer,
        }
    }

    /// Returns the tokens of a text: marks by their token, everything else byte by byte.
    pub fn spell(&self, text: &str) -> Vec<u32> {
        match self
            .tokenizer
            .token_to_id(text)
            .filter(|id| *id >= FIRST_MARK)
        {
            Some(id) => vec![id],
            None => text.bytes().map(|byte| self.bytes[&byte]).collect(),
        }
    }

    /// Returns the token of a byte.
    pub fn byte(&self, byte: u8) -> Option<u32> {
        self.bytes.get(&byte).copied()
    }

    /// Returns the matcher of a grammar.
    pub fn matcher(&self, grammar: &str) -> Result<Matcher, ConstraintError> {
        let constraint = Constraint::new(ConstraintKind::Lark, grammar);
        self.compiler.check(&constraint, &Cancel::default())?;
        self.compiler.matcher(&constraint)
    }

    /// Returns true if a grammar allows a text, tokenized as the model would.
    pub fn accepts(&self, grammar: &str, text: &str) -> bool {
        let mut matcher = self
            .matcher(grammar)
            .unwrap_or_else(|e| panic!("{e}: {grammar}"));
        for token in self.tokenizer.encode(text, false).unwrap() {
            if !allows(matcher.allowed().unwrap(), token) {
                return false;
            }
            matcher.take(token).unwrap();
        }
        matcher.is_fulfilled().unwrap()
    }
}

/// A tool of a test.
#[derive(Debug, Clone)]
pub struct Tool {
    pub name: String,
    pub schema: Option<Value>,
    pub strict: bool,
    /// True if the arguments are not held to the schema.
    pub loose: bool,
}

/// Returns the tools in the chat API's form.
pub fn definitions(tools: &[Tool]) -> Vec<Value> {
    let one = |tool: &Tool| {
        let mut function = json!({"name": tool.name});
        if let Some(schema) = &tool.schema {
            function["parameters"] = schema.clone();
        }
        json!({"type": "function", "function": function})
    };
    tools.iter().map(one).collect()
}

/// Returns the grammar of calls.
pub fn grammar(
    format: &ToolFormat,
    model: &Model,
    tools: &[Tool],
    beside: Beside<'_>,
    several: bool,
) -> Result<String, GrammarError> {
    let tools = tools.iter().map(|tool| CallableTool {
        name: &tool.name,
        schema: tool.schema.as_ref().filter(|_| !tool.loose),
        known: tool.schema.as_ref(),
        strict: tool.strict,
    });
    let tools: Vec<_> = tools.collect();
    let wanted = WantedCalls {
        tools: &tools,
        beside,
        several,
    };
    format.grammar(&model.tokenizer, &wanted)
}

/// The joined parts of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    pub text: String,
    pub calls: Vec<(String, String)>,
}

impl Sink for Answer {
    fn text(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn reasoning(&mut self, text: &str) {
        panic!("there is no reasoning: {text}");
    }

    fn call(&mut self, name: &str, _: Option<&str>) {
        self.calls.push((name.to_owned(), String::new()));
    }

    fn arguments(&mut self, text: &str) {
        self.calls.last_mut().unwrap().1.push_str(text);
    }
}

/// Reads tokens by the parser of a format, with their text cut behind these numbers of characters
/// too. `alone` = the output has either calls or an answer.
pub fn parse(
    format: &'static ToolFormat,
    model: &Model,
    (tools, alone): (&[Tool], bool),
    ids: &[u32],
    cuts: impl Fn(usize) -> bool,
) -> Answer {
    let schemas = ToolSchemas::new(&definitions(tools));
    let schemas = Arc::new(match alone {
        true => schemas.alone(),
        false => schemas.held(),
    });
    let options = AnswerOptions {
        calls: Calls::Parsed(format, schemas),
        skip_special_tokens: true,
        ..AnswerOptions::default()
    };
    let mut parser = AnswerParser::new(&model.tokenizer, &options);
    let shown = parser.special_marks(&model.tokenizer);
    let options = OutputOptions {
        shown_special_tokens: &shown,
        ..OutputOptions::default()
    };
    let mut text = OutputText::new(model.tokenizer.clone(), options).unwrap();
    let (mut answer, mut fed) = (Answer::default(), 0);
    let mut feed = |parser: &mut AnswerParser, piece: &str, answer: &mut Answer| {
        let mut from = 0;
        for (at, _) in piece.char_indices() {
            if at > 0 && cuts(fed) {
                parser.text(&piece[from..at], answer);
                from = at;
            }
            fed += 1;
        }
        parser.text(&piece[from..], answer);
    };
    for id in ids {
        let token = text.push(*id);
        parser.token(*id, token.text_end);
        feed(&mut parser, token.text, &mut answer);
    }
    feed(&mut parser, text.finish(), &mut answer);
    parser.finish(false, &mut answer);
    answer
}

/// Returns true if a validator of other people finds that an instance fulfils a schema.
pub fn fulfils(schema: &Value, instance: &Value) -> bool {
    let mut schemas = boon::Schemas::new();
    let mut compiler = boon::Compiler::new();
    compiler
        .add_resource("http://x/schema.json", schema.clone())
        .unwrap();
    let index = compiler
        .compile("http://x/schema.json", &mut schemas)
        .unwrap();
    schemas.validate(instance, index).is_ok()
}
