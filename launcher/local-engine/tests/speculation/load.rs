//! Jobs that come and leave, and a check of the engine afterwards.

use lockstep_local_engine::{Completion, LocalEngine};

use crate::requests::Job;

/// Lets jobs come and leave turn by turn, until all have ended. Calls `before` before every
/// step, and checks the planner's books after it. `what` names the run in messages.
pub fn run(
    what: &str,
    engine: &mut LocalEngine,
    jobs: &[Job],
    mut before: impl FnMut(&mut LocalEngine),
) -> Vec<Completion> {
    let mut completions = vec![Completion::default(); jobs.len()];
    let mut ids = vec![None; jobs.len()];
    let (mut turn, mut ended) = (0, 0);
    while ended < jobs.len() {
        for (job, id) in jobs.iter().zip(&mut ids) {
            if job.arrival == turn {
                *id = Some(engine.submit(job.request.clone()).unwrap());
            }
            if let (Some(id), Some(patience)) = (*id, job.patience)
                && turn == job.arrival + patience
            {
                engine.abort(id);
            }
        }
        turn += 1;
        before(engine);
        let stepped = engine.step();
        assert!(stepped.is_ok(), "{what}, turn {turn}: {stepped:?}");
        let books = engine.check_integrity();
        assert!(books.is_ok(), "{what}, turn {turn}: {books:?}");
        for (id, output) in engine.take_outputs() {
            let job = ids.iter().position(|known| *known == Some(id)).unwrap();
            assert!(completions[job].finish.is_none(), "an output after the end");
            ended += usize::from(output.finish.is_some());
            completions[job].add(output);
        }
    }
    // Rows of aborted requests may still be in flight.
    while engine.step().unwrap() {}
    assert_eq!(engine.take_outputs().count(), 0);
    completions
}

/// Asserts that an engine without requests holds nothing but its prefix cache, which can be
/// emptied.
pub fn idle(engine: &mut LocalEngine) {
    engine.check_integrity().unwrap();
    let load = engine.load();
    let busy = (
        load.running_requests,
        load.waiting_requests,
        load.waiting_tokens,
        load.kv_tokens_used,
        load.leaked_pages,
        load.kv_states_used,
        load.leaked_states,
        load.steps_in_flight,
    );
    assert_eq!(busy, (0, 0, 0, 0, 0, 0, 0, 0), "{load:?}");
    assert_eq!(engine.flush_cache().unwrap(), load.kv_tokens_cached);
    let load = engine.load();
    assert_eq!((load.kv_tokens_cached, load.kv_states_cached), (0, 0));
    engine.check_integrity().unwrap();
}
