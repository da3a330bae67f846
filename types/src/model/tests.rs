use super::*;

#[test]
fn a_family_is_shown_without_its_task() {
    let shown = |class_name: &str| {
        let names = Architecture {
            class_name: class_name.to_owned(),
            model_type: "qwen3".to_owned(),
        };
        names.to_string()
    };
    assert_eq!(shown("Qwen3ForCausalLM"), "Qwen3");
    assert_eq!(shown("Other"), "Other");
}

/// Scales of many layers, as of 60 in Gemma 4, stay within floats, and no number is lost.
#[test]
fn the_divisor_of_the_stream_stays_near_one() {
    for (scale, layers) in [(0.4f32, 60), (0.005, 20), (3.0, 60), (0.9, 60)] {
        let mut model =
            crate::kv::tests::model((0..layers).map(|_| crate::AttentionSpec::dense(4, 2, 8)));
        for layer in &mut model.layers {
            layer.scale = scale;
        }
        let mut whole = 0.0;
        for number in 0..layers {
            let divisor = model.stream_divisor(number + 1);
            assert!(
                (2f32.powi(-28)..2f32.powi(22)).contains(&divisor),
                "{divisor}"
            );
            let factor = model.stream_rescale(number).unwrap_or(1.0);
            assert_eq!(
                factor.to_bits() & 0x007f_ffff,
                0,
                "{factor} is a power of two"
            );
            whole += f64::from(factor).log2();
        }
        let expected = f64::from(scale).log2() * layers as f64;
        let found = f64::from(model.stream_divisor(layers)).log2() + whole;
        assert!(
            (found - expected).abs() < 1e-3,
            "{found} instead of {expected}"
        );
    }
    let mut model = crate::kv::tests::model([crate::AttentionSpec::dense(4, 2, 8)]);
    model.multipliers.residual = 1e-7;
    assert_eq!(
        (model.stream_divisor(1), model.stream_rescale(0)),
        (1e-7, None)
    );
}

#[test]
fn recurrences_count_their_convolution_and_their_state() {
    let delta = GatedDeltaSpec {
        key_heads: 1,
        value_heads: 2,
        key_dim: 16,
        value_dim: 32,
        taps: 4,
        names: GatedDeltaNames::default(),
    };
    let mamba = Mamba2Spec {
        heads: 2,
        head_dim: 16,
        groups: 1,
        state_dim: 32,
        taps: 3,
        convolution_bias: true,
        bias: false,
        names: Mamba2Names::below("mamba."),
    };
    let short = ShortConvolutionSpec {
        channels: 10,
        taps: 3,
        bias: false,
        names: ShortConvolutionNames::default(),
    };
    let attention = Mixer::Attention(crate::AttentionSpec::dense(4, 2, 8));
    for (mixer, operations) in [
        // 96 channels, and 1024 elements of a state.
        (Mixer::GatedDelta(delta), 2 * 4 * 96 + 7 * 1024),
        // 96 channels, and 1024 elements of a state.
        (Mixer::Mamba2(mamba), 2 * 3 * 96 + 5 * 1024),
        (Mixer::ShortConvolution(short), 2 * 3 * 10 + 2 * 10),
        (attention, 0),
        (Mixer::None, 0),
    ] {
        assert_eq!(mixer.recurrence_operations(), operations, "{mixer:?}");
    }
}
