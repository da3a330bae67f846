//! A plain recogniser of structural tags: by trying all places where a part may end. It knows
//! schemas that enumerate words, and the expressions of [`matches`].

use std::collections::BTreeSet;

use serde_json::Value;

/// Texts with which what comes next may begin.
type Follow = BTreeSet<String>;
type Ends = BTreeSet<usize>;

/// Returns true if a format accepts a whole text.
pub fn accepts(format: &Value, text: &str) -> bool {
    let oracle = Oracle { text };
    let none = BTreeSet::new();
    let ends = oracle.ends(format, 0, &none, &none);
    ends.contains(&text.len())
}

/// Returns true if an expression matches a text.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern {
        "[ab>]*" => text.chars().all(|c| "ab>".contains(c)),
        "a[0-9]?" => {
            ["a"].contains(&text)
                || text.len() == 2 && {
                    let digit = text.strip_prefix('a');
                    digit.is_some_and(|digit| digit.chars().all(|c| c.is_ascii_digit()))
                }
        }
        other => panic!("{other}"),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        other => list(other)
            .iter()
            .map(|text| text.as_str().unwrap())
            .collect(),
    }
}

fn set(texts: impl IntoIterator<Item = impl ToString>) -> Follow {
    texts.into_iter().map(|text| text.to_string()).collect()
}

/// Returns the fixed texts with which a format may begin, and whether it may be empty.
fn first(format: &Value) -> (Follow, bool) {
    let begins = || {
        set(list(&format["tags"])
            .iter()
            .map(|tag| tag["begin"].as_str().unwrap()))
    };
    match format["type"].as_str().unwrap() {
        "const_string" => (set(texts(&format["value"])), false),
        "tag" => (set(texts(&format["begin"])), false),
        "sequence" => {
            let mut all = Follow::new();
            for element in list(&format["elements"]) {
                let (own, empty) = first(element);
                all.extend(own);
                if !empty {
                    return (all, false);
                }
            }
            (all, true)
        }
        "or" => {
            let (mut all, mut empty) = (Follow::new(), false);
            for element in list(&format["elements"]) {
                let own = first(element);
                all.extend(own.0);
                empty |= own.1;
            }
            (all, empty)
        }
        "optional" | "star" => (first(&format["content"]).0, true),
        "plus" => first(&format["content"]),
        "any_text" => (Follow::new(), format["max_chars"] == 0),
        "triggered_tags" => match format["at_least_one"] == true {
            true => (begins(), false),
            false => (Follow::new(), true),
        },
        "tags_with_separator" => (begins(), format["at_least_one"] != true),
        _ => (Follow::new(), false),
    }
}

struct Oracle<'a> {
    text: &'a str,
}

