//! Spans as text for people.

use std::fmt::Write as _;

use crate::CollectedSpan;

/// All spans as trees. Each line has a span's begin since the first span, its duration, its
/// name and its service. Its attributes follow below.
pub fn tree(spans: &[CollectedSpan]) -> String {
    let mut out = String::new();
    let begin = spans.iter().map(|span| span.start).min().unwrap_or(0);
    let is_root = |span: &&CollectedSpan| {
        let parent = |other: &CollectedSpan| other.span_id == span.parent_id;
        !spans.iter().any(parent)
    };
    for root in sorted(spans.iter().filter(is_root)) {
        let _ = writeln!(out, "trace {}", root.trace_id);
        branch(&mut out, spans, root, begin, "");
    }
    out
}

fn sorted<'a>(spans: impl Iterator<Item = &'a CollectedSpan>) -> Vec<&'a CollectedSpan> {
    let mut spans: Vec<_> = spans.collect();
    spans.sort_by_key(|span| (span.start, span.end, &span.service));
    spans
}

fn branch(
    out: &mut String,
    spans: &[CollectedSpan],
    span: &CollectedSpan,
    begin: u64,
    indent: &str,
) {
    let ms = |ns: u64| ns as f64 / 1e6;
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "{:9.3} ms {:9.3} ms  {indent}{}  [{}]",
        ms(span.start.saturating_sub(begin)),
        ms(span.end.saturating_sub(span.start)),
        span.name,
        span.service,
    );
    for (name, value) in &span.attributes {
        let _ = writeln!(out, "{:24}  {indent}  . {name} = {value}", "");
    }
    if let Some(error) = &span.error {
        let _ = writeln!(out, "{:24}  {indent}  ! {error}", "");
    }
    let below = spans.iter().filter(|other| other.parent_id == span.span_id);
    for child in sorted(below) {
        branch(out, spans, child, begin, &format!("{indent}    "));
    }
}
