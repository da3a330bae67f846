//! Experts beside the MLP of each layer, in sparse models.

use lockstep_types::{
    ExpertGate, ExpertTensors, ExpertsNames, ExpertsSpec, Mlp, ModelConfigError, ParallelMlpNames,
    ParallelMlpSpec, Routing,
};

use super::Dense;
use crate::families::experts;
use crate::raw::Raw;

/// Key that layers have experts.
pub(super) const EXPERTS: &str = "enable_moe_block";
/// Key of their number.
pub(super) const COUNT: &str = "num_experts";
/// Key of the number of experts that a position goes through.
pub(super) const ACTIVE: &str = "top_k_experts";
/// Key of the width of an expert.
pub(super) const WIDTH: &str = "moe_intermediate_size";

/// Reads the MLP of layers with experts beside it; `None` if there are none. The MLP itself is that
/// of `dense`.
///
/// # Errors
/// [`ModelConfigError`]: a key is missing or damaged.
pub(super) fn read(config: &Raw, dense: &Dense) -> Result<Option<Mlp>, ModelConfigError> {
    if !config.flag(EXPERTS, false)? {
        return Ok(None);
    }
    let Mlp::Gated(gated) = dense.gated(config)? else {
        return Ok(None);
    };
    let name = str::to_owned;
    let names = ExpertsNames {
        router: name("router.proj"),
        correction: String::new(),
        experts: ExpertTensors::Stacked {
            gate_up: name("experts.gate_up_proj"),
            down: name("experts.down_proj"),
        },
    };
    let routing = Routing::softmax(true);
    let experts = ExpertsSpec {
        gate: ExpertGate::GeluTanh,
        scales: Some(name("router.per_expert_scale")),
        ..experts::read_active(config, &[COUNT], ACTIVE, WIDTH, routing, names)?
    };
    Ok(Some(Mlp::Parallel(Box::new(ParallelMlpSpec {
        gated,
        experts,
        names: ParallelMlpNames {
            gated_output_norm: name("post_feedforward_layernorm_1"),
            experts_norm: name("pre_feedforward_layernorm_2"),
            experts_output_norm: name("post_feedforward_layernorm_2"),
            router_scale: name("router.scale"),
        },
    }))))
}
