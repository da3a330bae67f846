//! Requests of a list: their order, and the beginning of each.

use std::collections::BTreeMap;

use super::list::{Kind, List, Phase};

/// Domains of the prompts by kind. A kind's domains have a similar number of accepted drafts
/// in the demo family. The numbers are tokens of a verification at seven draft steps, with
/// an EAGLE-3 head and with a draft model. All other domains are in mixed phases alone.
const KINDS: [(Kind, &[&str]); 4] = [
    // 4.0 to 4.7 and 4.7 to 5.6.
    (Kind::Predictable, &["tables", "weather", "units"]),
    // 2.1 to 2.3 and 1.9 to 2.8.
    (Kind::Hard, &["poem", "reversing", "sorting", "copy"]),
    // 3.5 and 3.8.
    (Kind::Code, &["code"]),
    (Kind::Repeating, &["poem"]),
];

/// Parts of a phase in which arms take turns: about a second each in a phase of ten seconds.
pub const SLICES: usize = 10;

/// A prompt and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// Domain of the prompt.
    pub domain: String,
    /// Token ids.
    pub prompt: Vec<u32>,
    /// Token ids that the model gives without speculation, at temperature 0.
    pub answer: Vec<u32>,
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// Index of the request's text.
    pub text: usize,
    /// Tokens of the request's answer.
    pub tokens: u32,
    /// Seed of sampling, different for each request; `None` for temperature 0.
    pub seed: Option<u64>,
    /// DP rank of the request, if there are several.
    pub dp_rank: Option<u32>,
}

/// The requests of a list's phases. Every arm answers the same requests.
#[derive(Debug, Clone)]
pub struct Work {
    /// The phases, each with its requests in their order.
    pub phases: Vec<(Phase, Vec<Item>)>,
}

impl Work {
    /// Makes the requests of a list. Goes through the texts of each kind in turn, one of
    /// each domain after the other, until a phase has its tokens; the phase's last answer is
    /// cut off there. No answer is longer than a stream's part of the phase, so that all
    /// streams have something to do. There are `dp_size` DP ranks.
    pub fn new(list: &List, texts: &[Text], dp_size: usize) -> Self {
        let mut used: BTreeMap<Kind, usize> = BTreeMap::new();
        let mut fresh = 0;
        let phases = list.phases.iter().map(|phase| {
            let pool = pool(phase.kind, texts);
            let used = used.entry(phase.kind).or_default();
            let most = phase.tokens.div_ceil(phase.streams);
            let (mut items, mut left) = (Vec::<Item>::new(), phase.tokens);
            while left > 0 {
                let text = pool[*used % pool.len()];
                *used += 1;
                let length = u32::try_from(texts[text].answer.len()).unwrap_or(u32::MAX);
                let tokens = length.min(left).min(most);
                left -= tokens;
                let seed = (phase.kind == Kind::Fresh).then(|| {
                    fresh += 1;
                    fresh
                });
                items.push(Item {
                    text,
                    tokens,
                    seed,
                    dp_rank: phase.spread.dp_rank(items.len(), dp_size),
                });
            }
            (phase.clone(), items)
        });
        Self {
            phases: phases.collect(),
        }
    }

    /// Tokens of a phase.
    pub fn tokens(&self, phase: usize) -> u32 {
        self.phases.get(phase).map_or(0, |(phase, _)| phase.tokens)
    }

    /// Tokens of all phases.
    pub fn all_tokens(&self) -> u64 {
        let tokens = self.phases.iter().map(|(phase, _)| u64::from(phase.tokens));
        tokens.sum()
    }
}

/// Texts of a kind, one of each domain after the other; all texts if no text has a domain of
/// that kind.
fn pool(kind: Kind, texts: &[Text]) -> Vec<usize> {
    let domains = KINDS.iter().find(|(known, _)| *known == kind);
    let wanted = |text: &Text| domains.is_none_or(|(_, all)| all.contains(&text.domain.as_str()));
    let mut by_domain: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, text) in texts.iter().enumerate().filter(|(_, text)| wanted(text)) {
        by_domain.entry(&text.domain).or_default().push(at);
    }
    let most = by_domain.values().map(Vec::len).max().unwrap_or(0);
    let rounds = (0..most).flat_map(|round| {
        let domains = by_domain.values();
        domains.filter_map(move |texts| texts.get(round).copied())
    });
    let pool: Vec<usize> = rounds.collect();
    match pool.is_empty() {
        true => (0..texts.len()).collect(),
        false => pool,
    }
}

