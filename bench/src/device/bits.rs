//! Bits of products by the two kinds of tensor-core instructions.

use lockstep_devices::Device;
use serde_json::{Value, json};

use super::parts::Bench;
use crate::report::Table;

/// Most characters of the reason why nothing was compared; a compiler's log can be long.
const REASON: usize = 400;

/// Returns the comparison as a table of one row. A device that has one kind of instruction
/// alone has its reason there.
pub fn compare<B: Device>(bench: &mut Bench<B>) -> Table {
    let columns = ["sums", "columns", "different", "largest", "not compared"];
    let mut table = Table::new("Bits of wgmma beside mma.sync", &columns);
    table.row(match bench.backend.compare_bits() {
        Ok(found) => vec![
            json!(found.sums),
            json!(found.columns),
            json!(found.different),
            json!(found.largest),
            Value::Null,
        ],
        Err(why) => {
            let words: Vec<String> = why.to_string().split_whitespace().map(Into::into).collect();
            let reason: String = words.join(" ").chars().take(REASON).collect();
            let none = Value::Null;
            vec![
                none.clone(),
                none.clone(),
                none.clone(),
                none,
                json!(reason),
            ]
        }
    });
    table
}
