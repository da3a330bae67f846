//! Tests of the pool against plain sets.

use std::collections::BTreeMap;

use super::*;
use proptest::prelude::*;

const BLOCKS: u32 = 12;

#[derive(Debug, Clone)]
enum Op {
    Alloc,
    Use(u32),
    Leave(u8, bool),
    Attach(u32, u8),
    Detach(u32),
    Move(u32, u32),
}

fn op() -> impl Strategy<Value = Op> {
    let block = 1..BLOCKS;
    prop_oneof![
        4 => Just(Op::Alloc),
        2 => block.clone().prop_map(Op::Use),
        4 => any::<(u8, bool)>().prop_map(|(at, valued)| Op::Leave(at, valued)),
        3 => (block.clone(), any::<u8>()).prop_map(|(block, at)| Op::Attach(block, at)),
        1 => block.clone().prop_map(Op::Detach),
        1 => (block.clone(), block).prop_map(|(from, to)| Op::Move(from, to)),
    ]
}

/// Uses, blocks, the order in which pages were left, and the pages that are valued.
#[derive(Debug, Default)]
struct Naive {
    uses: Vec<u32>,
    blocks: BTreeMap<u32, u32>,
    left: Vec<u32>,
    valued: Vec<u32>,
}

impl Naive {
    fn is_cached(&self, page: u32) -> bool {
        self.blocks.values().any(|cached| *cached == page)
    }

    fn evictable(&self) -> Vec<u32> {
        let idle = |page: &&u32| self.is_cached(**page) && !self.uses.contains(page);
        let idle = self.left.iter().filter(idle).copied();
        let (valued, others): (Vec<_>, Vec<_>) = idle.partition(|page| self.valued.contains(page));
        [others, valued].concat()
    }

    fn is_free(&self, page: u32) -> bool {
        !self.uses.contains(&page) && !self.is_cached(page)
    }
}

proptest! {
    #[test]
    fn equals_plain_sets(
        num_pages in 2u32..9,
        high: bool,
        ops in prop::collection::vec(op(), 0..120),
    ) {
        let mut pool = WindowPool::new(5, num_pages, BLOCKS, high);
        let mut naive = Naive::default();
        for op in ops {
            match op {
                Op::Alloc => {
                    let free: Vec<u32> = (1..num_pages).filter(|page| naive.is_free(*page)).collect();
                    let oldest = naive.evictable().first().copied();
                    match pool.alloc() {
                        None => prop_assert!(free.is_empty() && oldest.is_none()),
                        Some(page) if free.is_empty() => {
                            prop_assert_eq!(Some(page), oldest);
                            naive.blocks.retain(|_, cached| *cached != page);
                            naive.valued.retain(|valued| *valued != page);
                            naive.uses.push(page);
                        }
                        Some(page) => {
                            prop_assert!(free.contains(&page));
                            naive.valued.retain(|valued| *valued != page);
                            naive.uses.push(page);
                        }
                    }
                }
                Op::Use(block) => {
                    let page = naive.blocks.get(&block).copied();
                    prop_assert_eq!(pool.use_block(block), page.unwrap_or(0));
                    naive.uses.extend(page);
                    naive.valued.extend(page);
                }
                Op::Leave(at, valued) if !naive.uses.is_empty() => {
                    let page = naive.uses.remove(at as usize % naive.uses.len());
                    pool.leave(page, valued);
                    naive.valued.extend(valued.then_some(page));
                    naive.left.retain(|left| *left != page);
                    naive.left.push(page);
                }
                Op::Attach(block, at) if !naive.uses.is_empty() => {
                    let page = naive.uses[at as usize % naive.uses.len()];
                    pool.attach(block, page);
                    if !naive.is_cached(page) {
                        naive.blocks.entry(block).or_insert(page);
                    }
                }
                Op::Leave(..) | Op::Attach(..) => {}
                Op::Detach(block) => {
                    pool.detach(block);
                    naive.blocks.remove(&block);
                }
                Op::Move(from, to) if !naive.blocks.contains_key(&to) => {
                    pool.move_block(from, to);
                    let page = naive.blocks.remove(&from);
                    naive.blocks.extend(page.map(|page| (to, page)));
                }
                Op::Move(..) => {}
            }
            let mut users = vec![0; num_pages as usize];
            naive.uses.iter().for_each(|page| users[*page as usize] += 1);
            prop_assert_eq!(pool.check(&users, |block| naive.blocks.contains_key(&block)), Ok(()));
            let free = (1..num_pages).filter(|page| naive.is_free(*page)).count();
            prop_assert_eq!(pool.available() as usize, free + naive.evictable().len());
            prop_assert_eq!(pool.uses() as usize, naive.uses.len());
            for block in 1..BLOCKS {
                let page = naive.blocks.get(&block).copied();
                prop_assert_eq!(pool.of_block(block), page.unwrap_or(0));
            }
        }
    }
}
