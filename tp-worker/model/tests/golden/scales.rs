//! Scales of layers that come to less than a millionth together.

use std::fs;

use lockstep_types::{Dtype, KvCacheDtype};

use super::{Case, F32_CLEAR_GAP, F32_TOLERANCE, check, cpu, fixture, naive, texts};
use crate::driver::{Factory, Feed, logits};

fn case() -> Case {
    let folder = fixture("gemma4_small_scales");
    let text = fs::read(folder.join("golden.json")).unwrap();
    Case {
        model: lockstep_model_folder::load(&folder).unwrap(),
        golden: serde_json::from_slice(&text).unwrap(),
    }
}

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
    let case = case();
    let rescaled =
        (0..case.model.layers.len()).filter_map(|layer| case.model.stream_rescale(layer));
    assert_eq!(rescaled.count(), 1);
    for tp_size in [1, 2] {
        compare(&case, &naive(), tp_size);
        compare(&case, &cpu(Dtype::Float32), tp_size);
    }
}
