//! Data-parallel attention: the DP ranks that the ranks form.

use lockstep_types::{ConfigError, ModelConfig};

use crate::args::ParallelArgs;

const DP_SIZE: &str = "--dp-size";
const ENABLE: &str = "--enable-dp-attention";

/// Number of DP ranks, of equal size, that `tp_size` ranks form.
pub(super) fn dp_size(
    given: &ParallelArgs,
    model: &ModelConfig,
    tp_size: usize,
) -> Result<usize, ConfigError> {
    let dp_size = given.dp_size.unwrap_or(1);
    let sizes = || sizes(model, tp_size);
    match (dp_size, given.enable_dp_attention) {
        (1, false) => Ok(1),
        (1, true) => Err(ConfigError::conflict(
            ENABLE,
            given.dp_size.map_or("no --dp-size", |_| "--dp-size 1"),
            "one DP rank is plain tensor parallelism, and nothing would change",
            format!("Leave {ENABLE} out, or give {}", sizes()),
        )),
        (_, false) => Err(ConfigError::conflict(
            format!("{DP_SIZE} {dp_size}"),
            format!("no {ENABLE}"),
            "replicas of the whole model are servers of their own",
            format!(
                "Run {dp_size} servers behind a gateway, or give {ENABLE} too, so that {dp_size} \
                 DP ranks share one copy of the model"
            ),
        )),
        (_, true) if !tp_size.is_multiple_of(dp_size) => Err(ConfigError::conflict(
            format!("{DP_SIZE} {dp_size}"),
            format!("--tp-size {tp_size}"),
            "DP ranks are as many ranks each",
            format!("Give a --tp-size that {dp_size} divides, or {}", sizes()),
        )),
        (_, true) => Ok(dp_size),
    }
}

/// Advice on sizes for `tp_size` ranks.
fn sizes(model: &ModelConfig, tp_size: usize) -> String {
    let splits = |size: &usize| {
        tp_size.is_multiple_of(*size) && model.common_heads().is_multiple_of(tp_size / size)
    };
    let works: Vec<_> = (2..=tp_size).filter(splits).collect();
    match works.as_slice() {
        [] => format!("{DP_SIZE} 2 with --tp-size 2"),
        works => format!("a {DP_SIZE} that works here: {}", list(works)),
    }
}

/// Checks that the model can be split over the ranks. Each rank of a DP rank needs whole query
/// heads, and each of all ranks needs a part of the MLP and of the vocabulary.
pub(super) fn check_split(
    model: &ModelConfig,
    tp_size: usize,
    dp_size: usize,
    ep_size: usize,
) -> Result<(), ConfigError> {
    let most = model.most_ranks(ep_size);
    let undivided = model.undivided_heads(tp_size / dp_size);
    if undivided.is_empty() && tp_size <= most {
        return Ok(());
    }
    let works = model.head_splits().into_iter().map(|size| size * dp_size);
    let works: Vec<_> = works.filter(|size| *size <= most).collect();
    let (among, with) = match dp_size {
        1 => (String::new(), String::new()),
        _ => (
            format!(" among the {} of a DP rank", tp_size / dp_size),
            format!(" with {DP_SIZE} {dp_size}"),
        ),
    };
    Err(ConfigError::value(
        "--tp-size",
        tp_size,
        match undivided.as_slice() {
            [] => format!("the model's MLP or vocabulary has {most} rows, fewer than ranks"),
            all => {
                let each = all.iter().map(|(heads, name)| format!("{heads} {name}"));
                let each = each.collect::<Vec<_>>().join(" and ");
                format!("the model's {each} cannot be split so{among}")
            }
        },
        format!("Sizes that work{with}: {}", list(&works)),
    ))
}

/// Numbers as text: "1, 2, 4".
pub(super) fn list(sizes: &[usize]) -> String {
    let sizes: Vec<_> = sizes.iter().map(usize::to_string).collect();
    sizes.join(", ")
}
