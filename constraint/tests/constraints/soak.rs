use std::fs;

use serde_json::json;

use crate::support::{check, compact, matcher, regex, schema};

/// Constraints that are compiled before memory is looked at, so that caches are full.
const WARM: usize = 1000;
/// Constraints of the whole.
const ALL: usize = 10_000;
/// Most bytes by which memory may grow behind the first [`WARM`]. What is kept of a constraint
/// takes up to some MiB, and is of another size for each.
const SLACK: u64 = 64 << 20;

/// Returns the bytes of memory in use.
fn resident() -> u64 {
    let fields = fs::read_to_string("/proc/self/statm").unwrap();
    let pages = fields.split(' ').nth(1).unwrap();
    pages.parse::<u64>().unwrap() * 4096
}

/// Compiles thousands of different constraints, one in eight of which is refused, and takes some
/// tokens of each.
#[test]
#[ignore = "takes minutes"]
fn memory_stays_flat_over_thousands_of_constraints() {
    let mut before = 0;
    for at in 0..ALL {
        if at == WARM {
            before = resident();
        }
        if at % 1000 == 0 {
            println!("{at} constraints: {} MiB", resident() >> 20);
        }
        let own = json!({"type": "object", "properties": {
            format!("name{at}"): {"type": "string", "maxLength": 1 + at % 50},
            "kind": {"enum": ["a", "b", format!("c{at}")]},
            "list": {"type": "array", "items": {"type": "integer", "minimum": at}},
        }, "required": [format!("name{at}"), "kind"], "additionalProperties": false});
        let constraint = match at % 8 {
            0..3 => compact(&own),
            3..6 => schema(&own),
            6 => regex(&format!("[a-f]{{2,{}}}-{at}", 3 + at % 90)),
            _ => {
                check(&regex(&format!("(?={at})"))).unwrap_err();
                continue;
            }
        };
        let mut output = matcher(&constraint);
        lockstep_sampling::TokenConstraint::allowed(&mut output).unwrap();
    }
    let after = resident();
    println!("{WARM}: {} MiB, {ALL}: {} MiB", before >> 20, after >> 20);
    assert!(after < before + SLACK, "from {before} to {after} bytes");
}
