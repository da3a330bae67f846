//! Work of constraints, which is counted.

use lockstep_constraint::{Cancel, Compiler, ConstraintError};
use serde_json::json;

use crate::support::{schema, vocabulary};

/// Two compilers count alike, whatever they compiled before.
#[test]
fn work_is_counted_and_refuses_what_takes_more() {
    let pattern = json!({"type": "string", "pattern": "^[ab]*a[ab]{7}$"});
    let own = schema(&json!({"type": "array", "items": pattern}));
    let cancel = Cancel::default();
    let [one, other] = [(); 2].map(|()| Compiler::new(vocabulary()));
    assert_eq!(one.check(&own, &cancel), Ok(()));
    let work = one.work(&own).unwrap();
    let before = schema(&json!({"type": "integer"}));
    assert_eq!(other.check(&before, &cancel), Ok(()));
    assert!(other.work(&before).unwrap() < work);
    let within = |most| other.check_within(&own, &cancel, most);
    assert_eq!(within(work - 1), Err(ConstraintError::Heavy));
    assert_eq!(other.work(&own), None);
    assert_eq!(within(work), Ok(()));
    assert_eq!(other.work(&own), Some(work));
    // It is kept, and still takes more.
    assert_eq!(within(work - 1), Err(ConstraintError::Heavy));
}
