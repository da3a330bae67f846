//! The registry of adapters: names that requests use, and places in the workers' memory.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use lockstep_proto::pb::lockstep::{AdapterList, AdapterLoad, LoadedAdapter};
use lockstep_types::{
    AdapterLimits,
    adapter::Adapter,
    request::{ErrorKind, RequestError},
};

/// Names of adapters by the hashes of their contents, for cache events.
pub type AdapterNames = Arc<BTreeMap<u128, String>>;

/// All adapters that are in memory. A name leads to one place. A place that lost its name holds
/// its adapter until the last of its requests has ended.
#[derive(Debug, Default)]
pub struct Adapters {
    named: BTreeMap<String, Named>,
    /// Places with an adapter, which has a name or waits for the ends of its requests.
    places: Vec<Place>,
    names: AdapterNames,
}

/// An adapter with a name.
#[derive(Debug)]
struct Named {
    adapter: Adapter,
    path: String,
    /// Seconds since 1970.
    loaded: u64,
    requests: u64,
}

/// One place in every worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Free,
    Named,
    /// It lost its name; with its content.
    Leaving(u128),
}

impl Adapters {
    /// Makes a registry without adapters.
    pub fn new(limits: AdapterLimits) -> Self {
        Self {
            places: vec![Place::Free; usize::from(limits.places)],
            ..Self::default()
        }
    }

    /// Returns true if no worker holds an adapter.
    pub fn is_empty(&self) -> bool {
        self.places.iter().all(|place| *place == Place::Free)
    }

    /// Returns the adapter of this name, for one more request.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] with the names that there are.
    pub fn resolve(&mut self, name: &str) -> Result<Adapter, RequestError> {
        match self.named.get_mut(name) {
            Some(named) => {
                named.requests += 1;
                Ok(named.adapter)
            }
            None => Err(self.unknown(name)),
        }
    }

    /// Returns the place for an adapter that was read: one that is free. `None` if the name has
    /// this content already.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if all places are taken.
    pub fn place_for(&self, name: &str, content: u128) -> Result<Option<u16>, RequestError> {
        let same = |named: &Named| named.adapter.content == content;
        if self.named.get(name).is_some_and(same) {
            return Ok(None);
        }
        let free = self.places.iter().position(|place| *place == Place::Free);
        match free.and_then(|at| u16::try_from(at).ok()) {
            Some(place) => Ok(Some(place)),
            None => Err(RequestError::new(ErrorKind::Conflict, self.all_taken())),
        }
    }

    /// Gives an adapter its name. An adapter that had the name leaves.
    pub fn insert(&mut self, name: String, path: String, adapter: Adapter) {
        // A second adapter of this name needs a place of its own: requests still run on the
        // first.
        self.leave(&name);
        self.places[usize::from(adapter.place)] = Place::Named;
        Arc::make_mut(&mut self.names).insert(adapter.content, name.clone());
        let named = Named {
            adapter,
            path,
            loaded: now(),
            requests: 0,
        };
        self.named.insert(name, named);
    }

    /// Takes an adapter's name away.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] with the names that there are.
    pub fn remove(&mut self, name: &str) -> Result<(), RequestError> {
        match self.leave(name) {
            true => Ok(()),
            false => Err(self.unknown(name)),
        }
    }

    fn leave(&mut self, name: &str) -> bool {
        let Some(Named { adapter, .. }) = self.named.remove(name) else {
            return false;
        };
        self.places[usize::from(adapter.place)] = Place::Leaving(adapter.content);
        true
    }

    /// Frees the places that lost their names and are not `used` any more. Returns them.
    pub fn free(&mut self, used: impl Fn(u16) -> bool) -> Vec<u16> {
        let mut freed = Vec::new();
        for (at, place) in (0..).zip(&mut self.places) {
            if matches!(place, Place::Leaving(_)) && !used(at) {
                *place = Place::Free;
                freed.push(at);
            }
        }
        if !freed.is_empty() {
            let (named, places) = (&self.named, &self.places);
            Arc::make_mut(&mut self.names).retain(|content, name| {
                // Requests of an adapter without a name still run.
                if places.contains(&Place::Leaving(*content)) {
                    return true;
                }
                // Another name may have the same content.
                let mut all = named.iter();
                let own = all.find(|(_, named)| named.adapter.content == *content);
                own.map(|(own, _)| name.clone_from(own)).is_some()
            });
        }
        freed
    }

    /// Returns the names by content, also those of adapters whose requests still run.
    pub fn names(&self) -> AdapterNames {
        self.names.clone()
    }

    /// Lists the adapters that requests may name.
    pub fn list(&self) -> AdapterList {
        let listed = |(name, named): (&String, &Named)| LoadedAdapter {
            name: name.clone(),
            path: named.path.clone(),
            adapter: Some(named.adapter.into()),
            loaded: named.loaded,
        };
        AdapterList {
            adapters: self.named.iter().map(listed).collect(),
        }
    }

    /// Returns the load of each adapter with a name. `live` counts a place's requests that have
    /// not ended.
    pub fn loads(&self, live: impl Fn(u16) -> u32) -> Vec<AdapterLoad> {
        let load = |(name, named): (&String, &Named)| AdapterLoad {
            name: name.clone(),
            live_requests: live(named.adapter.place),
            requests_total: named.requests,
        };
        self.named.iter().map(load).collect()
    }

    /// Returns the number of places with an adapter.
    pub fn in_memory(&self) -> usize {
        let taken = |place: &&Place| **place != Place::Free;
        self.places.iter().filter(taken).count()
    }

