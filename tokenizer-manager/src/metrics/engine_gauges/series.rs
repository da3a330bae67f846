//! Gauges and counters of the scheduler that have no labels, as tables.

use lockstep_proto::pb::lockstep::GetLoadResponse;

/// A series: name, description, accessor of the value.
pub(super) type Series = (&'static str, &'static str, fn(&GetLoadResponse) -> u64);

pub(super) const GAUGES: &[Series] = &[
    ("num_requests_running", "Requests in the batch.", |load| {
        load.running_requests.into()
    }),
    ("num_requests_waiting", "Requests in the queue.", |load| {
        load.waiting_requests.into()
    }),
    ("kv_tokens_used", "KV slots held by requests.", |load| {
        load.kv_tokens_used
    }),
    (
        "kv_tokens_cached",
        "KV slots of the evictable prefix cache.",
        |load| load.kv_tokens_cached,
    ),
    ("kv_tokens_total", "KV slots.", |load| load.kv_tokens_total),
    (
        "kv_window_tokens_used",
        "KV slots held by requests in layers with sliding windows.",
        |load| load.kv_window_tokens_used,
    ),
    (
        "kv_window_tokens_cached",
        "KV slots of the evictable prefix cache in layers with sliding windows.",
        |load| load.kv_window_tokens_cached,
    ),
    (
        "kv_window_tokens_total",
        "KV slots of layers with sliding windows: 0 if no layer frees pages behind its window.",
        |load| load.kv_window_tokens_total,
    ),
    (
        "kv_states_used",
        "States of recurrent layers held by requests.",
        |load| load.kv_states_used,
    ),
    (
        "kv_states_cached",
        "States of recurrent layers in the evictable prefix cache.",
        |load| load.kv_states_cached,
    ),
    (
        "kv_states_total",
        "States of recurrent layers: 0 if the model has no such layers.",
        |load| load.kv_states_total,
    ),
    (
        "adapters_in_memory",
        "Adapters in memory, with unloaded ones whose last requests run.",
        |load| load.adapters_in_memory.into(),
    ),
    (
        "kv_leaked_pages",
        "Pages nobody accounts for: always 0.",
        |load| load.leaked_pages,
    ),
    (
        "kv_leaked_states",
        "States of recurrent layers nobody accounts for: always 0.",
        |load| load.leaked_states,
    ),
];

pub(super) const COUNTERS: &[Series] = &[
    (
        "requests_total",
        "Requests accepted by the scheduler.",
        |load| load.requests_total,
    ),
    ("requests_aborted_total", "Requests aborted.", |load| {
        load.aborted_requests_total
    }),
    (
        "requests_failed_total",
        "Requests that ended with an error.",
        |load| load.failed_requests_total,
    ),
    ("prompt_tokens_total", "Prompt tokens.", |load| {
        load.prompt_tokens_total
    }),
    ("generated_tokens_total", "Tokens generated.", |load| {
        load.generated_tokens_total
    }),
    (
        "cached_tokens_total",
        "Prompt tokens served from the prefix cache.",
        |load| load.cached_tokens_total,
    ),
    (
        "cached_full_tokens_total",
        "Prompt tokens that the prefix cache had for layers that keep all positions.",
        |load| load.cached_full_tokens_total,
    ),
    (
        "cached_window_tokens_total",
        "Prompt tokens among these that it had for layers with sliding windows.",
        |load| load.cached_window_tokens_total,
    ),
    (
        "cached_state_tokens_total",
        "Prompt tokens among these that it had for recurrent layers.",
        |load| load.cached_state_tokens_total,
    ),
    ("steps_total", "Forward steps.", |load| load.steps_total),
    (
        "retractions_total",
        "Requests taken out of the batch for lack of KV slots.",
        |load| load.retractions_total,
    ),
];
