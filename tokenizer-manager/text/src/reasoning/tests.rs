use super::{REASONING_FORMATS, ReasoningFormat, Turn};
use crate::answer::tests::{Answer, Case, check};

#[test]
fn reasoning_is_told_from_the_answer() {
    use Turn::{Answer as Text, Open, Reasoning};
    for (name, turn, output, reasoning, text) in [
        (
            "qwen3",
            Open,
            "<think>\nHm.\n</think>\n\n42\n",
            "Hm.",
            "42\n",
        ),
        ("qwen3", Reasoning, "Hm. </think>42", "Hm.", "42"),
        ("qwen3", Reasoning, "\nHm.\n\nSo.", "Hm.\n\nSo.", ""),
        ("qwen3", Reasoning, "<think>Hm.</think>42", "Hm.", "42"),
        (
            "qwen3",
            Reasoning,
            "a <think> b</think>42",
            "a <think> b",
            "42",
        ),
        ("qwen3", Open, "\n<think></think>42", "", "42"),
        ("qwen3", Open, "\n 42 ", "", "\n 42 "),
        (
            "qwen3",
            Open,
            "No <think>thought</think>",
            "",
            "No <think>thought</think>",
        ),
        ("qwen3", Text, "<think>a</think>", "", "<think>a</think>"),
        ("qwen3", Open, "<thi", "", "<thi"),
        ("qwen3", Reasoning, "a </thin", "a </thin", ""),
        ("mistral", Open, "[THINK]Hm.[/THINK]42", "Hm.", "42"),
        ("kimi", Open, "◁think▷Hm.◁/think▷42", "Hm.", "42"),
        (
            "gemma4",
            Open,
            "<|channel>thought\nHm.\n<channel|>42",
            "Hm.",
            "42",
        ),
        ("gemma4", Open, "<|channel>thought\n<channel|>42", "", "42"),
        (
            "gemma4",
            Open,
            "<|channel>thorough<channel|>42",
            "thorough",
            "42",
        ),
        ("gemma4", Open, "<|channel>tho<channel|>42", "tho", "42"),
        ("gemma4", Open, "<|channel>Hm.<channel|>42", "Hm.", "42"),
        ("gemma4", Open, "<|channel>thought", "", ""),
        (
            "gemma4",
            Reasoning,
            "thought.<channel|>42",
            "thought.",
            "42",
        ),
        (
            "gemma4",
            Reasoning,
            "<|channel>thought\nHm.<channel|>42",
            "Hm.",
            "42",
        ),
        ("gemma4", Open, "42", "", "42"),
    ] {
        // Special tokens would be left out where they are text.
        let has_marks = [reasoning, text].iter().any(|part| part.contains("think>"));
        check(&Case {
            reasoning: Some((name, turn)),
            output,
            expected: Answer {
                reasoning: reasoning.to_owned(),
                ..Answer::new(text, &[])
            },
            only: has_marks.then_some(false),
            ..Case::default()
        });
    }
}

#[test]
fn the_prompts_end_says_how_the_turn_begins() {
    let format = ReasoningFormat::named("deepseek-v3").expect("known");
    let asked = "<|user|>What does <think> mean?";
    for (end, turn) in [
        ("<|assistant|>", Turn::Open),
        ("<|assistant|><think>\n", Turn::Reasoning),
        ("<|assistant|><think>\n\n</think>\n\n", Turn::Answer),
    ] {
        assert_eq!(format.turn(&format!("{asked}{end}")), turn, "{end}");
    }
    let gemma = ReasoningFormat::named("gemma4").expect("known");
    for (end, turn) in [
        ("<|turn>model\n", Turn::Open),
        ("<|turn>model\n<|channel>thought\n", Turn::Reasoning),
        ("<|turn>model\n<|channel>thought\n<channel|>", Turn::Answer),
    ] {
        assert_eq!(gemma.turn(end), turn, "{end}");
    }
    let gpt_oss = ReasoningFormat::named("gpt-oss").expect("known");
    for (end, turn) in [
        (
            "<|start|>user<|message|>Hi<|end|><|start|>assistant",
            Turn::Open,
        ),
        (
            "<|start|>assistant<|channel|>analysis<|message|>",
            Turn::Reasoning,
        ),
    ] {
        assert_eq!(gpt_oss.turn(end), turn, "{end}");
    }
    assert_eq!(gpt_oss.continued("The answer"), Turn::Answer);
    let always = ReasoningFormat::named("deepseek-r1").expect("known");
    assert_eq!(always.turn("<|assistant|>"), Turn::Reasoning);
    assert_eq!(always.turn("<think>\n\n</think>\n\n"), Turn::Answer);
    for (text, turn) in [
        ("<think>Hm", Turn::Reasoning),
        ("<think>Hm</think>4", Turn::Answer),
        ("4", Turn::Answer),
    ] {
        assert_eq!(format.continued(text), turn, "{text}");
    }
}

#[test]
fn templates_and_vocabularies_show_their_marks() {
    let of = |template: &str, tokens: &[&str]| {
        let format = ReasoningFormat::of_model(template, |token| tokens.contains(&token));
        format.map(|format| format.names[0])
    };
    assert_eq!(of("…</think>…", &[]), Some("qwen3"));
    assert_eq!(of("", &["</think>"]), Some("qwen3"));
    assert_eq!(of("", &["[/THINK]"]), Some("mistral"));
    assert_eq!(of("<|channel>thought\n<channel|>", &[]), Some("gemma4"));
    assert_eq!(of("", &["<|channel|>", "<|end|>"]), Some("gpt-oss"));
    // Other families end their turns with the mark that ends gpt-oss's messages.
    assert_eq!(of("<|user|>Hi<|end|><|assistant|>", &["<|end|>"]), None);
    assert_eq!(of("<|im_start|>", &["<think"]), None);
    let names = REASONING_FORMATS.iter().flat_map(|format| format.names);
    for name in names {
        assert!(ReasoningFormat::named(name).is_some(), "{name}");
    }
}
