//! The depth of drafting, and an operator's control of it.

use lockstep_adaptive::{AdaptiveConfig, BatchSlot, Tier};
use serde_json::{Value, json};

use super::harness::{Front, start, start_with};

/// A front whose engine adapts among three depths.
async fn adaptive() -> Front {
    start_with(|engine, _| {
        let tier = |depth| Tier {
            depth,
            tokens: depth + 1,
        };
        engine.speculation.algorithm = Some("EAGLE3".to_owned());
        engine.speculation.num_steps = 3;
        engine.speculation.num_draft_tokens = 4;
        engine.speculation.adaptive = Some(AdaptiveConfig::new(
            "goodput",
            3,
            [0, 2, 3].map(tier).to_vec(),
            vec![BatchSlot::new(1, vec![0, 2, 3])],
        ));
    })
    .await
}

async fn shown(front: &Front) -> Value {
    let (status, text) = front.get("/speculation").await;
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

#[tokio::test]
async fn the_depth_is_shown_with_what_it_took() {
    let front = adaptive().await;
    assert_eq!(
        shown(&front).await,
        json!({
            "algorithm": "EAGLE3",
            "policy": "goodput",
            "tiers": [
                {"depth": 0, "tokens": 1},
                {"depth": 2, "tokens": 3},
                {"depth": 3, "tokens": 4},
            ],
            "depth": 2,
            "range": null,
            "switches": 5,
            "by_depth": [
                {"depth": 0, "steps": 3, "seconds": 1.5},
                {"depth": 2, "steps": 7, "seconds": 0.25},
            ],
            "acceptance": [
                {"position": 1, "proposed": 8, "accepted": 4, "rate": 0.5},
                {"position": 2, "proposed": 4, "accepted": 1, "rate": 0.25},
            ],
            "expected": {
                "steps": 2, "predicted_step_seconds": 1.5, "measured_step_seconds": 0.5,
            },
        })
    );
    let (_, info) = front.get("/server_info").await;
    let info: Value = serde_json::from_str(&info).expect("JSON");
    assert_eq!(info["internal_states"][0]["speculative_num_steps"], 2);
    assert_eq!(
        info["config"]["speculation"]["adaptive"]["policy"],
        "goodput"
    );
}

#[tokio::test]
async fn a_depth_is_pinned_capped_and_freed() {
    let front = adaptive().await;
    for (wanted, range) in [
        (json!({"depth": 2}), json!({"min_depth": 2, "max_depth": 2})),
        (json!({"depth": 0}), json!({"min_depth": 0, "max_depth": 0})),
        (
            json!({"max_depth": 1}),
            json!({"min_depth": 0, "max_depth": 1}),
        ),
        (json!({}), Value::Null),
        (
            json!({"depth": 3.0}),
            json!({"min_depth": 3, "max_depth": 3}),
        ),
        (
            json!({"max_depth": 3}),
            json!({"min_depth": 0, "max_depth": 3}),
        ),
        (json!({"depth": null}), Value::Null),
    ] {
        let answer = front.ok("/speculation", &wanted).await;
        assert_eq!(answer, json!({"range": range}), "{wanted}");
        assert_eq!(shown(&front).await["range"], range, "{wanted}");
    }
}

#[tokio::test]
async fn what_can_not_be_done_is_refused_with_a_remedy() {
    let front = adaptive().await;
    for (wanted, names) in [
        (
            json!({"depth": 1}),
            &["Depth 1", "0, 2, 3", "candidate_steps"][..],
        ),
        (
            json!({"depth": 2, "max_depth": 2}),
            &["'depth'", "'max_depth'"],
        ),
        (json!({"dept": 2}), &["dept"]),
        (json!({"max_depth": 4}), &["deeper than 3", "{}"]),
        (json!({"depth": -1}), &["-1"]),
        (json!([2]), &["error"]),
    ] {
        refused(&front, &wanted, names).await;
    }
    assert_eq!(shown(&front).await["range"], Value::Null, "nothing changed");
    // A fixed depth cannot be set.
    let fixed = start_with(|engine, _| {
        engine.speculation.algorithm = Some("EAGLE3".to_owned());
        engine.speculation.num_steps = 3;
        engine.speculation.num_draft_tokens = 4;
    });
    let advice = ["start it with --speculative-adaptive", "max_steps"];
    refused(&fixed.await, &json!({}), &advice).await;
    let advice = ["--speculative-algorithm NAME --speculative-adaptive"];
    refused(&start().await, &json!({}), &advice).await;
}

async fn refused(front: &Front, wanted: &Value, names: &[&str]) {
    let (status, answer) = front.post("/speculation", wanted).await;
    let text = answer.to_string();
    assert_eq!(status, 400, "{wanted}: {text}");
    for name in names {
        assert!(text.contains(name), "{wanted}: {name:?} is not in {text}");
    }
}
