use lockstep_devices::Finding;

use super::report;

#[test]
fn problems_are_marked_with_their_remedy() {
    let well = Finding::new("Cores", "8").problem_if(false, "buy some");
    let ill = Finding::new("Memory", "1 byte").problem_if(true, "free some");
    let text = report(&[well, ill]);
    assert!(text.contains("  Cores          8\n"), "{text}");
    assert!(text.contains("! Memory         1 byte\n"), "{text}");
    assert!(
        text.contains("→ free some") && !text.contains("buy some"),
        "{text}"
    );
    assert!(text.ends_with("One problem, marked with !."), "{text}");
    assert!(report(&[]).ends_with("No problems."));
}

#[test]
fn this_machine_can_be_looked_at() {
    assert_eq!(super::run().map_err(|error| error.to_string()), Ok(0));
}
