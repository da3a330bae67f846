//! Tests of the order of client requests, against a plain ring.

use super::*;

proptest! {
    /// With one slot, requests take turns as in the naive planner's ring,
    /// whenever they come.
    #[test]
    fn requests_take_turns(
        requests in prop::collection::vec(request(), 1..16),
        first in 1usize..8,
        later in prop::collection::vec(0usize..4, 16),
    ) {
        let config = PlannerConfig {
            context_length: CONTEXT,
            max_running_requests: 1,
            overlap: false,
            ..PlannerConfig::default()
        };
        let alike = |request: Request| Request { priority: 0, timeout_ms: None, data_parallel_rank: None, ..request };
        let requests: Vec<_> = (0..).map(RequestId).zip(requests.into_iter().map(alike)).collect();
        let coming = || {
            let more = [first].into_iter().chain(later.iter().copied()).chain([16]);
            (more, requests.iter().cloned())
        };

        let mut engine = SimEngine::new(
            Planner::new(config.clone()).unwrap(),
            SimGroup::new(&config, MODEL, true),
        );
        let (more, mut queue) = coming();
        let mut ends = Vec::new();
        for more in more {
            for (id, request) in queue.by_ref().take(more) {
                let parent = parent(&request);
                engine.planner.submit_choice(Millis(0), id, parent, request).unwrap();
            }
            let ended = |engine: &SimEngine| {
                let all = engine.outputs.iter();
                all.filter(|(_, output)| output.finish.is_some()).count()
            };
            let before = ended(&engine);
            while ended(&engine) == before && engine.turn(Millis(0)).unwrap() {}
        }
        while engine.turn(Millis(0)).unwrap() {}
        for (id, output) in &engine.outputs {
            ends.extend(output.finish.is_some().then_some(*id));
        }

        let mut naive = NaivePlanner::new(&config);
        let mut worker = SimGroup::new(&config, MODEL, true);
        let (more, mut queue) = coming();
        let mut expected = Vec::new();
        let mut end = |naive: &mut NaivePlanner| {
            while let Some(plan) = naive.plan() {
                let result = worker.execute(&plan).unwrap();
                let (id, output) = naive.complete(result).unwrap();
                if output.finish.is_some() {
                    return Some(id);
                }
            }
            None
        };
        for more in more {
            for (id, request) in queue.by_ref().take(more) {
                naive.submit_choice(id, parent(&request), request);
            }
            expected.extend(end(&mut naive));
        }
        expected.extend(std::iter::from_fn(|| end(&mut naive)));
        prop_assert_eq!(ends, expected);
    }
}
