//! Tags: alone, inside free text, and with a text between them.

use super::free::Free;
use super::literal::whole_token;
use super::rules::{Result, Way, add};
use super::tree::{Flags, Place, Tag, Triggered};
use super::write::Writer;

impl Writer<'_> {
    /// Returns the rule of a tag's content and end.
    pub fn inside(&mut self, tag: &Tag, next: &[Way]) -> Result<String> {
        let mut ways = Vec::new();
        for end in &tag.ends {
            add(&mut ways, self.rules.fixed(end, next)?);
        }
        let ends: Vec<_> = tag.ends.iter().filter(|end| !end.is_empty()).collect();
        let ends: Vec<String> = ends.into_iter().cloned().collect();
        let ways = self.node(&tag.content, &ways, &ends)?;
        self.rules.behind(&ways)
    }

    /// Returns the way in which a tag begins, with the rule of what is inside.
    pub fn tag(&mut self, tag: &Tag, inside: String) -> Result<Vec<Way>> {
        self.rules.fixed(&tag.begin, &[Way::Other(inside)])
    }

    /// Returns the ways in which free text with tags inside begins.
    pub fn triggered(
        &mut self,
        triggered: &Triggered,
        next: &[Way],
        (place, ends): (&Place, &[String]),
    ) -> Result<Vec<Way>> {
        let Triggered {
            triggers,
            tags,
            excludes,
            flags,
        } = triggered;
        let text = self.rules.reserve();
        let behind = match flags.stop_after_first {
            true => next.to_vec(),
            false => vec![Way::Other(text.clone())],
        };
        let (mut firsts, mut ways) = (Vec::new(), Vec::new());
        for (tag, trigger) in tags {
            let inside = self.inside(tag, &behind)?;
            add(&mut firsts, self.tag(tag, inside.clone())?);
            let cut = whole_token(&self.rules.pieces(&tag.begin)?, triggers[*trigger].len());
            let (head, begin) = tag.begin.split_at(cut);
            let rest = self.rules.fixed(begin, &[Way::Other(inside)])?;
            add(&mut ways, self.rules.fixed(head, &rest)?);
        }
        if flags.at_least_one && flags.stop_after_first {
            return Ok(firsts);
        }
        add(&mut ways, next.to_vec());
        let excludes = excludes.iter().chain(triggers).chain(ends);
        let free = Free {
            excludes: excludes.map(String::as_str).collect(),
            most: None,
        };
        let body = self.rules.free(&free, &ways, place)?;
        self.rules.define(&text, &body)?;
        Ok(match flags.at_least_one {
            true => firsts,
            false => vec![Way::Other(text)],
        })
    }

    /// Returns the ways in which tags with a text between them begin.
    pub fn separated(
        &mut self,
        tags: &[Tag],
        (separator, flags): (&str, Flags),
        next: &[Way],
    ) -> Result<Vec<Way>> {
        let one = self.rules.reserve();
        let mut behind = next.to_vec();
        if !flags.stop_after_first {
            add(
                &mut behind,
                self.rules.fixed(separator, &[Way::Other(one.clone())])?,
            );
        }
        let mut ways = Vec::new();
        for tag in tags {
            let inside = self.inside(tag, &behind)?;
            add(&mut ways, self.tag(tag, inside)?);
        }
        let body = self.rules.alternatives(&ways)?;
        self.rules.define(&one, &body)?;
        if !flags.at_least_one {
            add(&mut ways, next.to_vec());
        }
        Ok(ways)
    }
}
