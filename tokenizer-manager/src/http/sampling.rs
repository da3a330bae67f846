//! Sampling parameters that all HTTP APIs share.

/// Declares a request type: its own fields, then the sampling parameters. The API
/// chooses the name of `min_tokens`. (serde's `flatten` would avoid the macro, but its
/// errors do not name the field at fault.)
macro_rules! with_sampling_fields {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)* }
        min_tokens: $min_tokens:ident
    ) => {
        $crate::http::fields::with_fields! {
            $(#[$meta])*
            $vis struct $name {
                $($(#[$field_meta])* pub $field: $type,)*
                pub temperature: Option<f64>,
                pub top_p: Option<f64>,
                #[serde(default, deserialize_with = "crate::http::json::integer")]
                pub top_k: Option<i64>,
                pub min_p: Option<f64>,
                pub presence_penalty: Option<f64>,
                pub frequency_penalty: Option<f64>,
                pub repetition_penalty: Option<f64>,
                pub logit_bias: Option<$crate::http::json::LogitBias>,
                pub seed: Option<$crate::http::json::Seed>,
                #[serde(default, deserialize_with = "crate::http::json::integer")]
                pub $min_tokens: Option<i64>,
                pub stop_token_ids: Option<Vec<u32>>,
                pub ignore_eos: Option<bool>,
            }
        }

        impl $name {
            /// Takes the sampling parameters out of the request.
            pub fn sampling(&mut self) -> $crate::submission::SamplingSpec {
                let (temperature, top_p) = $crate::http::sampling::nucleus(self.temperature, self.top_p);
                $crate::submission::SamplingSpec {
                    temperature,
                    top_p,
                    top_k: self.top_k,
                    min_p: self.min_p,
                    presence_penalty: self.presence_penalty,
                    frequency_penalty: self.frequency_penalty,
                    repetition_penalty: self.repetition_penalty,
                    logit_bias: self.logit_bias.take().unwrap_or_default().0,
                    seed: self.seed.map(|seed| seed.0),
                    min_tokens: self.$min_tokens,
                    stop_token_ids: self.stop_token_ids.take().unwrap_or_default(),
                    ignore_eos: self.ignore_eos.unwrap_or(false),
                    min_tokens_field: stringify!($min_tokens),
                }
            }
        }
    };
}
/// Returns temperature and `top_p`. A `top_p` of 0 stands for its limit, the likeliest
/// token alone, and becomes temperature 0. A temperature out of range is kept, so that
/// it is still refused.
pub(in crate::http) fn nucleus(
    temperature: Option<f64>,
    top_p: Option<f64>,
) -> (Option<f64>, Option<f64>) {
    let wrong = temperature.filter(|value| !(0.0..=2.0).contains(value));
    match top_p {
        Some(0.0) => (wrong.or(Some(0.0)), None),
        top_p => (temperature, top_p),
    }
}

pub(in crate::http) use with_sampling_fields;
