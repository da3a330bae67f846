//! Tests of the radix tree against the naive cache.

use super::*;
use crate::kv::naive_cache::NaiveCache;
use lockstep_types::adapter::Adapter;
use proptest::prelude::*;
use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

/// Salt, adapter and tokens of a block, as events tell them.
type Told = ((Option<Arc<str>>, Option<u128>), Vec<u32>);

/// A key that owns its parts.
type Owned<K> = (Namespace, Vec<K>);

#[derive(Debug, Clone)]
enum Op<K> {
    Insert(Owned<K>),
    Match(Owned<K>),
    Lock(Owned<K>),
    Extend(u8, Vec<K>),
    Unlock(u8),
    Evict(u8),
}

fn tokens() -> BoxedStrategy<Vec<u32>> {
    prop::collection::vec(0u32..3, 0..24).boxed()
}

/// Generates the pairs of a text.
fn pairs() -> BoxedStrategy<Vec<(u32, u32)>> {
    let text = prop::collection::vec(0u32..3, 1..24);
    let pairs = |text: Vec<u32>| KeyUnit::key(&text, 0..text.len() - 1, &mut Vec::new()).to_vec();
    text.prop_map(pairs).boxed()
}

/// Generates namespaces, the one without salt and adapter most often.
fn namespace() -> impl Strategy<Value = Namespace> {
    let salts = [
        (None, None),
        (None, None),
        (Some("a"), None),
        (None, Some(7)),
        (Some("a"), Some(7)),
        (None, Some(8)),
    ];
    prop::sample::select(salts.to_vec()).prop_map(|(salt, content)| {
        let adapter = content.map(|content| Adapter { place: 0, content });
        Namespace::new(salt.map(Into::into), adapter)
    })
}

fn op<K: KeyUnit>(key: BoxedStrategy<Vec<K>>) -> impl Strategy<Value = Op<K>> {
    let owned = (namespace(), key.clone()).boxed();
    prop_oneof![
        4 => owned.clone().prop_map(Op::Insert),
        3 => owned.clone().prop_map(Op::Match),
        2 => owned.prop_map(Op::Lock),
        2 => (any::<u8>(), key).prop_map(|(at, key)| Op::Extend(at, key)),
        2 => any::<u8>().prop_map(Op::Unlock),
        1 => (0u8..12).prop_map(Op::Evict),
    ]
}

/// Distance between the numbers of a block's pages in two groups.
const APART: u32 = 10_000;

/// Tree and oracle side by side, with the locks taken. The oracle knows a block by its page of
/// the first group.
struct Pair<K> {
    page_size: usize,
    groups: u32,
    tree: RadixCache<K>,
    naive: NaiveCache<K>,
    locks: Vec<(NodeId, Owned<K>)>,
    next_block: u32,
    /// Namespace and tokens that each live block's hash stands for, from the events.
    blocks: BTreeMap<u64, Told>,
}

fn key<K>((namespace, units): &Owned<K>) -> RadixKey<'_, K> {
    RadixKey { namespace, units }
}

impl<K: KeyUnit> Pair<K> {
    fn new(page_size: u32, groups: u32) -> Self {
        Self {
            page_size: page_size as usize,
            groups,
            tree: RadixCache::new(page_size, groups, true),
            naive: NaiveCache::new(page_size),
            locks: Vec::new(),
            next_block: 0,
            blocks: BTreeMap::new(),
        }
    }

    fn whole(&self, mut units: Vec<K>) -> Vec<K> {
        units.truncate(units.len() / self.page_size * self.page_size);
        units
    }

    fn new_blocks(&mut self, units: &[K]) -> Vec<u32> {
        let from = self.next_block;
        self.next_block += (units.len() / self.page_size) as u32;
        (from..self.next_block).collect()
    }

    /// Returns the pages of blocks in all groups.
    fn pages(&self, blocks: &[u32]) -> Vec<u32> {
        let of = |block: u32| (0..self.groups).map(move |group| block + group * APART);
        blocks.iter().copied().flat_map(of).collect()
    }

