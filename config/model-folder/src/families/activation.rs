//! Activations by their names in `config.json`.

use lockstep_types::{Activation, ModelConfigError};

use crate::raw::Raw;

/// Keys of the activation: of most families, of Gemma, of StarCoder2's older files, and of Nemotron.
const KEYS: [&str; 4] = [
    "hidden_act",
    "hidden_activation",
    "activation_function",
    "mlp_hidden_act",
];

/// Names of an activation.
fn names(activation: Activation) -> &'static [&'static str] {
    match activation {
        Activation::Silu => &["silu", "swish"],
        Activation::GeluTanh => &["gelu_pytorch_tanh"],
        Activation::ReluSquared => &["relu2"],
    }
}

/// Checks that the activation which `config.json` asks for, if it asks for one, is the family's.
///
/// # Errors
/// [`ModelConfigError::Unsupported`] names the key.
pub(super) fn check(config: &Raw, served: Activation) -> Result<(), ModelConfigError> {
    let names = names(served);
    for key in KEYS {
        if config.text(key)?.is_some_and(|name| !names.contains(&name)) {
            let remedy = format!("the only activation served here is {}", names[0]);
            return Err(config.unsupported(key, remedy));
        }
    }
    Ok(())
}
