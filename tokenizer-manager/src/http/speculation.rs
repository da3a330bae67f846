//! Routes that show the depth of drafting and let an operator set it.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use lockstep_adaptive::{AdaptiveConfig, DepthRange};
use lockstep_proto::pb::lockstep::{DepthLoad, SpeculationLoad};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{body::Json, json};
use crate::{
    app::App,
    error::{ApiError, ApiResult},
};

/// `GET /speculation`: the algorithm, the depth of drafting, its costs, and the
/// expected costs.
pub(super) async fn show(State(app): State<Arc<App>>) -> ApiResult<Response> {
    let config = &app.config.speculation;
    let load = app.scheduler.load().await?.speculation.unwrap_or_default();
    let adaptive = config.adaptive.as_ref();
    let tiers = |adaptive: &AdaptiveConfig| {
        let tier = |depth, tokens| json!({"depth": depth, "tokens": tokens});
        let tiers = adaptive.tiers.iter();
        Value::from_iter(tiers.map(|of| tier(of.depth, of.tokens)))
    };
    let depths = load.depths.clone().unwrap_or_default();
    let range = depths
        .range
        .map(|range| json!({"min_depth": range.least, "max_depth": range.most}));
    json(&json!({
        "algorithm": config.algorithm,
        "policy": adaptive.map(|adaptive| &adaptive.policy),
        "tiers": adaptive.map(tiers),
        "depth": config.enabled().then_some(depths.depth),
        "range": range,
        "switches": depths.switches,
        "by_depth": by_depth(&depths),
        "acceptance": acceptance(&load),
        "expected": expected(&depths),
    }))
}

/// Returns steps and time for each depth that has been run.
fn by_depth(depths: &DepthLoad) -> Value {
    let counted = depths.steps.iter().zip(&depths.us).enumerate();
    let ran = counted.filter(|(_, (steps, _))| **steps > 0);
    Value::from_iter(ran.map(
        |(depth, (steps, us))| json!({"depth": depth, "steps": steps, "seconds": seconds(*us)}),
    ))
}

/// Returns acceptance for each position that has been proposed; positions count from 1.
fn acceptance(load: &SpeculationLoad) -> Value {
    let counted = load.proposed.iter().zip(&load.accepted).enumerate();
    let known = counted.filter(|(_, (proposed, _))| **proposed > 0);
    Value::from_iter(known.map(|(at, (proposed, accepted))| {
        json!({
            "position": at + 1,
            "proposed": proposed,
            "accepted": accepted,
            "rate": *accepted as f64 / *proposed as f64,
        })
    }))
}

/// Returns the mean expected time and the mean measured time of a step. `null` before
/// the first step with an expected time.
fn expected(depths: &DepthLoad) -> Option<Value> {
    let steps = depths.predicted_steps;
    let mean = |us: u64| seconds(us) / steps as f64;
    (steps > 0).then(|| {
        json!({
            "steps": steps,
            "predicted_step_seconds": mean(depths.predicted_us),
            "measured_step_seconds": mean(depths.measured_us),
        })
    })
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

/// Range of depths that an operator allows.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DepthRequest {
    #[serde(default, deserialize_with = "super::json::integer")]
    depth: Option<u32>,
    #[serde(default, deserialize_with = "super::json::integer")]
    max_depth: Option<u32>,
}

/// `POST /speculation`: pins the depth, caps it, or frees it again.
pub(super) async fn set(
    State(app): State<Arc<App>>,
    Json(request): Json<DepthRequest>,
) -> ApiResult<Response> {
    let config = &app.config.speculation;
    let Some(adaptive) = &config.adaptive else {
        return Err(ApiError::bad_request(match config.enabled() {
            true => {
                "The depth of this server is fixed: start it with --speculative-adaptive, where \
                 its algorithm can adapt, or cap single requests by \"speculative\": \
                 {\"max_steps\": …}."
            }
            false => {
                "This server drafts nothing, so it has no depth: start it with \
                 --speculative-algorithm NAME --speculative-adaptive; `lockstep serve --help` \
                 says which there are, and what each drafts with."
            }
        }));
    };
    let range = match (request.depth, request.max_depth) {
        (None, None) => None,
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid(
                "max_depth",
                "Only one of 'depth' and 'max_depth' may be given.",
            ));
        }
        (Some(depth), None) => Some(pinned(adaptive, depth)?),
        (None, Some(most)) => Some(capped(adaptive, most)?),
    };
    app.scheduler.set_depth_range(range).await?;
    let range = range.map(|range| json!({"min_depth": range.least, "max_depth": range.most}));
    json(&json!({"range": range}))
}

/// Returns the range of depths up to `most`. `most` must not exceed the deepest tier.
fn capped(adaptive: &AdaptiveConfig, most: u32) -> ApiResult<DepthRange> {
    let deepest = adaptive.tiers.iter().map(|tier| tier.depth).max();
    let deepest = deepest.unwrap_or_default();
    if most <= deepest {
        return Ok(DepthRange { least: 0, most });
    }
    Err(ApiError::invalid(
        "max_depth",
        format!(
            "This server never drafts deeper than {deepest}: give at most that, or {{}} to take \
             an earlier cap away."
        ),
    ))
}

/// Returns the range of the single depth `depth`, which must be a tier.
fn pinned(adaptive: &AdaptiveConfig, depth: u32) -> ApiResult<DepthRange> {
    if adaptive.tiers.iter().any(|tier| tier.depth == depth) {
        return Ok(DepthRange {
            least: depth,
            most: depth,
        });
    }
    let tiers = adaptive.tiers.iter().map(|tier| tier.depth.to_string());
    let tiers: Vec<_> = tiers.collect();
    Err(ApiError::invalid(
        "depth",
        format!(
            "Depth {depth} can't be run: this server has made ready for {}. Give one of these, or \
             name it among candidate_steps at start.",
            tiers.join(", ")
        ),
    ))
}