    fn apply(&mut self, op: Op<K>) {
        match op {
            Op::Insert((namespace, units)) => {
                let units = self.whole(units);
                let blocks = self.new_blocks(&units);
                let pages = self.pages(&blocks);
                let owned = (namespace, units);
                assert_eq!(
                    self.tree.insert(key(&owned), &pages),
                    self.naive.insert(&owned, &blocks)
                );
            }
            Op::Match(owned) => {
                let mut pages = Vec::new();
                let mut seen = Vec::new();
                let mut see = |block: &[u32]| seen.extend_from_slice(block);
                let len = self.tree.match_len(key(&owned), &mut see);
                self.tree.match_prefix(key(&owned), &mut pages);
                let blocks = self.naive.match_prefix(&owned);
                assert_eq!(pages, self.pages(&blocks));
                assert_eq!(seen, pages);
                assert_eq!(len, blocks.len() * self.page_size);
            }
            Op::Lock((namespace, mut units)) => {
                let mut pages = Vec::new();
                let owned = (namespace.clone(), units.clone());
                let node = self.tree.match_prefix(key(&owned), &mut pages);
                self.tree.lock(node);
                let blocks = pages.len() / self.groups as usize;
                units.truncate(blocks * self.page_size);
                self.locks.push((node, (namespace, units)));
            }
            Op::Extend(at, more) => self.extend(at, more),
            Op::Unlock(at) if !self.locks.is_empty() => {
                let at = at as usize % self.locks.len();
                let (node, _) = self.locks.swap_remove(at);
                self.tree.unlock(node);
            }
            Op::Unlock(_) => {}
            Op::Evict(count) => self.evict(u32::from(count)),
        }
    }

    fn extend(&mut self, at: u8, more: Vec<K>) {
        if self.locks.is_empty() {
            return;
        }
        let at = at as usize % self.locks.len();
        let more = self.whole(more);
        let blocks = self.new_blocks(&more);
        let (node, held) = self.locks[at].clone();
        let mut full = held.clone();
        full.1.extend(&more);
        let fresh = self.naive.match_prefix(&full).len() * self.page_size == held.1.len();
        let more = (held.0.clone(), more);
        let end = self.tree.extend(node, key(&more), &self.pages(&blocks));
        assert_eq!(end.is_some(), fresh && !more.1.is_empty());
        if let Some(end) = end {
            let mut all = self.naive.match_prefix(&held);
            all.extend(&blocks);
            self.naive.insert(&full, &all);
            self.locks[at] = (end, full);
        }
    }

    fn evict(&mut self, count: u32) {
        let before = self.tree.evictable_blocks();
        let mut gone = Vec::new();
        let freed = self.tree.evict(count, |block| gone.push(block.to_vec()));
        assert_eq!(freed, count.min(before), "all that is unlocked can go");
        assert_eq!(gone.len() as u32, freed);
        for block in gone {
            assert_eq!(block, self.pages(&block[..1]));
            self.naive.remove_page(block[0]);
        }
    }

    fn check(&mut self) {
        let mut blocks = 0;
        self.tree
            .check(self.locks.iter().map(|(node, _)| *node), |_| blocks += 1)
            .unwrap();
        assert_eq!(blocks, self.naive.len());
        for (_, held) in &self.locks {
            let len = held.1.len();
            assert_eq!(self.tree.match_len(key(held), |_| {}), len, "locked stays");
        }
        self.follow_events();
    }

    fn follow_events(&mut self) {
        for event in self.tree.take_events() {
            match event {
                CacheEvent::BlockStored {
                    parent,
                    blocks,
                    cache_salt,
                    adapter,
                    ..
                } => {
                    let before = parent.map(|hash| self.blocks[&hash].clone());
                    let own = (cache_salt, adapter);
                    let (namespace, mut prefix) = before.unwrap_or((own.clone(), Vec::new()));
                    assert_eq!(namespace, own, "the namespace of the block before");
                    for block in blocks {
                        prefix.extend(block.token_ids);
                        let told = (namespace.clone(), prefix.clone());
                        assert!(self.blocks.insert(block.hash, told).is_none());
                    }
                }
                CacheEvent::BlockRemoved { hashes } => {
                    for hash in hashes {
                        let gone = self.blocks.remove(&hash);
                        assert!(gone.is_some(), "removed blocks were stored");
                    }
                }
                CacheEvent::Cleared => self.blocks.clear(),
            }
        }
        // Events tell tokens, whatever the keys are.
        let mut told: Vec<_> = self.blocks.values().cloned().collect();
        let tokens = |(namespace, units): &Owned<K>| {
            let tokens: Vec<u32> = units.iter().map(|unit| unit.token()).collect();
            ((namespace.cache_salt(), namespace.adapter()), tokens)
        };
        let mut cached: Vec<_> = self.naive.prefixes().map(tokens).collect();
        told.sort_unstable();
        cached.sort_unstable();
        assert_eq!(told, cached);
    }
}