/// Says which request begins when. A phase begins when all requests of the phase before have
/// begun and one of its streams has nothing left to do.
#[derive(Debug)]
pub struct Driver<'a> {
    work: &'a Work,
    phase: usize,
    begun: usize,
}

impl<'a> Driver<'a> {
    /// A driver before the first request.
    pub fn new(work: &'a Work) -> Self {
        Self {
            work,
            phase: 0,
            begun: 0,
        }
    }

    /// The phase and the request that begins while `running` requests run; `None` if none
    /// does.
    pub fn next(&mut self, running: usize) -> Option<(usize, Item)> {
        loop {
            let (phase, items) = self.work.phases.get(self.phase)?;
            if running >= phase.allowed(self.begun, items.len()) {
                return None;
            }
            if let Some(item) = items.get(self.begun) {
                self.begun += 1;
                return Some((self.phase, *item));
            }
            self.phase += 1;
            self.begun = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phases::list::{Named, Spread};

    fn texts() -> Vec<Text> {
        let domains = ["tables", "poem", "code", "weather", "story"];
        let text = |at: usize| Text {
            domain: domains[at % domains.len()].to_owned(),
            prompt: vec![1, at as u32],
            answer: vec![7; 20 + at],
        };
        (0..10).map(text).collect()
    }

    #[test]
    fn phases_have_their_tokens_and_kinds() {
        let (list, texts) = (Named::Nine.list(16), texts());
        let work = Work::new(&list, &texts, 1);
        for (phase, items) in &work.phases {
            assert!(items.len() >= phase.streams as usize, "{phase}");
            let tokens: u32 = items.iter().map(|item| item.tokens).sum();
            assert_eq!(tokens, phase.tokens, "{phase}");
            for item in items {
                assert!(item.tokens as usize <= texts[item.text].answer.len());
                let domain = texts[item.text].domain.as_str();
                let fits = match phase.kind {
                    Kind::Predictable => ["tables", "weather"].contains(&domain),
                    Kind::Hard => domain == "poem",
                    Kind::Code => domain == "code",
                    _ => true,
                };
                assert!(fits, "{phase}: {domain}");
            }
        }
        // Repeated requests differ in the second of two equal phases.
        assert_ne!(work.phases[6].1[0], work.phases[7].1[0]);
    }

    #[test]
    fn requests_lie_on_dp_ranks_as_their_phase_says() {
        let work = Work::new(&Named::DpRanks.list(64), &texts(), 3);
        for (phase, items) in &work.phases {
            let mut counts = [0usize; 3];
            for item in items {
                counts[item.dp_rank.unwrap() as usize] += 1;
            }
            let [first, second, third] = counts;
            match phase.spread {
                Spread::Even => assert!(first - third <= 1, "{counts:?}"),
                Spread::Skewed => assert!(first > 2 * second && third > 0, "{counts:?}"),
                Spread::One => assert_eq!((second, third), (0, 0)),
            }
        }
        let alone = Work::new(&Named::DpRanks.list(64), &texts(), 1);
        let mut items = alone.phases.iter().flat_map(|(_, items)| items);
        assert!(items.all(|item| item.dp_rank.is_none()));
    }

    #[test]
    fn a_domain_that_is_missing_is_made_up_for_by_all() {
        let texts: Vec<Text> = texts()
            .into_iter()
            .filter(|t| t.domain == "story")
            .collect();
        assert_eq!(pool(Kind::Code, &texts), [0, 1]);
    }

    #[test]
    fn phases_begin_when_a_stream_of_the_last_one_is_free() {
        let mut list = Named::TwoRegimes.list(4);
        list.phases[1].streams = 3;
        let texts = texts();
        let work = Work::new(&list, &texts, 1);
        let mut driver = Driver::new(&work);
        let (mut running, mut most, mut order) = (0, [0; 4], Vec::new());
        loop {
            while let Some((phase, _)) = driver.next(running) {
                running += 1;
                order.push(phase);
                most[phase] = most[phase].max(running);
            }
            if running == 0 {
                break;
            }
            running -= 1;
        }
        assert!(order.is_sorted(), "{order:?}");
        let count: usize = work.phases.iter().map(|(_, items)| items.len()).sum();
        assert_eq!(order.len(), count);
        assert_eq!((most[0], most[1], most[2]), (1, 3, 1));
    }

    #[test]
    fn a_tail_falls_to_one() {
        let phase = Phase::tail(Kind::Mixed, 32, 64);
        let allowed: Vec<usize> = (0..=40).map(|begun| phase.allowed(begun, 40)).collect();
        assert_eq!((allowed[0], allowed[20], allowed[40]), (32, 16, 1));
        assert!(allowed.is_sorted_by(|one, next| one >= next));
    }
}
