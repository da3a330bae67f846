//! Writer of a structural tag's grammar. It goes from the end of the output to its begin, since
//! free text has to know what may follow it.

use llguidance::JsonCompileOptions;
use lockstep_text::{GrammarError, XmlStyle};
use lockstep_types::constraint::Whitespace;
use serde_json::Value;

use super::free::Free;
use super::rules::{NOTHING, Result, Rules, Way, add};
use super::tree::{Format, Node, Place};
use crate::{
    ConstraintError, Vocabulary, bounds, gbnf,
    json::{blanks_options, json_options},
};

/// Most ways in which an output may go on at one place.
const MOST_WAYS: usize = 1024;

/// Returns the grammar of a structural tag.
pub(super) fn write(
    root: &Node,
    whitespace: Whitespace,
    vocabulary: &Vocabulary,
) -> Result<String> {
    let mut writer = Writer {
        rules: Rules::new(vocabulary),
        whitespace,
    };
    let ways = writer.node(root, &[Way::End], &[])?;
    let start = writer.rules.behind(&ways)?;
    Ok(writer.rules.finish(&start))
}

/// Writer of formats.
pub(super) struct Writer<'a> {
    pub rules: Rules<'a>,
    whitespace: Whitespace,
}

impl Writer<'_> {
    /// Returns the ways in which a format begins that is followed in one of the ways `next`. `ends`
    /// are those of the tag around it.
    pub fn node(&mut self, node: &Node, next: &[Way], ends: &[String]) -> Result<Vec<Way>> {
        let place = &node.place;
        let ways = match &node.format {
            Format::Fixed(text) => self.rules.fixed(text, next)?,
            Format::Schema {
                schema,
                at,
                style,
                blanks,
            } => self.schema((schema, *style, *blanks), next, at)?,
            Format::AnyText { most: Some(0), .. } => next.to_vec(),
            Format::AnyText { excludes, most } => {
                let free = Free {
                    excludes: excludes.iter().chain(ends).map(String::as_str).collect(),
                    most: *most,
                };
                vec![Way::Other(self.rules.free(&free, next, place)?)]
            }
            Format::Regex(pattern) => {
                let pattern = bounds::whole(pattern);
                bounds::regex(pattern).map_err(|problem| place.refuse(problem))?;
                let empty = gbnf::regex_matches_nothing(pattern);
                let pattern = llguidance::regex_to_lark(pattern, "dw");
                self.rules.regular(&pattern, empty, next)?
            }
            Format::Grammar(text) => self.grammar(text, next, place)?,
            Format::Sequence(nodes) => {
                let mut ways = next.to_vec();
                for node in nodes.iter().rev() {
                    ways = self.node(node, &ways, ends)?;
                }
                ways
            }
            Format::Or(nodes) => {
                let mut ways = Vec::new();
                for node in nodes {
                    add(&mut ways, self.node(node, next, ends)?);
                }
                ways
            }
            Format::Repeat(content, least, most) => {
                self.repeat(content, (*least, *most), next, ends)?
            }
            Format::Tag(tag) => {
                let inside = self.inside(tag, next)?;
                self.tag(tag, inside)?
            }
            Format::Triggered(triggered) => self.triggered(triggered, next, (place, ends))?,
            Format::Separated {
                tags,
                separator,
                flags,
            } => self.separated(tags, (separator, *flags), next)?,
        };
        match ways.len() > MOST_WAYS {
            true => Err(place.refuse(format!(
                "the output may begin there in more than {MOST_WAYS} ways; use fewer formats"
            ))),
            false => Ok(ways),
        }
    }

    fn schema(
        &mut self,
        (schema, style, blanks): (&Value, Option<XmlStyle>, Option<u64>),
        next: &[Way],
        place: &Place,
    ) -> Result<Vec<Way>> {
        let checked = match style {
            None => bounds::schema(&schema.to_string()),
            // Schemas inside the arguments are checked again, where they are.
            Some(_) => bounds::given_schema(&schema.to_string()),
        };
        let mut checked = checked.map_err(|error| place.inside(error))?;
        let options = match blanks {
            None => json_options(self.whitespace),
            Some(blanks) => blanks_options(blanks),
        };
        let rest = self.rules.behind(next)?;
        let Some(style) = style else {
            options.apply_to(&mut checked);
            let rule = self.rules.rule(&format!("%json {checked} {rest}"))?;
            return Ok(vec![Way::Other(rule)]);
        };
        let arguments = self.arguments(&checked, style, &options);
        let arguments = arguments.map_err(|error| place.inside(error))?;
        let rule = self.rules.rule(&format!("{arguments} {rest}"))?;
        Ok(vec![Way::Other(rule)])
    }

    /// Returns the expression of arguments as tags around raw values.
    fn arguments(
        &mut self,
        schema: &Value,
        style: XmlStyle,
        options: &JsonCompileOptions,
    ) -> Result<String> {
        let arguments = style.arguments(schema, &self.rules.prefix());
        let arguments = arguments.map_err(|error| match error {
            GrammarError::Arguments {
                keyword, problem, ..
            } => ConstraintError::Refused {
                keyword,
                pointer: None,
                message: problem,
            },
            other => ConstraintError::refused(other.to_string()),
        })?;
        let rules = bounds::lark(&arguments.rules, |schema| options.apply_to(schema))?;
        self.rules.push(&rules)?;
        Ok(arguments.expression)
    }

    fn grammar(&mut self, text: &str, next: &[Way], place: &Place) -> Result<Vec<Way>> {
        let part = gbnf::part(text, &self.rules.prefix()).map_err(|error| place.inside(error))?;
        match part {
            gbnf::Part::Regex(regex) => {
                let empty = gbnf::regex_matches_nothing(&regex);
                self.rules.regular(&regex, empty, next)
            }
            gbnf::Part::Rules { start, rules } => {
                self.rules.push(&rules)?;
                let rest = self.rules.behind(next)?;
                let rule = self.rules.rule(&format!("{start} {rest}"))?;
                Ok(vec![Way::Other(rule)])
            }
        }
    }

    fn repeat(
        &mut self,
        content: &Node,
        times: (u64, Option<u64>),
        next: &[Way],
        ends: &[String],
    ) -> Result<Vec<Way>> {
        Ok(match times {
            (_, Some(0)) => next.to_vec(),
            (0 | 1, Some(1)) => {
                let mut ways = self.node(content, next, ends)?;
                if times.0 == 0 {
                    add(&mut ways, next.to_vec());
                }
                ways
            }
            (least @ (0 | 1), None) => {
                let more = self.rules.reserve();
                let ways = self.node(content, &[Way::Other(more.clone())], ends)?;
                let mut all = ways.clone();
                add(&mut all, next.to_vec());
                let body = self.rules.alternatives(&all)?;
                self.rules.define(&more, &body)?;
                if least == 0 { all } else { ways }
            }
            (least, most) => {
                let one = self.node(content, &[Way::Other(NOTHING.to_owned())], ends)?;
                let one = self.rules.behind(&one)?;
                let most = most.map_or(String::new(), |most| most.to_string());
                let rest = self.rules.behind(next)?;
                let rule = self
                    .rules
                    .rule(&format!("({one}){{{least},{most}}} {rest}"))?;
                vec![Way::Other(rule)]
            }
        })
    }
}
