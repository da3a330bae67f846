//! Tests of the prefix cache against a plain definition of shared positions.

use proptest::prelude::*;

use super::*;

/// Every cached text, with its namespace and the number of its positions that are cached.
#[derive(Debug, Default)]
struct NaivePrefixes(Vec<(Namespace, Vec<u32>, usize)>);

impl NaivePrefixes {
    /// Returns the number of positions that other texts of the namespace serve, in whole pages.
    /// Another text serves a position if all tokens that the position's keys and values depend on are the
    /// same. For `Tokens` these are the tokens up to the position, for `Pairs` also the next
    /// one.
    fn match_len(&self, draft_kv: DraftKv, page: usize, text: Text<'_>, units: usize) -> usize {
        let next = usize::from(draft_kv == DraftKv::Pairs);
        let own = |(namespace, ..): &&(Namespace, _, _)| namespace == text.namespace;
        let served = |(_, other, held): &(_, Vec<u32>, usize)| {
            let same = |at: &usize| text.tokens[..=at + next] == other[..=at + next];
            (0..units.min(*held)).take_while(same).count() / page * page
        };
        self.0.iter().filter(own).map(served).max().unwrap_or(0)
    }
}

fn text() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0u32..2, 1..20)
}

proptest! {
    #[test]
    fn texts_share_what_depends_on_the_same_tokens(
        page in 1u32..5,
        pairs: bool,
        texts in prop::collection::vec((text(), 0usize..3, any::<bool>()), 1..30),
    ) {
        let draft_kv = if pairs { DraftKv::Pairs } else { DraftKv::Tokens };
        let mut cache = prefix_cache(draft_kv, page, 1, true);
        let mut naive = NaivePrefixes::default();
        let mut next_page = 0;
        let page = page as usize;
        let namespaces = [None, Some("a"), Some("b")];
        let namespaces = namespaces.map(|salt| Namespace::new(salt.map(Into::into), None));
        for (tokens, namespace, insert) in texts {
            let units = tokens.len() - 1;
            let namespace = &namespaces[namespace];
            let text = Text::new(namespace, &tokens);
            let expected = naive.match_len(draft_kv, page, text, units);
            prop_assert_eq!(cache.match_len(text, units, &mut |_| {}), expected);
            let mut pages = Vec::new();
            let node = cache.match_prefix(text, units, &mut pages);
            prop_assert_eq!(pages.len() * page, expected);
            if insert {
                // Half of the texts go in through a lock, as those of running requests do.
                let whole = units / page;
                let own = (whole - pages.len()) as u32;
                pages.extend(next_page..next_page + own);
                next_page += own;
                if tokens[0] == 0 {
                    cache.lock(node);
                    let positions = expected..whole * page;
                    let end = cache.extend(node, text, positions, &pages[expected / page..]);
                    cache.unlock(end.unwrap_or(node));
                } else {
                    prop_assert_eq!(cache.insert(text, &pages), expected / page);
                }
                naive.0.push((namespace.clone(), tokens, whole * page));
            }
            cache.check(&mut std::iter::empty(), &mut |_| {}).unwrap();
        }
        // Events tell routers tokens, whatever the keys are.
        for event in cache.snapshot() {
            let CacheEvent::BlockStored { parent: None, blocks, .. } = event else {
                continue;
            };
            let starts = |(_, text, _): &(_, Vec<u32>, usize)| text.starts_with(&blocks[0].token_ids);
            prop_assert!(naive.0.iter().any(starts));
        }
        let mut freed = 0;
        cache.clear(&mut |_| freed += 1);
        prop_assert_eq!(freed, next_page);
    }
}