fn equal_the_naive_cache<K: KeyUnit>(page_size: u32, groups: u32, ops: Vec<Op<K>>) {
    let mut pair = Pair::new(page_size, groups);
    for op in ops {
        pair.apply(op);
        pair.check();
    }
    let snapshot = pair.tree.snapshot();
    let stored = snapshot.iter().map(|event| match event {
        CacheEvent::BlockStored { blocks, .. } => blocks.len(),
        _ => 0,
    });
    assert_eq!(stored.sum::<usize>(), pair.naive.len());
    while let Some((node, _)) = pair.locks.pop() {
        pair.tree.unlock(node);
    }
    pair.evict(u32::MAX);
    pair.check();
    assert_eq!(pair.tree.total_blocks(), 0);
}

proptest! {
    #[test]
    fn tokens_equal_the_naive_cache(
        page_size in 1u32..5,
        groups in 1u32..4,
        ops in prop::collection::vec(op(tokens()), 1..60),
    ) {
        equal_the_naive_cache(page_size, groups, ops);
    }

    #[test]
    fn pairs_equal_the_naive_cache(
        page_size in 1u32..5,
        groups in 1u32..4,
        ops in prop::collection::vec(op(pairs()), 1..60),
    ) {
        equal_the_naive_cache(page_size, groups, ops);
    }
}

/// Returns a key without a salt.
fn plain<K>(units: &[K]) -> RadixKey<'_, K> {
    static PLAIN: LazyLock<Namespace> = LazyLock::new(Namespace::default);
    RadixKey {
        namespace: &PLAIN,
        units,
    }
}

#[test]
fn the_oldest_leaf_goes_first_and_from_its_end() {
    let mut tree = RadixCache::<u32>::new(2, 1, false);
    tree.insert(plain(&[1, 1, 2, 2, 3, 3]), &[1, 2, 3]);
    tree.insert(plain(&[1, 1, 4, 4]), &[1, 5]);
    tree.match_prefix(plain(&[1, 1, 2, 2, 3, 3]), &mut Vec::new());
    let mut gone = Vec::new();
    tree.evict(2, |block| gone.extend_from_slice(block));
    assert_eq!(gone, [5, 3]);
    tree.evict(2, |block| gone.extend_from_slice(block));
    assert_eq!(gone, [5, 3, 2, 1]);
}

#[test]
fn better_pages_take_the_places_of_those_that_nobody_uses() {
    let mut tree = RadixCache::<u32>::new(2, 1, false);
    tree.insert(plain(&[1, 1, 2, 2, 3, 3]), &[1, 2, 3]);
    tree.insert(plain(&[1, 1, 4, 4]), &[1, 5]);
    // The common beginning is in use.
    let node = tree.match_prefix(plain(&[1, 1]), &mut Vec::new());
    tree.lock(node);
    let mut own = [11, 12, 13, 14];
    let better = |cached: &[u32], _: &[u32]| cached != [3];
    tree.replace(plain(&[1, 1, 2, 2, 3, 3, 9, 9]), &mut own, better);
    assert_eq!(own, [11, 2, 13, 14]);
    let mut pages = Vec::new();
    tree.match_prefix(plain(&[1, 1, 2, 2, 3, 3, 9, 9]), &mut pages);
    assert_eq!(pages, [1, 12, 3]);
    tree.unlock(node);
    let mut own = [11];
    tree.replace(plain(&[1, 1]), &mut own, |_, _| true);
    assert_eq!(own, [1]);
    pages.clear();
    tree.match_prefix(plain(&[1, 1, 4, 4]), &mut pages);
    assert_eq!(pages, [11, 5]);
}

#[test]
fn bigram_keys_match_one_token_less() {
    let bigrams = |tokens: &[u32]| -> Vec<(u32, u32)> {
        tokens.windows(2).map(|pair| (pair[0], pair[1])).collect()
    };
    let mut tree = RadixCache::<(u32, u32)>::new(1, 1, false);
    tree.insert(plain(&bigrams(&[1, 2, 3, 4])), &[1, 2, 3]);
    assert_eq!(tree.match_len(plain(&bigrams(&[1, 2, 3, 4, 5])), |_| {}), 3);
    assert_eq!(tree.match_len(plain(&bigrams(&[1, 2, 9])), |_| {}), 1);
}

#[test]
fn a_salt_is_forgotten_with_its_last_block() {
    let mut tree = RadixCache::<u32>::new(1, 1, false);
    let owned = (Namespace::new(Some("salt".into()), None), vec![1, 2]);
    let salt = owned.0.cache_salt().unwrap();
    tree.insert(key(&owned), &[1, 2]);
    drop(owned);
    assert_eq!(Arc::strong_count(&salt), 2);
    tree.evict(2, |_| {});
    assert_eq!(Arc::strong_count(&salt), 1);
}
