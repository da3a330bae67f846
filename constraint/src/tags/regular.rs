//! Regular expressions, up to the fixed text that follows them.

use lockstep_text::lark::{one_of, regex_of};

use super::literal::{Piece, join};
use super::rules::{Rules, Way};
use crate::ConstraintError;

impl Rules<'_> {
    /// Returns the ways in which a regular expression begins, which may match nothing, if it is
    /// followed in one of the ways `next`. Where that is a fixed text, the two are one terminal,
    /// which ends where it first can.
    pub fn regular(
        &mut self,
        regex: &str,
        may_be_empty: bool,
        next: &[Way],
    ) -> Result<Vec<Way>, ConstraintError> {
        let heads = next.iter().filter_map(|way| match way {
            Way::Fixed { text, .. } => Some(text.as_str()),
            Way::End | Way::Other(_) => None,
        });
        let maybe = if may_be_empty { "?" } else { "" };
        let full = self.terminal(&format!("/{regex}/ & /(?s:.)+/"))?;
        if heads.clone().count() < next.len() || next.is_empty() {
            let rest = self.behind(next)?;
            let rule = self.rule(&format!("{full}{maybe} {rest}"))?;
            return Ok(vec![Way::Other(rule)]);
        }
        let any = self.terminal(&format!("/{regex}/"))?;
        let longer = format!("{any} /{}(?s:.)+/", one_of(heads));
        let longer = self.terminal(&longer)?;
        let mut ways = Vec::new();
        for way in next {
            let Way::Fixed { text, rest } = way else {
                continue;
            };
            let ended = format!("{any} /{}/ & ~{longer}", regex_of(text));
            let ended = self.terminal(&ended)?;
            ways.push(format!("{ended} {rest}"));
            let pieces = self.pieces(text)?;
            let (lead, token, behind) = match &pieces[..] {
                [Piece::Token(token, _), behind @ ..] => (format!("{full}{maybe}"), token, behind),
                [Piece::Text(text), Piece::Token(token, _), behind @ ..] => {
                    let lead = self.terminal(&format!("{any} /{}/", regex_of(text)))?;
                    (lead, token, behind)
                }
                _ => continue,
            };
            ways.push(format!("{lead} <[{token}]> {} {rest}", join(behind)));
        }
        let rule = self.rule(&ways.join("\n  | "))?;
        Ok(vec![Way::Other(rule)])
    }
}