impl Oracle<'_> {
    /// Returns where a format may end that begins at `from`. `follow` is what may come next, and
    /// `outer` the ends of the tag around it.
    fn ends(&self, format: &Value, from: usize, follow: &Follow, outer: &Follow) -> Ends {
        let one = |ends: Ends, format: &Value, follow: &Follow| -> Ends {
            let ends = ends.iter();
            ends.flat_map(|at| self.ends(format, *at, follow, outer))
                .collect()
        };
        match format["type"].as_str().unwrap() {
            "const_string" => self.fixed(from, &texts(&format["value"])),
            "json_schema" => {
                let words = list(&format["json_schema"]["enum"]).iter();
                let words: Vec<String> = words.map(ToString::to_string).collect();
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                self.fixed(from, &words)
            }
            "regex" => self.regex(format["pattern"].as_str().unwrap(), from, follow),
            "any_text" if format["max_chars"] == 0 => Ends::from([from]),
            "any_text" => {
                let excludes = set(texts(&format["excludes"]));
                let most = format["max_chars"].as_u64();
                let ends = self.free(from, follow, &excludes.union(outer).cloned().collect());
                let short = |end: &usize| {
                    most.is_none_or(|most| self.text[from..*end].chars().count() as u64 <= most)
                };
                ends.into_iter().filter(short).collect()
            }
            "sequence" => {
                let elements = list(&format["elements"]);
                let mut ends = Ends::from([from]);
                for (at, element) in elements.iter().enumerate() {
                    let mut next = Follow::new();
                    let mut open = true;
                    for later in &elements[at + 1..] {
                        if open {
                            let (own, empty) = first(later);
                            next.extend(own);
                            open = empty;
                        }
                    }
                    if open {
                        next.extend(follow.clone());
                    }
                    ends = one(ends, element, &next);
                }
                ends
            }
            "or" => {
                let elements = list(&format["elements"]).iter();
                elements
                    .flat_map(|element| self.ends(element, from, follow, outer))
                    .collect()
            }
            kind @ ("optional" | "star" | "plus") => {
                let mut all = match kind {
                    "plus" => Ends::new(),
                    _ => Ends::from([from]),
                };
                let mut last = Ends::from([from]);
                while !last.is_empty() {
                    last = one(last, &format["content"], follow);
                    last.retain(|end| !all.contains(end));
                    all.extend(last.clone());
                    if kind == "optional" {
                        break;
                    }
                }
                all
            }
            "tag" => self.tag(format, from, follow),
            "triggered_tags" => self.triggered(format, from, follow, outer),
            "tags_with_separator" => self.separated(format, from, follow),
            other => panic!("{other}"),
        }
    }

    fn fixed(&self, from: usize, words: &[&str]) -> Ends {
        let words = words
            .iter()
            .filter(|word| self.text[from..].starts_with(**word));
        words.map(|word| from + word.len()).collect()
    }

    /// Returns the places behind `from`, with that itself.
    fn places(&self, from: usize) -> impl Iterator<Item = usize> {
        (from..=self.text.len()).filter(|at| self.text.is_char_boundary(*at))
    }

    /// Returns where free text may end: before the first text that may follow, or at the end.
    fn free(&self, from: usize, follow: &Follow, excludes: &Follow) -> Ends {
        let has = |end: usize, texts: &Follow| {
            texts
                .iter()
                .any(|text| self.text[from..end].contains(text.as_str()))
        };
        let plain: Follow = excludes.difference(follow).cloned().collect();
        let comes_here = |at: usize| {
            let heads = follow
                .iter()
                .filter(|head| self.text[at..].starts_with(head.as_str()));
            heads.into_iter().any(|head| {
                let last = self.text[..at + head.len()].char_indices().next_back();
                !has(last.unwrap().0.max(from), follow)
            })
        };
        let ends = self.places(from).filter(|at| {
            let is_last = *at == self.text.len() && !has(*at, follow);
            !has(*at, &plain) && (is_last || comes_here(*at))
        });
        ends.collect()
    }

    /// Returns where an expression may end: where, with a text behind it, it first can.
    fn regex(&self, pattern: &str, from: usize, follow: &Follow) -> Ends {
        let ends = |at: usize| matches(pattern, &self.text[from..at]);
        let pairs = self.places(from).filter(|at| ends(*at)).flat_map(|at| {
            let heads = follow
                .iter()
                .filter(move |head| self.text[at..].starts_with(head.as_str()));
            heads.map(move |head| (at + head.len(), at))
        });
        let pairs: Vec<_> = pairs.collect();
        let first = pairs.iter().map(|(end, _)| *end).min();
        let pairs = pairs.into_iter().filter(|(end, _)| Some(*end) == first);
        pairs.map(|(_, at)| at).collect()
    }

    fn tag(&self, tag: &Value, from: usize, follow: &Follow) -> Ends {
        let begin = texts(&tag["begin"]);
        let ends = texts(&tag["end"]);
        let mut next = set(ends.iter().filter(|end| !end.is_empty()));
        let outer = next.clone();
        if ends.contains(&"") {
            next.extend(follow.clone());
        }
        let insides = self.fixed(from, &begin).into_iter();
        let insides = insides.flat_map(|at| self.ends(&tag["content"], at, &next, &outer));
        insides.flat_map(|at| self.fixed(at, &ends)).collect()
    }

    fn triggered(&self, format: &Value, from: usize, follow: &Follow, outer: &Follow) -> Ends {
        let triggers = set(texts(&format["triggers"]));
        let stops = format["stop_after_first"] == true;
        let mut excludes = set(texts(&format["excludes"]));
        excludes.extend(outer.clone());
        let next: Follow = triggers.union(follow).cloned().collect();
        let tags = |at: usize| -> Ends {
            let tags = list(&format["tags"]).iter();
            let follow = if stops { follow } else { &Follow::new() };
            tags.flat_map(|tag| self.tag(tag, at, follow)).collect()
        };
        let (mut open, mut seen, mut all) = (Vec::new(), Ends::new(), Ends::new());
        match format["at_least_one"] == true {
            true if stops => return tags(from),
            true => open.extend(tags(from)),
            false => open.push(from),
        }
        while let Some(begin) = open.pop() {
            if !seen.insert(begin) {
                continue;
            }
            for end in self.free(begin, &next, &excludes) {
                let behind = tags(end);
                match stops && format["at_least_one"] != true {
                    true => all.extend(behind),
                    false => open.extend(behind),
                }
                let is_trigger = triggers
                    .iter()
                    .any(|one| self.text[end..].starts_with(&**one));
                if !is_trigger
                    || follow
                        .iter()
                        .any(|one| self.text[end..].starts_with(&**one))
                {
                    all.insert(end);
                }
            }
        }
        all
    }

    fn separated(&self, format: &Value, from: usize, follow: &Follow) -> Ends {
        let separator = texts(&format["separator"]);
        let stops = format["stop_after_first"] == true;
        let mut next = follow.clone();
        if !stops {
            next.extend(set(&separator));
        }
        let tags = |at: usize| -> Ends {
            let tags = list(&format["tags"]).iter();
            tags.flat_map(|tag| self.tag(tag, at, &next)).collect()
        };
        let mut all = Ends::new();
        let mut last = tags(from);
        while !last.is_empty() {
            last.retain(|end| !all.contains(end));
            all.extend(last.clone());
            if stops {
                break;
            }
            let begins = last.iter().flat_map(|end| self.fixed(*end, &separator));
            last = begins.flat_map(tags).collect();
        }
        if format["at_least_one"] != true {
            all.insert(from);
        }
        all
    }
}
