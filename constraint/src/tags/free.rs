//! Free text, up to the fixed text that follows it.

use std::collections::BTreeMap;

use lockstep_text::lark::{one_of, regex_of, text_without};

use super::literal::{Piece, join};
use super::rules::{Rules, Way};
use super::tree::{Place, shown};
use crate::ConstraintError;

/// Free text.
#[derive(Debug)]
pub(super) struct Free<'a> {
    /// Texts that it does not contain.
    pub excludes: Vec<&'a str>,
    /// Most characters.
    pub most: Option<u64>,
}

/// Terminals of one free text.
struct Terminals {
    /// Text, not empty, before a text that follows it; `None` = any.
    before: Option<String>,
    /// Text behind which nothing follows.
    last: String,
    /// Texts in which one that follows ends before their end; `None` = none follows.
    longer: Option<String>,
    /// Texts, not empty, in which none that follows is.
    none: Option<String>,
}

impl Rules<'_> {
    /// Returns the rule of free text that is followed in one of the ways `next`. The text ends
    /// where a fixed text that may follow it first occurs.
    ///
    /// # Errors
    /// [`ConstraintError::Refused`] where something else than a fixed text may follow.
    pub fn free(
        &mut self,
        free: &Free<'_>,
        next: &[Way],
        place: &Place,
    ) -> Result<String, ConstraintError> {
        let mut heads: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut may_end = false;
        for way in next {
            match way {
                Way::End => may_end = true,
                Way::Fixed { text, rest } => heads.entry(text).or_default().push(rest),
                Way::Other(_) => {
                    return Err(place.refuse(
                        "free text must be followed by a fixed text, which tells where it ends: \
                         give the tag around it an 'end', or let a 'const_string' or a 'tag' \
                         follow",
                    ));
                }
            }
        }
        let all: Vec<_> = heads.keys().copied().collect();
        check_heads(&all, place)?;
        let terminals = self.terminals(free, all.iter().copied())?;
        let mut ways = Vec::new();
        for (head, rests) in &heads {
            let ended = self.ended(head, &terminals)?;
            ways.extend(rests.iter().map(|rest| format!("({ended}) {rest}")));
        }
        if may_end {
            ways.push(format!("{}?", terminals.last));
        }
        self.rule(&ways.join("\n  | "))
    }

    fn terminals<'t>(
        &mut self,
        free: &Free<'t>,
        heads: impl Iterator<Item = &'t str> + Clone,
    ) -> Result<Terminals, ConstraintError> {
        let mut plain = free.excludes.clone();
        plain.retain(|exclude| heads.clone().all(|head| head != *exclude));
        plain.sort_unstable();
        plain.dedup();
        let is_free = plain.is_empty();
        let bounded = free.most.map(|most| format!("/(?s:.){{1,{most}}}/"));
        let without = |texts: &[&str]| match (texts.is_empty(), &bounded) {
            (true, None) => "/(?s:.)+/".to_owned(),
            (true, Some(bounded)) => bounded.clone(),
            (false, None) => text_without(texts.iter().copied()),
            (false, Some(bounded)) => {
                format!("{} & {bounded}", text_without(texts.iter().copied()))
            }
        };
        let before = match is_free && bounded.is_none() {
            true => None,
            false => Some(self.terminal(&without(&plain))?),
        };
        let all: Vec<_> = plain.iter().copied().chain(heads.clone()).collect();
        let last = self.terminal(&without(&all))?;
        let (mut longer, mut none) = (None, None);
        if heads.clone().next().is_some() {
            let body = format!("/(?s:.*){}(?s:.)+/", one_of(heads.clone()));
            longer = Some(self.terminal(&body)?);
            none = Some(self.terminal(&text_without(heads))?);
        }
        Ok(Terminals {
            before,
            last,
            longer,
            none,
        })
    }

    /// Returns the expression of free text with the text that ends it.
    fn ended(&mut self, head: &str, terminals: &Terminals) -> Result<String, ConstraintError> {
        let longer = terminals.longer.as_deref().unwrap_or_default();
        let none = terminals.none.as_deref().unwrap_or_default();
        let up_to = |text: &str| match &terminals.before {
            Some(before) => format!("{before}? /{}/", regex_of(text)),
            None => format!("/(?s:.*){}/", regex_of(text)),
        };
        let spelled = self.terminal(&format!("{} & ~{longer}", up_to(head)))?;
        let pieces = self.pieces(head)?;
        let (lead, token, behind) = match &pieces[..] {
            [Piece::Token(token, _), behind @ ..] => {
                (format!("{}?", terminals.last), token, behind)
            }
            [Piece::Text(text), Piece::Token(token, _), behind @ ..] => {
                let lead = self.terminal(&format!("{} & {none}", up_to(text)))?;
                (lead, token, behind)
            }
            _ => return Ok(spelled),
        };
        Ok(format!("{spelled} | {lead} <[{token}]> {}", join(behind)))
    }
}

/// Refuses a text that may follow, if another one always comes first.
fn check_heads(heads: &[&str], place: &Place) -> Result<(), ConstraintError> {
    for head in heads {
        let comes_first = |other: &&&str| {
            let at = head.find(**other);
            at.is_some_and(|at| at + other.len() < head.len())
        };
        if let Some(other) = heads.iter().find(comes_first) {
            return Err(place.refuse(format!(
                "free text there ends with '{}', so never with '{}', which contains it; leave one \
                 out",
                shown(other),
                shown(head)
            )));
        }
    }
    Ok(())
}
