//! Tests that requests of different salts share no page, whatever else happens.

use lockstep_types::step::SlotOpen;

use super::*;

/// The salt that each page was granted under.
#[derive(Default)]
struct Tenants {
    groups: usize,
    /// By DP rank and slot: the salt, and the pages of its cached prefix that are still to come.
    slots: BTreeMap<(usize, u32), (u32, usize)>,
    /// By DP rank, group and page.
    pages: BTreeMap<(usize, usize, u32), u32>,
    /// Pages that came from the cache.
    cached: usize,
}

/// Returns the number of a request's salt, which [`salted`] has put where only workers look.
fn tenant(open: &SlotOpen) -> u32 {
    open.generation.sampling.top_k
}

/// Gives a request one of three salts, or none.
fn salted(number: u32, mut request: Request) -> Request {
    request.cache_salt = (number > 0).then(|| number.to_string());
    request.generation.sampling.top_k = number;
    request
}

impl Tenants {
    /// Notes the pages that a plan grants. Checks that a slot's cached prefix lies in pages that
    /// were granted under its own salt.
    fn follow(&mut self, plan: &StepPlan, page_size: u32) {
        for (dp_rank, part) in plan.parts.iter().enumerate() {
            for open in &part.opens {
                let cached = (open.cached_len / page_size) as usize * self.groups;
                let slot = (tenant(open), cached);
                self.slots.insert((dp_rank, open.slot), slot);
            }
            for row in &part.extends {
                let (tenant, cached) = self.slots.get_mut(&(dp_rank, row.slot)).unwrap();
                for (at, page) in row.new_pages.iter().enumerate() {
                    let page = (dp_rank, at % self.groups, *page);
                    if *cached > 0 {
                        *cached -= 1;
                        // Page 0 stands where a window shows nothing any more.
                        if page.2 == 0 {
                            continue;
                        }
                        self.cached += 1;
                        assert_eq!(self.pages.get(&page), Some(&*tenant), "{page:?}");
                    } else {
                        self.pages.insert(page, *tenant);
                    }
                }
            }
        }
    }
}

/// Runs all requests, and returns the pages that came from the cache.
fn drive(config: &PlannerConfig, requests: Vec<Request>) -> usize {
    let mut run = Scenario::new(config, requests);
    let mut tenants = Tenants {
        groups: config.groups(),
        ..Tenants::default()
    };
    loop {
        run.submit();
        while let Some(plan) = run.engine.planner.plan() {
            tenants.follow(&plan, config.page_size);
            run.engine.plans.push_back(plan);
        }
        run.engine.execute().unwrap();
        let went_on = run.engine.complete(Millis(0)).unwrap();
        run.check();
        if !went_on && run.next.is_empty() {
            return tenants.cached;
        }
    }
}

proptest! {
    #[test]
    fn requests_of_different_salts_share_no_page(
        config in config(),
        requests in prop::collection::vec((0u32..4, request()), 1..24),
    ) {
        let config = PlannerConfig { radix_cache: true, ..config };
        let requests = requests.into_iter();
        let requests = requests.map(|(salt, request)| salted(salt, request));
        drive(&config, requests.collect());
    }
}

/// The property above is about something: prefixes do come from the cache under a salt.
#[test]
fn requests_of_the_same_salt_share_pages() {
    let config = PlannerConfig {
        page_size: 4,
        ..PlannerConfig::default()
    };
    let again = |salt| salted(salt, Request::new(vec![1; 20], 1));
    for (salts, pages) in [([1, 1], 4), ([0, 0], 4), ([1, 2], 0), ([0, 1], 0)] {
        let requests = salts.map(again).to_vec();
        assert_eq!(drive(&config, requests), pages, "{salts:?}");
    }
}
