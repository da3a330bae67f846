//! Ranks of several DP ranks, as threads.

use std::{sync::Arc, thread};

use lockstep_backend::{Axis, Backend, Groups};
use lockstep_collective::local_group;
use lockstep_model::Topology;

/// Makes a rank's backend from its groups.
pub type WorldFactory<B> = Arc<dyn Fn(Groups) -> B + Send + Sync>;

/// Runs `work` on every rank with its backend and its place.
pub fn on_ranks<B: Backend + 'static, T: Send + 'static>(
    factory: &WorldFactory<B>,
    tp_size: usize,
    dp_size: usize,
    work: impl Fn(B, Topology) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let work = Arc::new(work);
    let ranks = local_group(tp_size).into_iter().map(|collective| {
        let (factory, work) = (factory.clone(), work.clone());
        thread::spawn(move || {
            let groups = Groups::form(Box::new(collective), dp_size).unwrap();
            let backend = factory(groups);
            let topology = Topology::of(&backend, Axis::World);
            work(backend, topology)
        })
    });
    let ranks: Vec<_> = ranks.collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}
