//! Threads and the cores of the machine.

use crate::resolve;
use crate::testing::{Program, algorithms, folder, llama, machine};

#[test]
fn ranks_that_take_turns_on_cores_are_told_of() {
    let cores = machine().cores.len();
    for (threads, noted) in [(cores, false), (cores + 1, true)] {
        let model = folder(&llama(), None);
        let line = format!("lockstep --threads-per-rank {threads}");
        let mut args = Program::parse_words(line.split_whitespace())
            .expect("parses")
            .args;
        args.model.model_path = Some(model.path().to_owned());
        let notes = resolve(&args, &machine(), &algorithms(), &crate::testing::Plain)
            .expect("good")
            .notes;
        let said = notes.iter().any(|note| note.contains("take turns"));
        assert_eq!(said, noted, "{line}: {notes:?}");
    }
}
