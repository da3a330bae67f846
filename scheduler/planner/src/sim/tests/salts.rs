//! Tests that requests of different salts or adapters share no page, whatever else happens.

use lockstep_types::{adapter::Adapter, step::SlotOpen};

use super::*;

/// The tenant that each page was granted to.
#[derive(Default)]
struct Tenants {
    groups: usize,
    /// By DP rank and slot: the tenant, and the pages of its cached prefix that are still to come.
    slots: BTreeMap<(usize, u32), (u32, usize)>,
    /// By DP rank, group and page.
    pages: BTreeMap<(usize, usize, u32), u32>,
    /// Pages that came from the cache.
    cached: usize,
}

/// A request's salt, and place and content of its adapter.
type Owner = (Option<&'static str>, Option<(u16, u128)>);

/// Salts, with and without adapters. The last three are a reload with other bytes in the same
/// place, in another place, and with the same bytes as before in another place.
const OWNERS: [Owner; 8] = [
    (None, None),
    (Some("a"), None),
    (Some("b"), None),
    (None, Some((0, 7))),
    (Some("a"), Some((0, 7))),
    (None, Some((0, 8))),
    (None, Some((1, 9))),
    (None, Some((1, 7))),
];

/// Returns the number of a request's tenant, which [`owned`] has put where only workers look.
fn tenant(open: &SlotOpen) -> u32 {
    open.generation.sampling.top_k
}

/// Gives a request a salt and an adapter. Owners who may share pages are one tenant.
fn owned(owner: usize, mut request: Request) -> Request {
    let (salt, adapter) = OWNERS[owner];
    request.cache_salt = salt.map(str::to_owned);
    request.generation.adapter = adapter.map(|(place, content)| Adapter { place, content });
    let content = |(salt, adapter): Owner| (salt, adapter.map(|(_, content)| content));
    let own = |other: &Owner| content(*other) == content(OWNERS[owner]);
    let tenant = OWNERS.iter().position(own).unwrap();
    request.generation.sampling.top_k = tenant as u32;
    request
}

impl Tenants {
    /// Notes the pages that a plan grants. Checks that a slot's cached prefix lies in pages that
    /// were granted to its own tenant.
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
    fn requests_of_different_salts_or_adapters_share_no_page(
        config in config(),
        requests in prop::collection::vec((0..OWNERS.len(), request()), 1..24),
    ) {
        let config = PlannerConfig { radix_cache: true, ..config };
        let requests = requests.into_iter();
        let requests = requests.map(|(owner, request)| owned(owner, request));
        drive(&config, requests.collect());
    }
}

/// The property above is about something: prefixes do come from the cache under a salt and under
/// an adapter, wherever it is.
#[test]
fn requests_of_the_same_salt_and_adapter_share_pages() {
    let config = PlannerConfig {
        page_size: 4,
        ..PlannerConfig::default()
    };
    let again = |owner| owned(owner, Request::new(vec![1; 20], 1));
    for (owners, pages) in [
        ([1, 1], 4),
        ([0, 0], 4),
        ([1, 2], 0),
        ([0, 1], 0),
        ([3, 3], 4),
        ([3, 7], 4),
        ([0, 3], 0),
        ([3, 4], 0),
        ([3, 5], 0),
        ([7, 6], 0),
    ] {
        let requests = owners.map(again).to_vec();
        assert_eq!(drive(&config, requests), pages, "{owners:?}");
    }
}
