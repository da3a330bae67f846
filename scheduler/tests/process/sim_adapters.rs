//! Adapters of a simulated worker, which holds every plan against what it was told to place.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
};

use lockstep_proto::pb::lockstep::{
    AdapterOrder, AdapterRead, ReadAdapter, adapter_order::Kind, adapter_read,
};
use lockstep_types::{adapter::Adapter, step::PlanPart};

/// Orders that rank 0 got, in words.
pub type Orders = Arc<Mutex<Vec<String>>>;

/// Adapters of one rank.
#[derive(Default)]
pub struct SimAdapters {
    /// Content of the adapter that was read last.
    read: Option<u128>,
    /// By place: content.
    places: BTreeMap<u16, u128>,
    /// By slot: the adapter that it was opened with.
    slots: BTreeMap<u32, Option<Adapter>>,
    orders: Orders,
}

impl SimAdapters {
    /// Makes a worker without adapters, which notes its orders if it is rank 0.
    pub fn new(rank: u32, orders: &Orders) -> Self {
        Self {
            orders: match rank {
                0 => orders.clone(),
                _ => Orders::default(),
            },
            ..Self::default()
        }
    }

    /// Follows an order; returns the answer, if there is one.
    pub fn order(&mut self, rank: u32, order: AdapterOrder) -> Option<AdapterRead> {
        let place = |at: u32| u16::try_from(at).expect("a place");
        let (told, answer) = match order.kind.expect("an order") {
            Kind::Read(wanted) => {
                let content = content(rank, &wanted);
                self.read = content.as_ref().ok().copied();
                let kind = match content {
                    Ok(content) => {
                        adapter_read::Kind::Adapter(Adapter { place: 0, content }.into())
                    }
                    Err(reason) => adapter_read::Kind::Error(reason),
                };
                let answer = AdapterRead { kind: Some(kind) };
                (format!("read {}", wanted.name), Some(answer))
            }
            Kind::Place(at) => {
                let read = self.read.take().expect("it was read");
                let before = self.places.insert(place(at), read);
                assert_eq!(before, None, "place {at} was cleared");
                (format!("place {at}"), None)
            }
            Kind::Clear(at) => {
                let gone = self.places.remove(&place(at));
                assert!(gone.is_some(), "there was an adapter at {at}");
                (format!("clear {at}"), None)
            }
            Kind::Forget(_) => {
                self.read = None;
                ("forget".to_owned(), None)
            }
        };
        self.orders.lock().expect("no panic").push(told);
        answer
    }

    /// Checks that each row's adapter is in its place.
    pub fn plan(&mut self, part: &PlanPart) {
        for open in &part.opens {
            self.slots.insert(open.slot, open.generation.adapter);
        }
        for row in &part.extends {
            if let Some(Adapter { place, content }) = self.slots[&row.slot] {
                let there = self.places.get(&place);
                assert_eq!(there, Some(&content), "the adapter of slot {}", row.slot);
            }
        }
    }
}

/// Returns the content of a folder, which its name decides.
fn content(rank: u32, wanted: &ReadAdapter) -> Result<u128, String> {
    let name = Path::new(&wanted.path).file_name();
    let name = name.and_then(|name| name.to_str()).expect("a name");
    match name {
        "broken" => Err("it is broken".to_owned()),
        "broken-on-rank-1" if rank == 1 => Err("it is broken".to_owned()),
        "broken-on-rank-1" => Ok(1),
        "other-on-rank-1" => Ok(u128::from(rank)),
        number => Ok(number.parse().expect("a number")),
    }
}
