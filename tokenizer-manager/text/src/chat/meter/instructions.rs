//! Charges in compiled templates.

use std::collections::BTreeMap;

use minijinja::machinery::{
    CodeGenerator, Instruction, Instructions, eval, make_string_output, parse,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, Value};

/// Names of filters that charge; no template can spell them.
pub(super) const CONCAT: &str = "%concat";
pub(super) const MADE: &str = "%made";
pub(super) const EXISTING: &str = "%existing";
pub(super) const NESTED: &str = "%nested";
pub(super) const ASSIGNED: &str = "%assigned";
pub(super) const REPEATED: &str = "%repeated";
pub(super) const COMPARED: &str = "%compared";

/// Says that a filter is looked up each time.
const NOT_CACHED: u8 = !0;

/// A compiled template that charges what it makes.
#[derive(Debug)]
pub(in crate::chat) struct Metered {
    main: Instructions<'static>,
    blocks: BTreeMap<&'static str, Instructions<'static>>,
}

impl Metered {
    /// Compiles a template, which stays in memory to the program's end: a program loads the
    /// templates of one model.
    pub(in crate::chat) fn compile(
        name: &'static str,
        source: String,
        syntax: SyntaxConfig,
    ) -> Result<Self, Error> {
        let source: &'static str = source.leak();
        let template = parse(source, name, syntax)?;
        let mut generator = CodeGenerator::new(name, source);
        generator.compile_stmt(&template);
        let (main, blocks) = generator.finish();
        Ok(Self {
            main: metered(&main),
            blocks: blocks
                .iter()
                .map(|(name, block)| (*name, metered(block)))
                .collect(),
        })
    }

    /// Renders; the filters of this module have to be in the environment.
    pub(in crate::chat) fn render(
        &self,
        environment: &Environment<'_>,
        context: Value,
    ) -> Result<String, Error> {
        let mut text = String::new();
        let mut out = make_string_output(&mut text);
        eval(
            environment,
            &self.main,
            context,
            &self.blocks,
            &mut out,
            AutoEscape::None,
        )?;
        Ok(text)
    }
}

fn metered(plain: &Instructions<'static>) -> Instructions<'static> {
    let count = (0u32..).take_while(|at| plain.get(*at).is_some()).count() as u32;
    let all = || (0..count).filter_map(|at| Some((at, plain.get(at)?)));
    // Where each instruction begins once charges stand around it.
    let mut places = Vec::with_capacity(count as usize + 1);
    let mut next = 0;
    for (_, instruction) in all() {
        places.push(next);
        next += around(instruction, |_| 0).len() as u32;
    }
    places.push(next);
    let place = |target: u32| places.get(target as usize).copied().unwrap_or(next);
    let mut with_charges = Instructions::new(plain.name(), plain.source());
    for (at, instruction) in all() {
        for instruction in around(instruction, place) {
            match (plain.get_span(at), plain.get_line(at)) {
                (Some(span), _) => with_charges.add_with_span(instruction, span),
                (None, Some(line)) => {
                    with_charges.add_with_line(instruction, u16::try_from(line).unwrap_or(u16::MAX))
                }
                (None, None) => with_charges.add(instruction),
            };
        }
    }
    with_charges
}

/// An instruction with its charges, and its target where it jumps.
fn around(
    instruction: &Instruction<'static>,
    place: impl Fn(u32) -> u32,
) -> Vec<Instruction<'static>> {
    use Instruction as I;
    let filter = |name, count| I::ApplyFilter(name, Some(count), NOT_CACHED);
    let own = instruction.clone();
    match own {
        I::EmitRaw(text) => vec![I::LoadConst(Value::from(text)), I::Emit],
        I::StringConcat => vec![filter(CONCAT, 2)],
        I::Add => vec![own, filter(MADE, 1)],
        I::Slice | I::ApplyFilter(..) | I::CallMethod(..) | I::CallObject(_) => {
            vec![own, filter(EXISTING, 1)]
        }
        I::CallFunction(..) => vec![own, filter(MADE, 1)],
        I::BuildList(_) | I::BuildTuple(_) | I::BuildMap(_) => vec![own, filter(NESTED, 1)],
        // Two values go through a filter, which gives them back as a list.
        I::SetAttr(_) => vec![filter(ASSIGNED, 2), I::UnpackList(2), own],
        I::Mul => vec![filter(REPEATED, 2), I::UnpackList(2), own, filter(MADE, 1)],
        I::Eq
        | I::Ne
        | I::Gt
        | I::Gte
        | I::Lt
        | I::Lte
        | I::In
        | I::CompareAndPreserve(_)
        | I::PerformTest(_, Some(2), _) => vec![filter(COMPARED, 2), I::UnpackList(2), own],
        I::Iterate(target) => vec![I::Iterate(place(target))],
        I::Jump(target) => vec![I::Jump(place(target))],
        I::JumpIfFalse(target) => vec![I::JumpIfFalse(place(target))],
        I::JumpIfFalseOrPop(target) => vec![I::JumpIfFalseOrPop(place(target))],
        I::JumpIfTrueOrPop(target) => vec![I::JumpIfTrueOrPop(place(target))],
        I::BuildMacro(name, target, flags) => vec![I::BuildMacro(name, place(target), flags)],
        _ => vec![own],
    }
}
