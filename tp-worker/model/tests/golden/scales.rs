//! Scales of layers that come to less than a millionth together.

use lockstep_types::{Dtype, KvCacheDtype};

use super::{Case, F32_CLEAR_GAP, F32_TOLERANCE, check, cpu, naive, texts};
use crate::driver::{Factory, Feed, logits};

fn compare<B: lockstep_backend::Backend + 'static>(
    case: &Case,
    factory: &Factory<B>,
    tp_size: usize,
) {
    let feed = Feed {
        tp_size,
        ..Feed::plain(KvCacheDtype::Float32)
    };
    let found = logits(&case.model, factory, feed, &texts(&case.golden));
    let name = "gemma4_small_scales";
    check(name, &case.golden, &found, F32_TOLERANCE, F32_CLEAR_GAP);
}

/// The stream is multiplied by a power of two behind a layer, and logits stay those of transformers.
#[test]
fn the_stream_stays_within_floats() {
    let case = super::case("gemma4_small_scales");
    let rescaled =
        (0..case.model.layers.len()).filter_map(|layer| case.model.stream_rescale(layer));
    assert_eq!(rescaled.count(), 1);
    for tp_size in [1, 2] {
        compare(&case, &naive(), tp_size);
        compare(&case, &cpu(Dtype::Float32), tp_size);
    }
}