    fn unknown(&self, name: &str) -> RequestError {
        const SHOWN: usize = 8;
        let mut names: Vec<_> = self.named.keys().take(SHOWN).cloned().collect();
        if self.named.len() > SHOWN {
            names.push("…".to_owned());
        }
        let there = match names.is_empty() {
            true => "no adapter is loaded".to_owned(),
            false => format!("loaded adapters: {}", names.join(", ")),
        };
        RequestError {
            param: Some("model".to_owned()),
            ..RequestError::new(
                ErrorKind::NotFound,
                format!("The model or adapter `{name}` does not exist; {there}."),
            )
        }
    }

    fn all_taken(&self) -> String {
        let all = self.places.len();
        let leaving = |place: &&Place| matches!(place, Place::Leaving(_));
        let remedy = match self.places.iter().filter(leaving).count() {
            0 => {
                "unload one, or start the server with a larger --max-loras-per-batch (another \
                 adapter of a name needs a place beside the first)"
            }
            _ => "wait for the requests of an adapter that was unloaded or replaced to end",
        };
        format!("All {all} places of adapters are taken: {remedy}.")
    }
}

/// Returns the time in seconds since 1970.
fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry(places: u16) -> Adapters {
        Adapters::new(AdapterLimits { places, rank: 8 })
    }

    /// Loads an adapter as the engine does.
    fn load(adapters: &mut Adapters, name: &str, content: u128) -> Result<Option<u16>, ErrorKind> {
        let place = adapters.place_for(name, content);
        let place = place.map_err(|error| error.kind)?;
        if let Some(place) = place {
            let adapter = Adapter { place, content };
            adapters.insert(name.to_owned(), format!("/{name}"), adapter);
        }
        Ok(place)
    }

    #[test]
    fn a_reload_takes_another_place_and_the_same_bytes_none() {
        let mut adapters = registry(2);
        assert!(adapters.is_empty());
        assert_eq!(load(&mut adapters, "a", 7), Ok(Some(0)));
        assert_eq!(load(&mut adapters, "a", 7), Ok(None));
        let old = adapters.resolve("a").expect("loaded");
        assert_eq!(load(&mut adapters, "a", 8), Ok(Some(1)));
        let new = adapters.resolve("a").expect("loaded");
        assert_eq!((old.place, new.place), (0, 1));
        // The first still has requests, so there is no room.
        assert_eq!(adapters.free(|place| place == 0), Vec::<u16>::new());
        assert_eq!(load(&mut adapters, "b", 9), Err(ErrorKind::Conflict));
        assert_eq!(adapters.in_memory(), 2);
        assert_eq!(adapters.free(|_| false), [0]);
        assert_eq!(load(&mut adapters, "b", 9), Ok(Some(0)));
    }

    #[test]
    fn a_name_goes_at_once_and_its_place_when_it_is_not_used() {
        let mut adapters = registry(1);
        load(&mut adapters, "a", 7).expect("room");
        adapters.remove("a").expect("loaded");
        for error in [
            adapters.resolve("a").expect_err("gone"),
            adapters.remove("a").expect_err("gone"),
        ] {
            assert_eq!(error.kind, ErrorKind::NotFound);
            assert_eq!(error.param.as_deref(), Some("model"));
        }
        assert!(!adapters.is_empty());
        assert_eq!(adapters.names().get(&7).map(String::as_str), Some("a"));
        assert!(adapters.free(|_| true).is_empty());
        assert_eq!(adapters.free(|_| false), [0]);
        assert!(adapters.free(|_| false).is_empty(), "once");
        assert!(adapters.is_empty() && adapters.names().is_empty());
    }

    #[test]
    fn an_adapter_keeps_its_name_for_events_while_its_requests_run() {
        let mut adapters = registry(2);
        for (name, content) in [("a", 7), ("b", 8)] {
            load(&mut adapters, name, content).expect("room");
            adapters.remove(name).expect("loaded");
        }
        assert_eq!(adapters.free(|place| place == 1), [0]);
        let names = adapters.names();
        assert_eq!(names.values().collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn requests_are_counted_by_name() {
        let mut adapters = registry(2);
        load(&mut adapters, "a", 7).expect("room");
        load(&mut adapters, "b", 7).expect("room");
        for name in ["a", "b", "a"] {
            adapters.resolve(name).expect("loaded");
        }
        let loads = adapters.loads(u32::from);
        let counts = loads
            .iter()
            .map(|load| (&*load.name, load.requests_total, load.live_requests));
        assert_eq!(counts.collect::<Vec<_>>(), [("a", 2, 0), ("b", 1, 1)]);
        // Equal contents keep a name for events as long as one of them is there.
        adapters.remove("b").expect("loaded");
        adapters.free(|_| false);
        assert_eq!(adapters.names().get(&7).map(String::as_str), Some("a"));
    }

    #[test]
    fn an_unknown_name_is_answered_with_those_that_there_are() {
        let mut adapters = registry(20);
        let none = adapters.resolve("x").expect_err("unknown");
        assert!(none.message.contains("no adapter is loaded"), "{none}");
        for at in 0..9 {
            load(&mut adapters, &format!("a{at}"), at).expect("room");
        }
        let some = adapters.resolve("x").expect_err("unknown").message;
        assert!(
            some.contains("`x`") && some.contains("a0, a1") && some.contains("a7, …"),
            "{some}"
        );
        assert!(!some.contains("a8"), "{some}");
    }
}
