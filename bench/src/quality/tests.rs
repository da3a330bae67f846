use clap::Parser as _;

use super::*;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

#[derive(serde::Deserialize)]
struct Goldens {
    prompts: Vec<Golden>,
}

#[derive(serde::Deserialize)]
struct Golden {
    ids: Vec<u32>,
    prompt_logprobs: Vec<f64>,
}

/// Each window begins with an empty state, whatever the windows before it left.
#[test]
fn windows_of_a_recurrent_model_have_the_perplexity_of_their_goldens() -> anyhow::Result<()> {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures");
    let path = PathBuf::from(format!("{fixtures}/architectures/qwen3_5"));
    let Line { args } = Line::try_parse_from(["quality", "--threads", "1", "--window", "136"])?;
    let (none, auto) = (QuantizationArg::None, KvCacheDtypeArg::Auto);
    let config = config(&args, &path, DtypeArg::Float32, none, auto)?;
    let goldens = std::fs::read(path.join("golden.json"))?;
    let goldens: Goldens = serde_json::from_slice(&goldens)?;
    let windows = goldens.prompts.iter().map(|golden| golden.ids.clone());
    let windows: Vec<_> = windows.collect();
    let read = logits::read(&config, Products::Served, args.window, &windows)?.predictions;
    let known = goldens
        .prompts
        .iter()
        .flat_map(|golden| &golden.prompt_logprobs);
    let (count, sum) = known.fold((0, 0.0), |(count, sum), logprob| (count + 1, sum - logprob));
    assert_eq!(read.rows(), count, "all windows are read");
    let expected = (sum / f64::from(u32::try_from(count)?)).exp();
    let found = read.against(&read).perplexity;
    assert!((found / expected - 1.0).abs() < 1e-3, "{found} {expected}");
    Ok(())
}

/// The parts of a loss are apart: rounded weights lose without rounded inputs, and floats lose
/// nothing by being called numbers.
#[test]
fn weights_lose_apart_from_the_arithmetic() -> anyhow::Result<()> {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures");
    let path = PathBuf::from(format!("{fixtures}/architectures/qwen3_5"));
    let Line { args } = Line::try_parse_from(["quality", "--threads", "1", "--window", "16"])?;
    let windows = [(1..17).collect::<Vec<u32>>()];
    let read = |quantization, products| {
        let auto = KvCacheDtypeArg::Auto;
        let config = config(&args, &path, DtypeArg::Float32, quantization, auto)?;
        let read = logits::read(&config, products, args.window, &windows)?;
        anyhow::Ok(read.predictions)
    };
    let (none, int4) = (QuantizationArg::None, QuantizationArg::Int4);
    let truth = read(none, Products::Served)?;
    let same = read(none, Products::Dequantized)?;
    assert_eq!(truth.against(&same).divergence, 0.0);
    let numbers = read(int4, Products::Dequantized)?;
    let served = read(int4, Products::Served)?;
    let [weights, arithmetic] =
        [(&truth, &numbers), (&numbers, &served)].map(|(a, b)| a.against(b).divergence);
    assert!(
        0.0 < arithmetic && arithmetic < weights,
        "{arithmetic} {weights}"
    );
    Ok(())
}
